// SIGSYS, SIGTRAP and SIGSEGV that the program blocks: they wait, show as pending, are inherited, and come when unblocked.
//
// Covers: rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigsuspend signalfd signalfd4
#include "guest.h"
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>

extern char **environ;
static const int SIGS[] = {SIGSYS, SIGTRAP, SIGSEGV};
static volatile int hits, value;
static void handler(int sig, siginfo_t *i, void *uc) {
    (void)sig, (void)uc;
    hits++, value = i->si_value.sival_int;
}

static sigset_t of(int sig) {
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, sig);
    return s;
}

static int blocks(int sig) {
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    return sigismember(&now, sig);
}

static int pends(int sig) {
    sigset_t now;
    sigpending(&now);
    return sigismember(&now, sig);
}

static void waits_until_unblocked(void) {
    for (int i = 0; i < 3; i++) {
        int sig = SIGS[i];
        sigset_t one = of(sig);
        struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
        sigaction(sig, &a, NULL);
        sigprocmask(SIG_BLOCK, &one, NULL);
        hits = 0;
        same("before", "%d pends %d", sig, pends(sig));
        sigqueue(getpid(), sig, (union sigval){.sival_int = 41 + i});
        kill(getpid(), sig);
        kill(getpid(), SIGCHLD);
        same("blocked", "%d hits %d pends %d", sig, hits, pends(sig));
        pid_t pid = fork();
        if (pid == 0) {
            same("child", "%d pends %d blocks %d", sig, pends(sig), blocks(sig));
            _exit(0);
        }
        waitpid(pid, NULL, 0);
        sigprocmask(SIG_UNBLOCK, &one, NULL);
        same("unblocked", "%d hits %d value %d pends %d", sig, hits, value, pends(sig));
    }
}

// A read that blocks: how it ends where a child sends the signal first and a byte later.
static void interrupted(const char *what, int sig) {
    int ends[2];
    if (pipe(ends)) _exit(97);
    pid_t pid = fork();
    if (pid == 0) {
        nanosleep(&(ts_t){0, 20 * MS}, NULL);
        kill(getppid(), sig);
        nanosleep(&(ts_t){0, 150 * MS}, NULL);
        _exit(write(ends[1], "x", 1) != 1);
    }
    char c;
    long n = read(ends[0], &c, 1);
    same(what, "%d read %ld %d hits %d", sig, n, n < 0 ? errno : 0, hits);
    waitpid(pid, NULL, 0);
    close(ends[0]);
    close(ends[1]);
}

static void calls_that_wait(void) {
    for (int i = 0; i < 3; i++) {
        int sig = SIGS[i];
        struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
        sigaction(sig, &a, NULL);
        interrupted("ends.signal", sig);
        a.sa_flags |= SA_RESTART;
        sigaction(sig, &a, NULL);
        interrupted("restarts.signal", sig);
        signal(sig, SIG_IGN);
        interrupted("ignored.signal", sig);
        sigaction(sig, &a, NULL);
        sigset_t one = of(sig);
        sigprocmask(SIG_BLOCK, &one, NULL);
        interrupted("held.signal", sig);
    }
}

static void waited_for(void) {
    for (int i = 0; i < 3; i++) {
        int sig = SIGS[i];
        sigset_t one = of(sig);
        sigprocmask(SIG_BLOCK, &one, NULL);
        kill(getpid(), sig);
        siginfo_t got = {0};
        SAME("sigtimedwait", R4(SYS_rt_sigtimedwait, &one, &got, (&(ts_t){1, 0}), 8));
        same("info", "%d %d %d", got.si_signo, got.si_code, got.si_pid == getpid());
        SAME("again", R4(SYS_rt_sigtimedwait, &one, &got, (&(ts_t){0, 2 * MS}), 8));
        pid_t pid = fork(), parent = getppid();
        if (pid == 0) {
            nanosleep(&(ts_t){0, 20 * MS}, NULL);
            kill(getppid(), sig);
            _exit(0);
        }
        (void)parent;
        SAME("sigwaitinfo", R4(SYS_rt_sigtimedwait, &one, &got, NULL, 8));
        waitpid(pid, NULL, 0);
    }
}

static int readable(int fd, int ms) {
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, ms);
}

static void reads(const char *what, int fd) {
    struct signalfd_siginfo got[2] = {0};
    long n = read(fd, got, sizeof got);
    same(what, "%ld %ld signo %u code %d own %d uid %d int %d ptr %lld", n, n < 0 ? (long)errno : 0, got[0].ssi_signo,
         got[0].ssi_code, got[0].ssi_pid == (unsigned)getpid(), got[0].ssi_uid == getuid(), got[0].ssi_int, (long long)got[0].ssi_ptr);
}

static void read_from_signalfd(void) {
    sigset_t both = of(SIGSYS);
    sigaddset(&both, SIGTRAP);
    sigprocmask(SIG_BLOCK, &both, NULL);
    // What came before it is there, and what is read or taken otherwise is gone.
    kill(getpid(), SIGTRAP);
    int fd = signalfd(-1, &both, SFD_NONBLOCK | SFD_CLOEXEC), flags = fcntl(fd, F_GETFL);
    same("signalfd", "%d %d %d", fd >= 0, !!(flags & O_NONBLOCK), fcntl(fd, F_GETFD));
    same("early", "%d", readable(fd, 0));
    reads("early", fd);
    reads("empty", fd);
    same("gone", "%d %d", pends(SIGTRAP), readable(fd, 0));
    sigqueue(getpid(), SIGSYS, (union sigval){.sival_int = 77});
    kill(getpid(), SIGSYS);
    same("both", "%d %d", pends(SIGSYS), readable(fd, 0));
    reads("queued", fd);
    reads("once", fd);
    kill(getpid(), SIGSYS);
    siginfo_t info;
    same("elsewhere", "%d %d", sigwaitinfo(&both, &info), readable(fd, 0));
    // Epoll wakes up, and so does a read that blocks, in another thread's stead a child sends.
    int e = epoll_create1(0);
    epoll_ctl(e, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN});
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            nanosleep(&(ts_t){0, 20 * MS}, NULL);
            kill(getppid(), SIGS[i]);
            _exit(0);
        }
        waitid(P_PID, pid, &info, WEXITED | WNOWAIT);
        struct epoll_event event = {0};
        int events = epoll_wait(e, &event, 1, -1);
        same("epoll", "%d %d", events, (int)event.events);
        struct signalfd_siginfo got = {0};
        long n = read(fd, &got, sizeof got);
        same("child", "%ld %u %d", n, got.ssi_signo, got.ssi_pid == (unsigned)pid);
        waitpid(pid, NULL, 0);
    }
    fcntl(fd, F_SETFL, 0);
    pid_t pid = fork();
    if (pid == 0) {
        nanosleep(&(ts_t){0, 20 * MS}, NULL);
        kill(getppid(), SIGSYS);
        _exit(0);
    }
    struct signalfd_siginfo got = {0};
    long n = read(fd, &got, sizeof got);
    same("blocks", "%ld %d %u", n, n < 0 ? errno : 0, got.ssi_signo);
    waitpid(pid, NULL, 0);
    // Another set, and a descriptor that is closed and used again.
    sigset_t one = of(SIGTRAP);
    same("changed", "%d", signalfd(fd, &one, 0) == fd);
    kill(getpid(), SIGSYS);
    same("other", "%d %d", readable(fd, 0), pends(SIGSYS));
    close(fd);
    int again = open("/dev/null", O_RDWR);
    kill(getpid(), SIGTRAP);
    same("closed", "%d %d %d", again == fd, pends(SIGSYS), pends(SIGTRAP));
    sigset_t none = {0};
    SAME("nothing", R4(SYS_signalfd4, -1, &none, 8, 0) >= 0);
    SAME("flags", R4(SYS_signalfd4, -1, &both, 8, 1));
    SAME("size", R4(SYS_signalfd4, -1, &both, 4, 0));
    SAME("pointer", R4(SYS_signalfd4, -1, 8, 8, 0));
    SAME("no.signalfd", R4(SYS_signalfd4, again, &both, 8, 0));
    SAME("old", R3(SYS_signalfd, -1, &both, 8) >= 0);
}

// Blocked does not mean safe: a breakpoint kills.
// What a mask for the time of a call lets through runs then, and the call ends; afterwards all is blocked as before.
static void masks_of_a_call(void) {
    sigset_t both = of(SIGSYS), none, seen;
    sigaddset(&both, SIGTRAP);
    sigemptyset(&none);
    struct timespec brief = {0, 300000000}, at_once = {0, 0};
    int pipe_fd[2], epoll = epoll_create1(0);
    if (pipe(pipe_fd)) _exit(96);
    struct epoll_event e = {EPOLLOUT, {.u64 = 0}};
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &a, NULL), sigaction(SIGTRAP, &a, NULL), sigaction(SIGUSR1, &a, NULL), sigaction(SIGALRM, &a, NULL);
    sigprocmask(SIG_BLOCK, &both, NULL);
    for (int which = 0; which < 3; which++) {
        sigset_t let_through = which == 2 ? none : of(SIGS[1 - which]);
        for (int call = 0; call < 8; call++) {
            struct pollfd p = {pipe_fd[call == 2], call == 2 ? POLLOUT : POLLIN, 0};
            hits = 0;
            kill(getpid(), SIGSYS), kill(getpid(), SIGTRAP);
            long r = call == 0 ? sigsuspend(&let_through)
                : call == 1 || call == 2 ? ppoll(&p, 1, &brief, &let_through)
                : call == 3 ? ppoll(&p, 1, &at_once, &let_through)
                : call == 4 ? pselect(0, NULL, NULL, NULL, &brief, &let_through)
                : call == 5 ? epoll_pwait(epoll, &e, 1, 300, &let_through)
                : call == 6 ? epoll_pwait(epoll, &e, 1, 0, &let_through)
                            : epoll_pwait2(epoll, &e, 1, &brief, &let_through);
            int error = r < 0 ? errno : 0;
            sigprocmask(SIG_BLOCK, NULL, &seen);
            same("mask_of_a_call", "%d.%d %ld %d hits %d blocks %d %d pends %d %d", which, call, r, error, hits,
                 sigismember(&seen, SIGSYS), sigismember(&seen, SIGTRAP), pends(SIGSYS), pends(SIGTRAP));
            sigtimedwait(&both, NULL, &at_once), sigtimedwait(&both, NULL, &at_once);
        }
    }
    // One more that waits for the call to end, and one that the call blocks.
    sigprocmask(SIG_BLOCK, &(sigset_t){{1UL << (SIGUSR1 - 1)}}, NULL);
    hits = 0;
    kill(getpid(), SIGTRAP), kill(getpid(), SIGUSR1);
    int r = sigsuspend(&none);
    same("mask_of_a_call", "with another %d hits %d", r, hits);
    sigprocmask(SIG_UNBLOCK, &both, NULL);
    sigset_t one = of(SIGALRM);
    sigprocmask(SIG_BLOCK, &one, NULL);
    hits = 0;
    kill(getpid(), SIGALRM);
    sigset_t trap = of(SIGTRAP);
    r = sigsuspend(&trap);
    same("mask_of_a_call", "blocked by it %d hits %d blocks %d", r, hits, blocks(SIGTRAP));
    kill(getpid(), SIGTRAP);
    same("mask_of_a_call", "afterwards hits %d", hits);
}

static void breakpoint(void) {
    sigset_t one = of(SIGTRAP);
    sigprocmask(SIG_BLOCK, &one, NULL);
    signal(SIGTRAP, SIG_IGN);
    __asm__ volatile("int3");
}

static void inherits(void) {
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGTRAP);
    sigprocmask(SIG_SETMASK, &all, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        same("fork", "%d %d", blocks(SIGSYS), blocks(SIGTRAP));
        kill(getpid(), SIGSYS);
        same("fork.alive", "%d", pends(SIGSYS));
        if ((pid = fork()) == 0) {
            same("grandchild", "%d %d %d", blocks(SIGSYS), blocks(SIGTRAP), pends(SIGSYS));
            _exit(0);
        }
        waitpid(pid, NULL, 0);
        signal(SIGTRAP, SIG_IGN);
        execl("/proc/self/exe", "blocked", "exec", NULL);
    }
    waitpid(pid, NULL, 0);
    char *argv[] = {"blocked", "spawned", NULL};
    posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ);
    waitpid(pid, NULL, 0);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        struct sigaction sys, trap;
        sigaction(SIGSYS, NULL, &sys);
        sigaction(SIGTRAP, NULL, &trap);
        same(argv[1], "blocks %d %d ignores %d %d", blocks(SIGSYS), blocks(SIGTRAP), sys.sa_handler == SIG_IGN, trap.sa_handler == SIG_IGN);
        kill(getpid(), SIGSYS);
        same(argv[1], "alive %d", pends(SIGSYS));
        return 0;
    }
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"waits_until_unblocked", waits_until_unblocked}, {"calls_that_wait", calls_that_wait}, {"waited_for", waited_for}, {"read_from_signalfd", read_from_signalfd}, {"masks_of_a_call", masks_of_a_call}, {"breakpoint", breakpoint}, {"inherits", inherits}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
