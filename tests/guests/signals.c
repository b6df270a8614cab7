// SIGSYS and SIGTRAP, and SIGSEGV where rdtsc is trapped, belong to the frame, and the program must not notice: what it sets, it sees, and nothing that
// it does to its signals kills it.
//
// Covers: rt_sigaction rt_sigprocmask rt_sigsuspend rt_sigpending sigaltstack
#include "guest.h"
#include <pthread.h>
#include <setjmp.h>

static volatile int hits, last;
static volatile unsigned long value;
static void handler(int sig) { hits++, last = sig; }
static void handler_info(int sig, siginfo_t *i, void *uc) { hits++, last = sig, value = (unsigned long)i->si_value.sival_ptr, (void)uc; }

static void timed_waits(const char *name) {
    struct pollfd f = {-1, 0, 0};
    ts_t t = {0, 2 * MS};
    uint32_t word = 0;
    line("= %s nanosleep %ld poll %ld ppoll %ld futex %ld clock %d", name, R2(SYS_nanosleep, &t, NULL),
         R3(SYS_poll, &f, 1, 2), R5(SYS_ppoll, &f, 1, &t, NULL, 0), R4(SYS_futex, &word, 128, 0, &t), now_raw(1) > 0);
}

static void all_blocked(void) {
    sigset_t all, got;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    timed_waits("all_blocked");
    sigprocmask(SIG_BLOCK, NULL, &got);
    same("all_blocked.mask", "%d %d %d", sigismember(&got, SIGSYS), sigismember(&got, SIGTRAP), sigismember(&got, SIGUSR1));
    for (long i = 0; i < 3000000; i++) __asm__ volatile("");
    timed_waits("all_blocked.again");
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    sigprocmask(SIG_BLOCK, NULL, &got);
    same("unblocked.mask", "%d %d %d", sigismember(&got, SIGSYS), sigismember(&got, SIGTRAP), sigismember(&got, SIGUSR1));
    ts_t t = {0, 2 * MS};
    struct pollfd f = {-1, 0, 0};
    SAME("ppoll.full_mask", R5(SYS_ppoll, &f, 1, &t, &all, 8));
    SAME("ppoll.full_mask.forever", (kill(getpid(), SIGUSR1), R5(SYS_ppoll, &f, 1, (&(ts_t){0, 2 * MS}), &all, 8)));
}

static void dispositions(void) {
    static const int sigs[] = {SIGSYS, SIGTRAP, SIGSEGV};
    for (int i = 0; i < 3; i++) {
        int sig = sigs[i];
        struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
        sigfillset(&a.sa_mask);
        same("default", "%d %p", sig, (sigaction(sig, NULL, &old), (void *)old.sa_handler));
        SAME("set", sigaction(sig, &a, &old));
        sigaction(sig, NULL, &old);
        same("query", "%d handler %d flags %x mask %d %d", sig, old.sa_handler == handler, old.sa_flags & SA_RESTART,
             sigismember(&old.sa_mask, SIGSYS), sigismember(&old.sa_mask, SIGTRAP));
        timed_waits("handled");
        hits = 0;
        kill(getpid(), sig);
        same("kill", "%d hits %d last %d", sig, hits, last);
        timed_waits("after_kill");
        struct sigaction info = {.sa_sigaction = handler_info, .sa_flags = SA_SIGINFO};
        sigaction(sig, &info, NULL);
        union sigval v = {.sival_ptr = (void *)0x1234};
        sigqueue(getpid(), sig, v);
        same("sigqueue", "%d hits %d value %lx", sig, hits, value);
        signal(sig, SIG_IGN);
        hits = 0;
        kill(getpid(), sig);
        sigaction(sig, NULL, &old);
        same("ignored", "%d %d hits %d", sig, old.sa_handler == SIG_IGN, hits);
        timed_waits("ignored");
        a.sa_flags = SA_RESETHAND;
        sigaction(sig, &a, NULL);
        kill(getpid(), sig);
        sigaction(sig, NULL, &old);
        same("resethand", "%d default %d hits %d", sig, old.sa_handler == SIG_DFL, hits);
        timed_waits("reset");
    }
    // A breakpoint of the program's own.
    struct sigaction a = {.sa_handler = handler};
    sigaction(SIGTRAP, &a, NULL);
    hits = 0;
    __asm__ volatile("int3");
    same("int3", "%d %d", hits, last);
}

static void die_sigsys(void) { kill(getpid(), SIGSYS); }
static void die_sigtrap(void) { kill(getpid(), SIGTRAP); }
static void die_int3(void) { __asm__ volatile("int3"); }
static void die_abort(void) { abort(); }
static void ignore_then_die(void) {
    signal(SIGSYS, SIG_IGN);
    signal(SIGSYS, SIG_DFL);
    raise(SIGSYS);
}

static void masks_of_handlers(void) {
    struct sigaction a = {.sa_handler = handler}, old;
    sigfillset(&a.sa_mask);
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGUSR1, NULL, &old);
    same("sa_mask", "%d %d %d", sigismember(&old.sa_mask, SIGSYS), sigismember(&old.sa_mask, SIGTRAP), sigismember(&old.sa_mask, SIGHUP));
}

static void busy_handler(int sig) {
    // All signals masked: waits and the meter must work in here too.
    timed_waits("in_handler");
    for (long i = 0; i < 2000000; i++) __asm__ volatile("");
    hits += sig == SIGUSR1;
}
static void waits_in_handlers(void) {
    struct sigaction a = {.sa_handler = busy_handler};
    sigfillset(&a.sa_mask);
    sigaction(SIGUSR1, &a, NULL);
    hits = 0;
    raise(SIGUSR1);
    same("in_handler.hits", "%d", hits);
}

static char small[8192] __attribute__((aligned(64)));
static void on_small_stack(int sig) {
    char here;
    hits += sig > 0;
    same("small_stack.on", "%d", &here >= small && &here < small + sizeof small);
    timed_waits("small_stack");
    volatile char room[1024];
    for (unsigned n = 0; n < 3000; n++)
        for (unsigned i = 0; i < sizeof room; i++) room[i] = i;
}
static void small_stack(void) {
    stack_t s = {.ss_sp = small, .ss_size = sizeof small}, old;
    SAME("sigaltstack", sigaltstack(&s, NULL));
    struct sigaction a = {.sa_handler = on_small_stack, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &a, NULL);
    for (int i = 0; i < 3; i++) raise(SIGUSR1);
    timed_waits("with_small_stack");
    sigaltstack(NULL, &old);
    same("sigaltstack.old", "%d %ld %d", old.ss_sp == small, (long)old.ss_size, old.ss_flags);
}

static void alarm_ends_read(void) {
    // EINTR must not get lost on the way, however often.
    struct sigaction a = {.sa_handler = handler};
    sigaction(SIGALRM, &a, NULL);
    int p[2], ended = 0;
    char c;
    if (pipe(p)) _exit(90);
    for (int i = 0; i < 20; i++) {
        struct itimerval v = {{0, 0}, {0, 30000}};
        // If it is lost, a second one comes to the rescue and the count is wrong.
        v.it_interval.tv_usec = 200000;
        hits = 0;
        setitimer(ITIMER_REAL, &v, NULL);
        long r = R3(SYS_read, p[0], &c, 1);
        setitimer(ITIMER_REAL, NULL, NULL);
        ended += r == -EINTR && hits == 1;
    }
    same("alarm_ends_read", "%d", ended);
}

static void suspend(void) {
    struct sigaction a = {.sa_handler = handler};
    sigaction(SIGALRM, &a, NULL);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigdelset(&all, SIGALRM);
    struct itimerval v = {{0, 0}, {0, 5000}};
    setitimer(ITIMER_REAL, &v, NULL);
    hits = 0;
    SAME("sigsuspend", R2(SYS_rt_sigsuspend, &all, 8));
    same("sigsuspend.hits", "%d %d", hits, last);
    timed_waits("suspended");
}

static sigjmp_buf back;
static void jump(int sig) { siglongjmp(back, sig); }
static void long_jumps(void) {
    signal(SIGALRM, jump);
    int n = 0;
    for (int i = 0; i < 20; i++) {
        struct itimerval v = {{0, 0}, {0, 2000}};
        if (sigsetjmp(back, 1) == 0) {
            setitimer(ITIMER_REAL, &v, NULL);
            nanosleep(&(ts_t){5, 0}, NULL);
        } else
            n++;
    }
    same("siglongjmp", "%d", n);
}

static void *cancelled(void *arg) {
    (void)arg;
    nanosleep(&(ts_t){100, 0}, NULL);
    return NULL;
}
static void *blocked_thread(void *arg) {
    (void)arg;
    sigset_t got;
    pthread_sigmask(SIG_BLOCK, NULL, &got);
    timed_waits("thread");
    return (void *)(long)sigismember(&got, SIGUSR2);
}
static void threads(void) {
    pthread_t t;
    void *r;
    pthread_create(&t, NULL, cancelled, NULL);
    nanosleep(&(ts_t){0, 5 * MS}, NULL);
    SAME("pthread_cancel", pthread_cancel(t));
    pthread_join(t, &r);
    same("cancelled", "%d", r == PTHREAD_CANCELED);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_create(&t, NULL, blocked_thread, NULL);
    pthread_join(t, &r);
    same("thread.mask", "%ld", (long)r);
}

static void clear_sighand(void) {
    // clone3 with CLONE_CLEAR_SIGHAND: handlers gone, ours not.
    signal(SIGUSR1, handler);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGSYS, handler);
    signal(SIGTRAP, SIG_IGN);
    long args[11] = {1L << 32, 0, 0, 0, SIGCHLD};
    long pid = R2(435, args, sizeof args);
    if (pid == 0) {
        struct sigaction a, b;
        sigaction(SIGSYS, NULL, &a);
        sigaction(SIGTRAP, NULL, &b);
        same("clear_sighand.ours", "%d %d", a.sa_handler == SIG_DFL, b.sa_handler == SIG_IGN);
        sigaction(SIGUSR1, NULL, &a);
        sigaction(SIGUSR2, NULL, &b);
        same("clear_sighand", "%d %d", a.sa_handler == SIG_DFL, b.sa_handler == SIG_IGN);
        timed_waits("clear_sighand");
        _exit(3);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    same("clear_sighand.status", "%x", status);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "small_stack")) {
        line("= small_stack status %x", in_child(small_stack));
        return 0;
    }
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"all_blocked", all_blocked}, {"dispositions", dispositions}, {"sigsys", die_sigsys}, {"sigtrap", die_sigtrap},
        {"int3", die_int3}, {"abort", die_abort}, {"ignore_then_die", ignore_then_die}, {"masks", masks_of_handlers},
        {"in_handlers", waits_in_handlers}, {"alarm_ends_read", alarm_ends_read},
        {"suspend", suspend}, {"long_jumps", long_jumps}, {"threads", threads}, {"clear_sighand", clear_sighand}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
