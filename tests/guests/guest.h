// What every C guest shares: raw system calls, clocks, and the lines that the harness reads.
//
//   = NAME VALUE...            must be the same natively and in every frame
//   wait NAME ASKED TOOK TSC   a wait of ASKED ns that took TOOK ns of the guest's clock and TSC real ticks
//   near NAME A B              two spans in ns that should agree
//   range NAME LOW VALUE HIGH  LOW <= VALUE <= HIGH
//   value NAME NUMBER          for the test that runs the guest
#ifndef GUEST_H
#define GUEST_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000L
#define SEC 1000000000L
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef SYS_futex_wait
#define SYS_futex_wait 455
#endif
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif

// Of longs, for qsort.
static inline int ascending(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

typedef struct timespec ts_t;

// A system call as the kernel answers it: a value, or minus errno.
static inline long raw(long nr, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
}
#define R0(nr) raw(nr, 0, 0, 0, 0, 0, 0)
#define R1(nr, a) raw(nr, (long)(a), 0, 0, 0, 0, 0)
#define R2(nr, a, b) raw(nr, (long)(a), (long)(b), 0, 0, 0, 0)
#define R3(nr, a, b, c) raw(nr, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define R4(nr, a, b, c, d) raw(nr, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define R5(nr, a, b, c, d, e) raw(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define R6(nr, a, b, c, d, e, f) raw(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static inline long ns_of(ts_t t) { return t.tv_sec * SEC + t.tv_nsec; }
static inline ts_t ts_of(long ns) { return (ts_t){ns / SEC, ns % SEC}; }
static inline struct timeval tv_of(long ns) { return (struct timeval){ns / SEC, ns % SEC / 1000}; }

// A clock through the vDSO (or the C library's fallback), ns.
static inline long now(clockid_t id) {
    ts_t t = {0, 0};
    clock_gettime(id, &t);
    return ns_of(t);
}
static inline long mono(void) { return now(CLOCK_MONOTONIC); }
// The same by the system call itself.
static inline long now_raw(clockid_t id) {
    ts_t t = {0, 0};
    R2(SYS_clock_gettime, id, &t);
    return ns_of(t);
}
static inline ts_t in(clockid_t id, long ns) { return ts_of(now(id) + ns); }

// The processor's counter: real time that no frame changes.
static inline unsigned long tsc(void) {
    unsigned lo, hi;
    __asm__ volatile("lfence; rdtsc" : "=a"(lo), "=d"(hi));
    return (unsigned long)hi << 32 | lo;
}

// One line, in one write, so that concurrent children don't mix.
__attribute__((format(printf, 1, 2))) static void line(const char *format, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(text, sizeof text - 1, format, ap);
    va_end(ap);
    text[n++] = '\n';
    if (write(1, text, n) != n) _exit(99);
}
#define same(name, format, ...) line("= %s " format, name, __VA_ARGS__)
#define SAME(name, expr) line("= %s %ld", name, (long)(expr))

// An address that nothing is mapped at.
#define BAD ((void *)1)

static void on_signal(int sig, int flags, void (*f)(int)) {
    struct sigaction a = {.sa_handler = f, .sa_flags = flags};
    sigaction(sig, &a, NULL);
}

// Runs f in a child and returns its status.
static int in_child(void (*f)(void)) {
    pid_t pid = fork();
    if (pid == 0) {
        f();
        _exit(0);
    }
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return status;
}

__attribute__((unused)) static void unused_helpers(void) { (void)in_child, (void)on_signal, (void)line, (void)tv_of, (void)in; }
#endif
