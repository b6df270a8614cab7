// rdtsc and rdtscp: natively, and where the frame traps them (`--tsc trap`), SIGSEGV is the program's own all the same.
//
// Covers: prctl rt_sigaction rt_sigprocmask
#include "guest.h"
#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <ucontext.h>

extern char **environ;

static unsigned long with_core(unsigned *core) {
    unsigned lo, hi;
    __asm__ volatile("rdtscp" : "=a"(lo), "=d"(hi), "=c"(*core));
    return (unsigned long)hi << 32 | lo;
}

// A clock and the counter at one instant: between two readings of the clock, the closest of some. What interrupts a
// reading, or has it wait for its core, is no part of a rate.
static unsigned long at_once(clockid_t id, long *at_ns) {
    unsigned long ticks = 0;
    for (long i = 0, least = -1; i < 20; i++) {
        long before = now(id);
        unsigned long t = tsc();
        long apart = now(id) - before;
        if (least >= 0 && apart >= least) continue;
        least = apart, ticks = t, *at_ns = before + apart / 2;
    }
    return ticks;
}

static void rates(void) {
    // Ticks per ms of every clock that they are measured by.
    static const clockid_t ids[] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME, CLOCK_BOOTTIME};
    for (unsigned i = 0; i < sizeof ids / sizeof *ids; i++) {
        long begin, end;
        unsigned long ticks = at_once(ids[i], &begin);
        nanosleep(&(ts_t){0, 60 * MS}, NULL);
        ticks = at_once(ids[i], &end) - ticks;
        line("value ticks_per_ms %ld", (long)(ticks * 1e6 / (end - begin)));
    }
}

static void readings(void) {
    unsigned core, back = 0, cores = 0;
    unsigned long last = tsc();
    for (int i = 0; i < 20000; i++) {
        unsigned long t = i % 2 ? tsc() : with_core(&core);
        back += t < last;
        last = t;
        if (i % 2 == 0 && (core & 0xfff) > cores) cores = core & 0xfff;
    }
    same("backwards", "%u", back);
    same("cores", "%d", (long)cores < sysconf(_SC_NPROCESSORS_ONLN));
    // The upper halves are cleared, nothing else changes, whatever the prefix.
    unsigned long a = ~0UL, d = ~0UL, c = ~0UL, kept = 0x1234567890abcdefUL, flags[2];
    __asm__ volatile("stc\n\tpushf\n\tpop %4\n\trdtsc\n\tpushf\n\tpop %5" : "+a"(a), "+d"(d), "+c"(c), "+r"(kept), "=&r"(flags[0]), "=&r"(flags[1]));
    same("rdtsc.halves", "%d %d %d %d %d", a >> 32 == 0, d >> 32 == 0, c == ~0UL, kept == 0x1234567890abcdefUL, flags[0] == flags[1]);
    a = d = c = ~0UL;
    __asm__ volatile("rdtscp" : "+a"(a), "+d"(d), "+c"(c));
    same("rdtscp.halves", "%d %d %d", a >> 32 == 0, d >> 32 == 0, c >> 32 == 0);
    a = d = ~0UL;
    __asm__ volatile(".byte 0xf3, 0x48, 0x0f, 0x31" : "+a"(a), "+d"(d));
    same("prefixes", "%d", (d << 32 | (a & 0xffffffff)) > last);
}

static volatile int hits, code;
static void *volatile where;
static sigjmp_buf back_at;
static void skips(int sig, siginfo_t *i, void *p) {
    ucontext_t *u = p;
    hits += sig == SIGSEGV, code = i->si_code, where = i->si_addr;
    // Both guests below are movl (%rdx), %eax, of two bytes, rdtsc, of two bytes, or hlt, of one.
    u->uc_mcontext.gregs[REG_RIP] += *(unsigned char *)u->uc_mcontext.gregs[REG_RIP] == 0xf4 ? 1 : 2;
    if (*(unsigned char *)(u->uc_mcontext.gregs[REG_RIP] - 2) != 0x0f) tsc();
}
static void jumps(int sig) { siglongjmp(back_at, sig); }

static void faults_at(long address) { __asm__ volatile("movl (%0), %%eax" ::"d"(address) : "eax", "memory"); }
static void reads_tsc(void) { __asm__ volatile("rdtsc" ::: "eax", "edx"); }
static void halts(void) { __asm__ volatile("hlt"); }

static void handle(int flags) {
    struct sigaction a = {.sa_sigaction = skips, .sa_flags = flags | SA_SIGINFO};
    sigaction(SIGSEGV, &a, NULL);
    hits = code = 0, where = NULL;
}

static void faults(void) {
    handle(0);
    faults_at(0x40);
    same("mapped", "hits %d code %d at %p", hits, code, where);
    faults_at((long)1 << 62);
    same("canonical", "hits %d code %d at %p", hits, code, where);
    halts();
    same("hlt", "hits %d code %d at %p", hits, code, where);
    tsc();
    same("rdtsc", "hits %d", hits);
    struct sigaction now;
    sigaction(SIGSEGV, NULL, &now);
    same("query", "%d %x", now.sa_sigaction == skips, now.sa_flags & ~0x4000000);
    handle(SA_RESETHAND);
    faults_at(0x40);
    sigaction(SIGSEGV, NULL, &now);
    same("reset", "hits %d %d", hits, now.sa_handler == SIG_DFL);
    tsc();
    signal(SIGSEGV, jumps);
    int n = 0;
    for (volatile int i = 0; i < 20; i++) {
        if (sigsetjmp(back_at, 1) == 0)
            faults_at(0x40);
        else
            n++;
        tsc();
    }
    same("siglongjmp", "%d", n);
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    same("mask", "%d", sigismember(&mask, SIGSEGV));
}

static void handlers_mask(int sig) {
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    same("in_handler", "%d blocks %d %d %d", sig, sigismember(&mask, SIGSEGV), sigismember(&mask, SIGUSR1), sigismember(&mask, SIGUSR2));
    tsc();
}

static void masked(void) {
    sigset_t all, seen;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    tsc();
    sigprocmask(SIG_BLOCK, NULL, &seen);
    same("all", "%d", sigismember(&seen, SIGSEGV));
    struct sigaction a = {.sa_handler = handlers_mask};
    sigaddset(&a.sa_mask, SIGUSR1);
    sigaction(SIGSEGV, &a, NULL);
    kill(getpid(), SIGSEGV);
    sigpending(&seen);
    same("pends", "%d", sigismember(&seen, SIGSEGV));
    sigemptyset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigpending(&seen);
    same("came", "%d", sigismember(&seen, SIGSEGV));
    signal(SIGSEGV, SIG_IGN);
    tsc();
    kill(getpid(), SIGSEGV);
    same("ignored", "%d", 1);
}

static void dies_of_a_fault(void) { faults_at(0x40); }
static void dies_blocked(void) {
    sigset_t all;
    sigfillset(&all);
    handle(0);
    sigprocmask(SIG_SETMASK, &all, NULL);
    tsc();
    faults_at(0x40);
}
static void dies_ignored(void) {
    signal(SIGSEGV, SIG_IGN);
    tsc();
    faults_at(0x40);
}
static void dies_of_kill(void) { kill(getpid(), SIGSEGV); }

static void *refuses_too(void *arg) {
    int mode = 0;
    prctl(PR_GET_TSC, &mode);
    SAME("thread.mode", mode);
    hits = 0;
    reads_tsc();
    same("thread.refused", "%d code %d", hits, code);
    return arg;
}
static void refused(void) {
    int mode = 0;
    prctl(PR_GET_TSC, &mode);
    SAME("mode", mode);
    SAME("bad_mode", R2(SYS_prctl, PR_SET_TSC, 3));
    SAME("bad_pointer", R2(SYS_prctl, PR_GET_TSC, BAD));
    handle(0);
    SAME("refuse", R2(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV));
    reads_tsc();
    same("refused", "hits %d code %d at %p", hits, code, where);
    prctl(PR_GET_TSC, &mode);
    SAME("mode.refused", mode);
    pthread_t t;
    pthread_create(&t, NULL, refuses_too, NULL);
    pthread_join(t, NULL);
    for (volatile long i = 0; i < 3000000; i++) {}
    if (fork() == 0) {
        hits = 0;
        reads_tsc();
        same("child.refused", "%d", hits);
        _exit(0);
    }
    wait(NULL);
    SAME("allow", R2(SYS_prctl, PR_SET_TSC, PR_TSC_ENABLE));
    hits = 0;
    tsc();
    same("allowed", "%d", hits);
}

static void *reads(void *arg) { return (void *)(long)(tsc() > (unsigned long)arg); }
static void elsewhere(void) {
    unsigned long before = tsc();
    pthread_t t;
    void *later;
    pthread_create(&t, NULL, reads, (void *)before);
    pthread_join(t, &later);
    same("thread", "%ld", (long)later);
    int status = -1;
    pid_t pid = vfork();
    if (pid == 0) _exit(tsc() > before ? 7 : 8);
    waitpid(pid, &status, 0);
    same("vfork", "%x", status);
    char *argv[] = {"tsc", "exec", NULL};
    // All blocked, and ignored, across an exec.
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGSEGV, SIG_IGN);
    posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ);
    waitpid(pid, &status, 0);
    same("spawned", "%x", status);
    // A helper with handlers cleared.
    long args[11] = {1L << 32, 0, 0, 0, SIGCHLD};
    signal(SIGSEGV, jumps);
    if ((pid = R2(435, args, sizeof args)) == 0) {
        struct sigaction a;
        sigaction(SIGSEGV, NULL, &a);
        same("cleared", "%d", a.sa_handler == SIG_DFL);
        _exit(tsc() > before ? 9 : 10);
    }
    waitpid(pid, &status, 0);
    same("clear_sighand", "%x", status);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "exec")) {
        struct sigaction a;
        sigset_t mask;
        sigaction(SIGSEGV, NULL, &a);
        sigprocmask(SIG_BLOCK, NULL, &mask);
        tsc();
        same("exec", "ignores %d blocks %d", a.sa_handler == SIG_IGN, sigismember(&mask, SIGSEGV));
        return 5;
    }
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"rates", rates}, {"readings", readings}, {"faults", faults}, {"masked", masked}, {"dies_of_a_fault", dies_of_a_fault},
        {"dies_blocked", dies_blocked}, {"dies_ignored", dies_ignored}, {"dies_of_kill", dies_of_kill}, {"refused", refused}, {"elsewhere", elsewhere}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
