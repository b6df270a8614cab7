// What C libraries do with their own threads and children, by the calls that they make: musl's detached threads unmap
// their stacks before they end, its posix_spawn gives its child 5 KiB, and cancellation (musl's, and glibc's from 2.41 on)
// looks where the thread is that it interrupts.
//
// Covers: rt_sigprocmask rt_sigaction rt_sigsuspend ppoll pselect6 epoll_pwait open mq_timedreceive recvmmsg
#include "guest.h"
#include <linux/futex.h>
#include <mqueue.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <ucontext.h>

static const unsigned long ALL = ~0UL;

#define STACK (1 << 20)
static char *stack_at;
static volatile int alive;

// All signals blocked, the stack unmapped, and the thread ends.
static int unmaps_itself(void *busy) {
    R4(SYS_rt_sigprocmask, SIG_BLOCK, &ALL, NULL, 8);
    volatile char buffer[200000];
    for (unsigned i = 0; i < sizeof buffer; i += 4096) buffer[i] = 1;
    for (volatile long i = 0; i < (long)busy; i++) {}
    __asm__ volatile("syscall; mov $60, %%eax; xor %%edi, %%edi; syscall"
                     : : "a"(SYS_munmap), "D"(stack_at), "S"((long)STACK) : "rcx", "r11", "memory");
    return 0;
}

static void detached(void) {
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    int ended = 0;
    for (int i = 0; i < 300; i++) {
        stack_at = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        alive = 1;
        if (clone(unmaps_itself, stack_at + STACK, flags, (void *)(i * 7919L % 40000), 0, 0, (void *)&alive) < 0) break;
        while (alive) R4(SYS_futex, &alive, FUTEX_WAIT, 1, NULL);
        ended++;
    }
    SAME("detached", ended);
}

#define SMALL 5120
static unsigned long before;

static int small_child(void *unused) {
    (void)unused;
    unsigned long action[4] = {0};
    for (int sig = 1; sig < 65; sig++) R4(SYS_rt_sigaction, sig, action, NULL, 8);
    for (int i = 0; i < 20; i++) R1(SYS_close, R3(SYS_open, "/dev/null", O_RDONLY, 0));
    for (volatile int i = 0; i < 300000; i++) {}
    R4(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
    R1(SYS_exit_group, 7);
    return 0;
}

static void spawned(void) {
    int good = 0, spoilt = 0;
    char *room = malloc(64 * 1024 + SMALL);
    for (int i = 0; i < 100; i++) {
        memset(room, 0x5a, 64 * 1024);
        R4(SYS_rt_sigprocmask, SIG_SETMASK, &ALL, &before, 8);
        pid_t pid = clone(small_child, room + 64 * 1024 + SMALL, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
        R4(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
        int status = 0;
        waitpid(pid, &status, 0);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 7;
        for (int k = 0; k < 64 * 1024; k++) spoilt += room[k] != 0x5a;
    }
    same("spawned", "%d spoilt %d", good, spoilt);
    stack_t none;
    sigaltstack(NULL, &none);
    same("spawned.stack", "%d %ld", none.ss_flags, (long)none.ss_size);
}

// A cancellation point: a system call between two labels, and where a cancelled thread goes. Says whether registers that
// functions preserve were.
long point(const long call[7], int *kept);
__asm__(".text\n.globl point\npoint:\n"
        "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; push %rsi\n"
        "mov (%rdi), %rax; mov 16(%rdi), %rsi; mov 24(%rdi), %rdx; mov 32(%rdi), %r10\n"
        "mov 40(%rdi), %r8; mov 48(%rdi), %r9; mov 8(%rdi), %rdi\n"
        "mov $0x11, %ebx; mov $0x22, %ebp; mov $0x33, %r12d; mov $0x44, %r13d; mov $0x55, %r14d; mov $0x66, %r15d\n"
        ".globl point_begin\npoint_begin:\n"
        "syscall\n"
        ".globl point_end\npoint_end:\n"
        "jmp 1f\n"
        ".globl point_cancel\npoint_cancel:\n"
        "mov $-125, %rax\n"
        "1: pop %rsi; xor %ecx, %ecx\n"
        "cmp $0x11, %rbx; jne 2f; cmp $0x22, %rbp; jne 2f; cmp $0x33, %r12; jne 2f\n"
        "cmp $0x44, %r13; jne 2f; cmp $0x55, %r14; jne 2f; cmp $0x66, %r15; jne 2f\n"
        "mov $1, %ecx\n"
        "2: mov %ecx, (%rsi); pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret\n"
        ".globl restores\nrestores:\nmov $15, %eax; syscall\n");
extern char point_begin[], point_end[], point_cancel[];
void restores(void);

#define CANCEL 33
static volatile int is_cancelled;

static void cancels(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info;
    ucontext_t *u = context;
    char *pc = (char *)u->uc_mcontext.gregs[REG_RIP];
    *(unsigned long *)&u->uc_sigmask |= 1UL << (CANCEL - 1);
    if (pc >= point_begin && pc < point_end) {
        u->uc_mcontext.gregs[REG_RIP] = (long)point_cancel;
        return;
    }
    // Not there: the call ends with EINTR, or another point comes.
    R2(SYS_tkill, R0(SYS_gettid), CANCEL);
}

static long call[7];
static long result, took;
static int kept;
static volatile int thread_id;

static void *waits(void *unused) {
    unsigned long mask = 1UL << (CANCEL - 1);
    R4(SYS_rt_sigprocmask, SIG_UNBLOCK, &mask, NULL, 8);
    long begin = mono();
    thread_id = R0(SYS_gettid);
    result = point(call, &kept);
    took = mono() - begin;
    return unused;
}

// Cancelled by where it was, or by EINTR: which of them is Linux's affair.
static void cancelled(const char *name, long nr, long a, long b, long c, long d, long e, long f) {
    memcpy(call, (long[]){nr, a, b, c, d, e, f}, sizeof call);
    thread_id = 0, is_cancelled = 0, result = 1;
    pthread_t thread;
    pthread_create(&thread, NULL, waits, NULL);
    while (!thread_id) sched_yield();
    usleep(30000);
    is_cancelled = 1;
    R3(SYS_tgkill, getpid(), thread_id, CANCEL);
    pthread_join(thread, NULL);
    same(name, "%ld kept %d soon %d", result, kept, took < 5 * SEC);
}

static void *nothing(void *unused) { return unused; }

static void cancellation(void) {
    // The C library sets its own handler when the first thread begins.
    pthread_t first;
    pthread_create(&first, NULL, nothing, NULL);
    pthread_join(first, NULL);
    unsigned long action[4] = {(long)cancels, 0x04000000 | SA_SIGINFO | SA_RESTART | SA_ONSTACK, (long)restores, 0};
    R4(SYS_rt_sigaction, CANCEL, action, NULL, 8);
    char fifo[64];
    snprintf(fifo, sizeof fifo, "/tmp/diecast-guest-%d", getpid());
    mkfifo(fifo, 0600);
    static char buffer[8192];
    struct iovec part = {buffer, 10};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    struct mq_attr sizes = {.mq_maxmsg = 1, .mq_msgsize = sizeof buffer};
    char queue_name[64];
    snprintf(queue_name, sizeof queue_name, "/diecast-guest-%d", getpid());
    mqd_t queue = mq_open(queue_name, O_CREAT | O_RDWR, 0600, &sizes);
    mq_unlink(queue_name);
    int pair[2], plain[2], pipes[2], epoll = epoll_create1(0), on = 1, word = 0;
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    socketpair(AF_UNIX, SOCK_DGRAM, 0, plain);
    if (pipe(pipes)) _exit(98);
    setsockopt(pair[0], SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on);
    ts_t ten = {10, 0}, then = in(CLOCK_REALTIME, 10 * SEC);
    unsigned long none = 0;
    long packed[2] = {(long)&none, 8};
    struct epoll_event event;
    cancelled("cancel.open", SYS_open, (long)fifo, O_RDONLY, 0, 0, 0, 0);
    cancelled("cancel.mq", SYS_mq_timedreceive, queue, (long)buffer, sizeof buffer, 0, (long)&then, 0);
    cancelled("cancel.recvmmsg", SYS_recvmmsg, plain[0], (long)&message, 1, 0, (long)&ten, 0);
    cancelled("cancel.recvmsg", SYS_recvmsg, pair[0], (long)&message.msg_hdr, 0, 0, 0, 0);
    cancelled("cancel.read", SYS_read, pipes[0], (long)buffer, 1, 0, 0, 0);
    cancelled("cancel.futex", SYS_futex, (long)&word, FUTEX_WAIT, 0, (long)&ten, 0, 0);
    cancelled("cancel.nanosleep", SYS_nanosleep, (long)&(ts_t){10, 0}, 0, 0, 0, 0, 0);
    cancelled("cancel.poll", SYS_poll, 0, 0, 10000, 0, 0, 0);
    cancelled("cancel.ppoll", SYS_ppoll, 0, 0, (long)&(ts_t){10, 0}, (long)&none, 8, 0);
    cancelled("cancel.pselect", SYS_pselect6, 0, 0, 0, 0, (long)&(ts_t){10, 0}, (long)packed);
    cancelled("cancel.epoll", SYS_epoll_pwait, epoll, (long)&event, 1, 10000, (long)&none, 8);
    cancelled("cancel.suspend", SYS_rt_sigsuspend, (long)&none, 8, 0, 0, 0, 0);
    unlink(fifo);
    mq_close(queue);
}

static volatile int handled;

// One that sends its signal again, which waits for the next call with that mask.
static void again(int sig) {
    if (handled++ == 0) raise(sig);
}

static void sent_again(void) {
    on_signal(SIGUSR1, 0, again);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigprocmask(SIG_BLOCK, &one, NULL);
    unsigned long none = 0;
    raise(SIGUSR1);
    long first = R5(SYS_ppoll, NULL, 0, (&(ts_t){0, 20 * MS}), &none, 8);
    int once = handled;
    long second = R5(SYS_ppoll, NULL, 0, (&(ts_t){0, 20 * MS}), &none, 8);
    long third = R5(SYS_ppoll, NULL, 0, (&(ts_t){0, 20 * MS}), &none, 8);
    same("again", "%ld %d %ld %d %ld", first, once, second, handled, third);
}

int main(void) {
    detached();
    spawned();
    cancellation();
    sent_again();
    return 0;
}
