// Places in a program that call the kernel often: what the blob makes of their instructions is seen by nobody.
//
// Covers: ppoll, poll, rt_sigprocmask
#include "guest.h"
#include <pthread.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#define SITES 64
struct regs {
    unsigned long rdi, rsi, rdx, r10, r8, r9, rbx, rbp, r12, r13, r14, r15, flags;
    // What was there after the call: the same ones, its result, and the red zone.
    unsigned long out[13], rax, red[16];
};

// Each a copy of one function with a call of its own: all registers as given, a red zone that is in use.
__asm__(".text\n"
        ".macro site n, nr\n"
        ".globl site_\\nr\\()_\\n\nsite_\\nr\\()_\\n:\n"
        "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; push %rdi; push 96(%rdi); popfq\n"
        "mov 48(%rdi), %rbx; mov 56(%rdi), %rbp; mov 64(%rdi), %r12; mov 72(%rdi), %r13; mov 80(%rdi), %r14; mov 88(%rdi), %r15\n"
        "mov 8(%rdi), %rsi; mov 16(%rdi), %rdx; mov 24(%rdi), %r10; mov 32(%rdi), %r8; mov 40(%rdi), %r9; mov (%rdi), %rdi\n"
        ".set at, 8\n.rept 16\nmovq $0x1200 + at, -at(%rsp)\n.set at, at + 8\n.endr\n"
        ".globl call_\\nr\\()_\\n\ncall_\\nr\\()_\\n:\n"
        "mov $\\nr, %eax\nsyscall\n"
        "mov (%rsp), %rcx; mov %rax, 208(%rcx)\n"
        ".set at, 8\n.rept 16\nmov -at(%rsp), %r11; mov %r11, 208+at(%rcx)\n.set at, at + 8\n.endr\n"
        "pushfq; pop %r11; mov %r11, 200(%rcx)\n"
        "mov %rdi, 104(%rcx); mov %rsi, 112(%rcx); mov %rdx, 120(%rcx); mov %r10, 128(%rcx); mov %r8, 136(%rcx); mov %r9, 144(%rcx)\n"
        "mov %rbx, 152(%rcx); mov %rbp, 160(%rcx); mov %r12, 168(%rcx); mov %r13, 176(%rcx); mov %r14, 184(%rcx); mov %r15, 192(%rcx)\n"
        "pop %rdi; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret\n"
        ".balign 8\n.endm\n"
        // One byte more each time, so that instructions lie in every way over words and lines.
        ".set k, 0\n.rept 64\n.altmacro\nsite %k, 271\n.fill k & 7, 1, 0x90\n.set k, k + 1\n.endr\n"
        ".set k, 0\n.rept 8\nsite %k, 7\n.set k, k + 1\n.endr\n"
        ".data\n.balign 8\n"
        "ppolls: .set k, 0\n.macro addr n\n.quad site_271_\\n\n.endm\n.rept 64\naddr %k\n.set k, k + 1\n.endr\n"
        "polls: .set k, 0\n.macro addr7 n\n.quad site_7_\\n\n.endm\n.rept 8\naddr7 %k\n.set k, k + 1\n.endr\n"
        ".noaltmacro\n.text\n");
typedef void site(struct regs *);
extern site *ppolls[SITES], *polls[8];
extern unsigned char call_271_0[], call_271_1[], call_271_2[], call_7_0[];

static const ts_t none = {0, 0};
// CF, PF, AF, ZF, SF and OF: a call keeps them all.
#define FLAGS 0x8d5UL

// Registers, flags and red zone that one call did not keep, or a result that is not 0.
static long wrong(site *at, unsigned long seed, struct regs r) {
    unsigned long *all = (unsigned long *)&r, before[13];
    for (int i = 6; i < 12; i++) all[i] = seed * 0x9e3779b97f4a7c15UL + i;
    r.flags = 0x202 | (seed * 37 & FLAGS);
    memcpy(before, all, sizeof before);
    at(&r);
    // A signal may end it.
    long bad = r.rax != 0 && (long)r.rax != -EINTR;
    for (int i = 0; i < 12; i++) bad += r.out[i] != before[i];
    bad += (r.out[12] ^ before[12]) & FLAGS ? 1 : 0;
    for (unsigned i = 0; i < 16; i++) bad += r.red[i] != 0x1200 + 8 * (i + 1);
    return bad;
}
static struct regs ppoll_none(void) { return (struct regs){.rdx = (unsigned long)&none, .r8 = 8, .r9 = 77}; }

static long bad, handled;
static void on_alarm(int s) {
    (void)s;
    handled++;
    // From a handler too, at a place that may just be changing.
    bad += wrong(ppolls[handled % SITES], handled, ppoll_none());
}

static void *hammer(void *given) {
    unsigned long n = (unsigned long)given;
    long found = 0;
    for (int turn = 0; turn < 40; turn++)
        for (int i = 0; i < SITES; i++) found += wrong(ppolls[(i * (2 * n + 1) + turn) % SITES], n * 1000 + i, ppoll_none());
    __atomic_fetch_add(&bad, found, __ATOMIC_RELAXED);
    return NULL;
}

// Threads come to the same places at once, handlers interrupt them, and children are made meanwhile.
static void together(void) {
    struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &sa, NULL);
    struct itimerval often = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, NULL);
    pthread_t t[4];
    for (unsigned long i = 0; i < 4; i++) pthread_create(&t[i], NULL, hammer, (void *)i);
    long children = 0;
    for (int i = 0; i < 12; i++) {
        pid_t child = fork();
        if (child == 0) {
            bad = 0;
            hammer((void *)7UL);
            _exit(bad != 0);
        }
        int status = -1;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
        children += status != 0;
    }
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    same("together", "%ld %ld", bad, children);
    line("range together.handled 1 %ld 1000000000", handled);
}

// The same place with and without a time: the latter is made by the kernel as it is.
static void with_and_without(void) {
    long found = 0;
    for (int i = 0; i < 40; i++) found += wrong(polls[0], i, (struct regs){.rdx = i % 2});
    // Only the lower half of the number counts.
    for (int i = 0; i < 10; i++) found += wrong(polls[1], i, (struct regs){.rdx = 0x100000000UL + i % 2});
    struct regs r = {.rdi = 8, .rsi = 1, .rdx = 1};
    for (int i = 0; i < 10; i++) polls[2](&r);
    same("with_and_without", "%ld %ld", found, (long)r.rax);
}

// eax was set before; the last instruction only looks as if it did it.
static void lookalikes(void) {
    long differ = 0;
    for (int i = 0; i < 20; i++) {
        unsigned long r8 = 0, stored = 0, ret = 0;
        __asm__ volatile("mov $271, %%eax\n xor %%edi, %%edi\n xor %%esi, %%esi\n xor %%r10d, %%r10d\n"
                         "mov $271, %%r8d\n syscall\n mov %%r8, %0"
                         : "=r"(r8), "=a"(ret) : "d"(&none) : "rdi", "rsi", "r8", "r10", "rcx", "r11", "memory");
        differ += r8 != 271 || ret != 0;
        unsigned long cells[64] = {0};
        __asm__ volatile("mov $271, %%eax\n xor %%edi, %%edi\n xor %%esi, %%esi\n xor %%r10d, %%r10d\n mov $8, %%r8d\n"
                         "movl $271, -72(%[at])\n syscall\n"
                         : "=a"(ret) : "d"(&none), [at] "r"(&cells[32]) : "rdi", "rsi", "r8", "r10", "rcx", "r11", "memory");
        stored = cells[32 - 9];
        differ += stored != 271 || ret != 0;
    }
    same("lookalikes", "%ld", differ);
}

// A breakpoint of the program's own, where its instruction was replaced.
static unsigned char kept;
static volatile long hits;
static void on_trap(int s, siginfo_t *info, void *context) {
    (void)s, (void)info;
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    hits++;
    call_271_1[0] = kept;
    regs[REG_RIP] -= 1;
}
static void breakpoint(void) {
    struct sigaction sa = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &sa, NULL);
    for (int i = 0; i < 20; i++) wrong(ppolls[1], i, ppoll_none());
    unsigned char *page = (unsigned char *)((unsigned long)call_271_1 & ~4095UL);
    mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    kept = call_271_1[0];
    call_271_1[0] = 0xcc;
    long found = wrong(ppolls[1], 1, ppoll_none());
    found += wrong(ppolls[1], 2, ppoll_none());
    mprotect(page, 8192, PROT_READ | PROT_EXEC);
    same("breakpoint", "%ld %ld", hits, found);
}

// A filter that comes later judges the place's call.
static void filtered(void) {
    for (int i = 0; i < 20; i++) wrong(ppolls[2], i, ppoll_none());
    if (fork() == 0) {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5])),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 77, 0, 3),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof code / sizeof *code, code};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        long set = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
        struct regs r = ppoll_none();
        ppolls[2](&r);
        same("filtered", "%ld %ld", set, (long)r.rax);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
}

// How many of the places jump: none natively.
static void jumps(void) {
    for (int turn = 0; turn < 100; turn++)
        for (int i = 0; i < SITES; i++) wrong(ppolls[i], i, ppoll_none());
    long found = 0;
    for (int i = 0; i < SITES; i++) {
        unsigned char *at = (unsigned char *)ppolls[i];
        while (at[5] != 0x0f || at[6] != 0x05 || (at[0] != 0xb8 && at[0] != 0xe9)) at++;
        found += at[0] == 0xe9;
    }
    line("value jumps %ld", found);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "jumps")) {
        jumps();
        return 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    with_and_without();
    lookalikes();
    breakpoint();
    filtered();
    together();
    return 0;
}
