// SIGSYS and SIGTRAP that the program blocks: they wait, show as pending, are inherited, and come when unblocked.
//
// Covers: rt_sigprocmask rt_sigpending rt_sigtimedwait
#include "guest.h"
#include <spawn.h>

extern char **environ;
static const int SIGS[] = {SIGSYS, SIGTRAP};
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
    for (int i = 0; i < 2; i++) {
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

static void waited_for(void) {
    for (int i = 0; i < 2; i++) {
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

// Blocked does not mean safe: a breakpoint kills.
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
    } parts[] = {{"waits_until_unblocked", waits_until_unblocked}, {"waited_for", waited_for}, {"breakpoint", breakpoint}, {"inherits", inherits}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
