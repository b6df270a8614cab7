// Alternate signal stacks of every size: the handler runs on the program's own, sees its own, and returns from it,
// while trapped calls and a meter's hits need frames too.
//
// Covers: sigaltstack rt_sigaction
#include "guest.h"
#include <pthread.h>
#include <setjmp.h>
#include <ucontext.h>

static volatile int hits;
static char *stack_at;
static long stack_len;

static void burn(void) {
    for (volatile long i = 0; i < 2000000; i++) {}
}

static void calls(const char *name) {
    struct pollfd f = {-1, 0, 0};
    ts_t t = {0, 1 * MS};
    line("= %s %ld %ld %d", name, R2(SYS_nanosleep, &t, NULL), R3(SYS_poll, &f, 1, 2), now_raw(1) > 0);
}

static int on_stack(void *p) { return (char *)p >= stack_at && (char *)p < stack_at + stack_len; }

static void set_stack_at(char *at, long len) {
    stack_at = at;
    stack_len = len;
    stack_t s = {.ss_sp = stack_at, .ss_size = len};
    same("set", "%ld %ld", len, R2(SYS_sigaltstack, &s, NULL));
}

static void set_stack(long len) {
    set_stack_at(mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), len);
}

// Raw calls only: little of the stack is used.
static void tiny_handler(int sig) {
    char here;
    hits += 1 + (sig != SIGUSR1) + 16 * on_stack(&here);
    stack_t old;
    R2(SYS_sigaltstack, NULL, &old);
    hits += 256 * (old.ss_flags == SS_ONSTACK && old.ss_sp == stack_at && (long)old.ss_size == stack_len);
    stack_t none = {.ss_flags = SS_DISABLE};
    hits += 4096 * (R2(SYS_sigaltstack, &none, NULL) == -EPERM);
    R2(SYS_nanosleep, (&(ts_t){0, MS}), NULL);
    burn();
}

static void sizes(void) {
    static const long lens[] = {5120, 6144, 8192, 10240, 12288, 16384, 65536};
    on_signal(SIGUSR1, SA_ONSTACK, tiny_handler);
    for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
        set_stack(lens[i]);
        hits = 0;
        raise(SIGUSR1);
        calls("size.calls");
        same("size", "%ld hits %x", lens[i], hits);
    }
    stack_t off = {.ss_flags = SS_DISABLE}, old;
    R2(SYS_sigaltstack, &off, &old);
    same("disable", "%d %ld %d", old.ss_sp == stack_at, (long)old.ss_size, old.ss_flags);
    R2(SYS_sigaltstack, NULL, &old);
    same("disabled", "%p %ld %d", old.ss_sp, (long)old.ss_size, old.ss_flags);
    calls("disabled.calls");
}

// No handler ever runs on it, and nothing of ours does either.
static void smallest(void) {
    set_stack(2048);
    for (int i = 0; i < 5; i++) calls("smallest"), burn();
    stack_t s = {.ss_sp = stack_at, .ss_size = 2047};
    SAME("too_small", R2(SYS_sigaltstack, &s, NULL));
    s = (stack_t){.ss_sp = stack_at, .ss_size = 4096, .ss_flags = 7};
    SAME("bad_flags", R2(SYS_sigaltstack, &s, NULL));
    SAME("bad_new", R2(SYS_sigaltstack, BAD, NULL));
    SAME("bad_old", R2(SYS_sigaltstack, NULL, BAD));
    stack_t old;
    R2(SYS_sigaltstack, NULL, &old);
    same("smallest.old", "%d %ld %d", old.ss_sp == stack_at, (long)old.ss_size, old.ss_flags);
}

// Of the smallest stack that the kernel takes: a signal's frame alone is larger with AVX-512, and smaller without.
static void deep_handler(int sig) {
    volatile char deep[6000];
    deep[0] = (char)sig;
    hits += deep[0];
}

// A handler that does not fit kills, as natively.
static void overflow(void) {
    on_signal(SIGUSR1, SA_ONSTACK, deep_handler);
    // Nothing lies below it.
    char *all = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(all + 2 * 4096, 4096, PROT_READ | PROT_WRITE);
    set_stack_at(all + 2 * 4096, 2048);
    raise(SIGUSR1);
}

// A fault on an overflowing normal stack, mended through the context that the handler sees.
static void mend(int sig, siginfo_t *i, void *p) {
    ucontext_t *u = p;
    char here;
    same("mend", "%d %d %d", sig, on_stack(&here), i->si_code == SEGV_MAPERR);
    u->uc_mcontext.gregs[REG_RAX] = (long)&hits;
}
static void faults(void) {
    struct sigaction a = {.sa_sigaction = mend, .sa_flags = SA_ONSTACK | SA_SIGINFO};
    sigaction(SIGSEGV, &a, NULL);
    set_stack(8192);
    for (int i = 0; i < 3; i++) {
        long got;
        hits = 77 + i;
        // The float stays in its register across the handler.
        double d = 1.5 + i, back;
        __asm__ volatile("movsd %2, %%xmm7\n\tmovl (%%rax), %%eax\n\tmovsd %%xmm7, %1" : "=a"(got), "=m"(back) : "m"(d), "a"(8L) : "xmm7", "memory");
        same("mended", "%d %d", (int)got, back == d);
    }
}

// Another signal within the handler stays on the stack; one without SA_ONSTACK too.
static volatile int depth;
static void nested(int sig) {
    char here;
    same("nested", "%d depth %d on %d", sig, depth++, on_stack(&here));
    if (sig == SIGUSR1) raise(SIGUSR2);
    if (sig == SIGUSR2) raise(SIGHUP);
    burn();
    depth--;
}
static void nesting(void) {
    on_signal(SIGUSR1, SA_ONSTACK, nested);
    on_signal(SIGUSR2, SA_ONSTACK, nested);
    on_signal(SIGHUP, 0, nested);
    set_stack(10 * 1024 + 512);
    // Two frames of 3.5 KiB fit; a third would not on every machine.
    on_signal(SIGHUP, 0, SIG_IGN);
    for (int i = 0; i < 3; i++) raise(SIGUSR1);
    struct sigaction now;
    sigaction(SIGUSR1, NULL, &now);
    same("nesting.query", "%d %x", now.sa_handler == nested, now.sa_flags & SA_ONSTACK);
}

static sigjmp_buf back_at;
static void jump(int sig) {
    (void)sig;
    siglongjmp(back_at, 1);
}
static void jumps(void) {
    on_signal(SIGALRM, SA_ONSTACK, jump);
    set_stack(8192);
    int n = 0;
    for (int i = 0; i < 20; i++) {
        struct itimerval v = {{0, 0}, {0, 2000}};
        if (sigsetjmp(back_at, 1) == 0) {
            setitimer(ITIMER_REAL, &v, NULL);
            nanosleep(&(ts_t){5, 0}, NULL);
        } else
            n++;
        burn();
    }
    same("jumps", "%d", n);
}

static void light(int sig) {
    char here;
    hits += sig == SIGALRM && on_stack(&here);
}
static void many(void) {
    on_signal(SIGALRM, SA_ONSTACK, light);
    set_stack(8192);
    struct itimerval v = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &v, NULL);
    long until = mono() + 300 * MS;
    unsigned long sum = 0, n = 0;
    while (mono() < until) {
        double a = n, b = a * 3;
        sum += (unsigned long)(b - a * 2) == n;
        n++;
    }
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    same("many", "%d %d", sum == n, hits > 20);
}

static void *thread(void *arg) {
    char *at = malloc(8192);
    stack_t s = {.ss_sp = at, .ss_size = 8192}, old;
    sigaltstack(NULL, &old);
    int fresh = old.ss_flags == SS_DISABLE;
    sigaltstack(&s, &old);
    for (int i = 0; i < 10; i++) raise(SIGUSR1);
    ts_t t = {0, MS};
    nanosleep(&t, NULL);
    sigaltstack(NULL, &old);
    if ((long)arg & 1) {
        s.ss_flags = SS_DISABLE;
        sigaltstack(&s, NULL);
    }
    return (void *)(long)(fresh && old.ss_sp == at);
}
static volatile int sum_hits;
static void count(int sig) { __sync_fetch_and_add(&sum_hits, sig == SIGUSR1); }
static void threads(void) {
    on_signal(SIGUSR1, SA_ONSTACK, count);
    set_stack(8192);
    long good = 0;
    for (int round = 0; round < 30; round++) {
        pthread_t t[8];
        for (long i = 0; i < 8; i++) pthread_create(&t[i], NULL, thread, (void *)i);
        for (int i = 0; i < 8; i++) {
            void *r;
            pthread_join(t[i], &r);
            good += (long)r;
        }
    }
    same("threads", "%ld %d", good, sum_hits);
    raise(SIGUSR1);
    pid_t pid = fork();
    if (pid == 0) {
        stack_t old;
        R2(SYS_sigaltstack, NULL, &old);
        raise(SIGUSR1);
        calls("child");
        same("child", "%d %ld %d %d", old.ss_sp == stack_at, (long)old.ss_size, old.ss_flags, sum_hits);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    same("child.status", "%x", status);
}

int main(void) {
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"sizes", sizes}, {"smallest", smallest}, {"overflow", overflow}, {"faults", faults}, {"nesting", nesting},
        {"jumps", jumps}, {"many", many}, {"threads", threads}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
