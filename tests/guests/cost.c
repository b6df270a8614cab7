// Ticks of the processor's counter for a clock read, a system call without time, and a wait that a frame traps (of
// length zero, so that only the trap is measured): the best round of each.
//
//   cost ROUNDS [OPS]      OPS more: the median of so many threads, forks and execs, each until its end
//   cost sigsys ROUNDS     an empty SIGSYS round trip, of a call that a filter of this program traps
#include "guest.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>

#define ROUND 400
// A call that no kernel has.
#define TRAPPED SYS_getpmsg

static int by_size(const void *a, const void *b) {
    unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
    return (x > y) - (x < y);
}

static void *nothing(void *a) { return a; }

static void one_thread(void) {
    pthread_t t;
    if (pthread_create(&t, NULL, nothing, NULL) || pthread_join(t, NULL)) exit(1);
}

static void one_fork(void) {
    pid_t p = fork();
    if (p == 0) _exit(0);
    if (p < 0 || waitpid(p, NULL, 0) != p) exit(1);
}

// A dynamic program, so that a library that is preloaded shows its price.
static char *child[] = {"/proc/self/exe", "nothing", NULL};

static void one_exec(void) {
    int status;
    pid_t p = vfork();
    if (p == 0) {
        execv(child[0], child);
        _exit(1);
    }
    if (p < 0 || waitpid(p, &status, 0) != p || status) exit(1);
}

static void median(const char *name, int ops, void one(void)) {
    unsigned long *took = calloc(ops, sizeof *took);
    for (int i = 0; i < ops; i++) {
        unsigned long began = tsc();
        one();
        took[i] = tsc() - began;
    }
    qsort(took, ops, sizeof *took, by_size);
    line("value %s_ticks_per_1000 %lu", name, took[ops / 2] * 1000);
    free(took);
}

static void on_sigsys(int n, siginfo_t *i, void *c) { (void)n, (void)i, (void)c; }

static int sigsys(int rounds) {
    struct sock_filter trap[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TRAPPED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, trap};
    struct sigaction a = {.sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGSYS, &a, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 1;
    unsigned long best = ~0ul;
    for (int r = 0; r < rounds; r++) {
        unsigned long began = tsc();
        for (int i = 0; i < ROUND / 8; i++) R0(TRAPPED);
        unsigned long took = tsc() - began;
        if (took < best) best = took;
    }
    line("value sigsys_ticks_per_1000 %lu", best * 1000 / (ROUND / 8));
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "nothing")) return 0;
    if (argc > 2 && !strcmp(argv[1], "sigsys")) return sigsys(atoi(argv[2]));
    int rounds = argc > 1 ? atoi(argv[1]) : 300;
    unsigned long best_clock = ~0ul, best_call = ~0ul, best_trap = ~0ul;
    struct pollfd f = {-1, 0, 0};
    ts_t t;
    for (int r = 0; r < rounds; r++) {
        unsigned long c0 = tsc();
        for (int i = 0; i < ROUND; i++) clock_gettime(CLOCK_MONOTONIC, &t);
        unsigned long c1 = tsc();
        for (int i = 0; i < ROUND; i++) R0(SYS_getppid);
        unsigned long c2 = tsc();
        for (int i = 0; i < ROUND / 8; i++) {
            // By the C library, where a preloaded one stands in.
            ts_t zero = {0, 0};
            ppoll(&f, 0, &zero, NULL);
        }
        unsigned long c3 = tsc();
        if (c3 - c2 < best_trap) best_trap = c3 - c2;
        if (c1 - c0 < best_clock) best_clock = c1 - c0;
        if (c2 - c1 < best_call) best_call = c2 - c1;
    }
    line("value clock_ticks_per_1000 %lu", best_clock * 1000 / ROUND);
    line("value call_ticks_per_1000 %lu", best_call * 1000 / ROUND);
    line("value trap_ticks_per_1000 %lu", best_trap * 1000 / (ROUND / 8));
    int ops = argc > 2 ? atoi(argv[2]) : 0;
    if (ops > 0) {
        median("thread", ops, one_thread);
        median("fork", ops, one_fork);
        median("exec", ops, one_exec);
    }
    return 0;
}
