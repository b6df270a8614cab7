// What every call that carries time answers to wrong, zero and extreme arguments. No line depends on how long
// anything takes.
#include "guest.h"
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/timerfd.h>
#include <sys/timex.h>

static ts_t bad_nsec = {0, SEC}, negative_sec = {-1, 0}, negative_nsec = {0, -1}, zero = {0, 0}, tiny = {0, 1},
            huge_past = {0, 1};
static uint32_t word;

// A page that can be read but not written.
static void *read_only(const void *what, size_t len) {
    char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(p, what, len);
    mprotect(p, 4096, PROT_READ);
    return p;
}
// The last bytes before a page that is not mapped.
static void *at_the_end(const void *what, size_t len) {
    char *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(p + 4096, 4096);
    memcpy(p + 4096 - len, what, len);
    return p + 4096 - len;
}
// A structure of which only the first half is mapped.
static void *half(const void *what, size_t len) { return (char *)at_the_end(what, len / 2); }

#define EACH_BAD(name, call)                                                                                         \
    do {                                                                                                             \
        ts_t *T;                                                                                                     \
        T = BAD;                                                                                                     \
        SAME(name ".fault", call);                                                                                   \
        T = half(&tiny, sizeof tiny);                                                                                \
        SAME(name ".half", call);                                                                                    \
        T = &bad_nsec;                                                                                               \
        SAME(name ".nsec", call);                                                                                    \
        T = &negative_sec;                                                                                           \
        SAME(name ".negative", call);                                                                                \
        T = &negative_nsec;                                                                                          \
        SAME(name ".negative_nsec", call);                                                                           \
        T = &zero;                                                                                                   \
        SAME(name ".zero", call);                                                                                    \
        T = read_only(&tiny, sizeof tiny);                                                                           \
        SAME(name ".tiny_read_only", call);                                                                          \
        T = at_the_end(&tiny, sizeof tiny);                                                                          \
        SAME(name ".tiny_at_the_end", call);                                                                         \
    } while (0)

static void sleeps(void) {
    EACH_BAD("nanosleep", R2(SYS_nanosleep, T, NULL));
    SAME("nanosleep.null", R2(SYS_nanosleep, NULL, NULL));
    static const int ids[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16, 23, 24, 99, -1, -2, -3, -4, -5, -6};
    for (unsigned i = 0; i < sizeof ids / sizeof *ids; i++) {
        ts_t out = {7, 7}, past = tiny;
        int id = ids[i];
        line("= clock.%d bad %ld zero %ld past %ld null %ld getres %ld gettime.null %ld gettime.bad %ld", id,
             R4(SYS_clock_nanosleep, id, 0, &bad_nsec, NULL), id == 2 ? 0 : R4(SYS_clock_nanosleep, id, 0, &zero, NULL),
             id == 2 ? 0 : R4(SYS_clock_nanosleep, id, 1, &past, &out), R4(SYS_clock_nanosleep, id, 0, NULL, NULL),
             R2(SYS_clock_getres, id, &out), R2(SYS_clock_gettime, id, NULL), R2(SYS_clock_gettime, id, BAD));
        line("= clock.%d.gettime %ld", id, R2(SYS_clock_gettime, id, &out));
        line("= clock.%d.getres.bad %ld null %ld", id, R2(SYS_clock_getres, id, BAD), R2(SYS_clock_getres, id, NULL));
        line("= clock.%d.settime.bad %ld fault %ld", id, R2(SYS_clock_settime, id, &bad_nsec), R2(SYS_clock_settime, id, BAD));
    }
    // Clocks that the kernel's vDSO leaves to the system call, by number and those that there are not.
    static const int called[] = {2, 3, 8, 9, 10, 99, -2, -4, -6};
    for (unsigned i = 0; i < sizeof called / sizeof *called; i++) {
        errno = 0;
        int bad = clock_gettime(called[i], BAD), of_bad = errno, null = clock_gettime(called[i], NULL);
        line("= clock.%d.vdso.bad %d %d null %d %d", called[i], bad, of_bad, null, errno);
    }
    EACH_BAD("clock_nanosleep", R4(SYS_clock_nanosleep, 1, 0, T, NULL));
    EACH_BAD("clock_nanosleep.abs", R4(SYS_clock_nanosleep, 0, 1, T, BAD));
    SAME("clock_nanosleep.flags", R4(SYS_clock_nanosleep, 1, 0xfffe, &tiny, NULL));
    SAME("clock_nanosleep.high_bits", R4(SYS_clock_nanosleep, 0x1234567800000001L, 0x100000000L, &tiny, NULL));
}

static void polls(void) {
    struct pollfd f = {-1, POLLIN, 0};
    EACH_BAD("ppoll", R5(SYS_ppoll, &f, 1, T, NULL, 0));
    EACH_BAD("pselect6", R6(SYS_pselect6, 0, NULL, NULL, NULL, T, NULL));
    int e = epoll_create1(0);
    struct epoll_event ev;
    EACH_BAD("epoll_pwait2", R6(SYS_epoll_pwait2, e, &ev, 1, T, NULL, 0));
    SAME("poll.zero", R3(SYS_poll, &f, 1, 0));
    SAME("poll.fault", R3(SYS_poll, BAD, 1, 1));
    SAME("poll.many", R3(SYS_poll, &f, 1 << 30, 1));
    SAME("epoll_wait.fd", R4(SYS_epoll_wait, 999, &ev, 1, 1));
    SAME("epoll_wait.max", R4(SYS_epoll_wait, e, &ev, 0, 1));
    SAME("epoll_wait.not_epoll", R4(SYS_epoll_wait, 1, &ev, 1, 1));
    SAME("epoll_pwait.mask", R6(SYS_epoll_pwait, e, &ev, 1, 1, BAD, 8));
    SAME("epoll_pwait.size", R6(SYS_epoll_pwait, e, &ev, 1, 1, &ev, 4));
    SAME("epoll_pwait2.mask", R6(SYS_epoll_pwait2, e, &ev, 1, &tiny, BAD, 8));
    SAME("ppoll.mask", R5(SYS_ppoll, &f, 1, &tiny, BAD, 8));
    SAME("ppoll.size", R5(SYS_ppoll, &f, 1, &tiny, &ev, 3));
    SAME("pselect6.packed", R6(SYS_pselect6, 0, NULL, NULL, NULL, &tiny, BAD));
    struct {
        void *p;
        long n;
    } mask = {BAD, 8}, none = {NULL, 8}, size = {&mask, 3};
    SAME("pselect6.mask", R6(SYS_pselect6, 0, NULL, NULL, NULL, &tiny, &mask));
    SAME("pselect6.nomask", R6(SYS_pselect6, 0, NULL, NULL, NULL, &tiny, &none));
    SAME("pselect6.size", R6(SYS_pselect6, 0, NULL, NULL, NULL, &tiny, &size));
    SAME("pselect6.nfds", R6(SYS_pselect6, -1, NULL, NULL, NULL, &tiny, NULL));
    SAME("pselect6.fds", R6(SYS_pselect6, 1, BAD, NULL, NULL, &tiny, NULL));

    struct timeval bad_usec = {0, -1}, bad_sec = {-1, 0}, tv_zero = {0, 0}, tv_tiny = {0, 1};
    SAME("select.usec", R5(SYS_select, 0, NULL, NULL, NULL, &bad_usec));
    SAME("select.sec", R5(SYS_select, 0, NULL, NULL, NULL, &bad_sec));
    SAME("select.zero", R5(SYS_select, 0, NULL, NULL, NULL, &tv_zero));
    SAME("select.fault", R5(SYS_select, 0, NULL, NULL, NULL, BAD));
    SAME("select.half", R5(SYS_select, 0, NULL, NULL, NULL, half(&tv_tiny, sizeof tv_tiny)));
    SAME("select.read_only", R5(SYS_select, 0, NULL, NULL, NULL, read_only(&tv_tiny, sizeof tv_tiny)));
    int p[2];
    if (pipe(p) || write(p[1], "x", 1) != 1) _exit(90);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(p[0], &in);
    // Ready at once: a carry of microseconds is legal.
    struct timeval carry = {0, 2000000};
    SAME("select.carry", R5(SYS_select, p[0] + 1, &in, NULL, NULL, &carry));
    line("range select.carry.left 1900000 %ld 2000000", (long)(carry.tv_sec * 1000000 + carry.tv_usec));
    SAME("personality", R1(SYS_personality, 0x4000000));
    carry = (struct timeval){0, 1500000};
    FD_SET(p[0], &in);
    SAME("sticky.select", R5(SYS_select, p[0] + 1, &in, NULL, NULL, &carry));
    line("= sticky.left %ld %ld", (long)carry.tv_sec, (long)carry.tv_usec);
    ts_t sticky = {3, 5};
    f = (struct pollfd){p[0], POLLIN, 0};
    SAME("sticky.ppoll", R5(SYS_ppoll, &f, 1, &sticky, NULL, 0));
    line("= sticky.ppoll.left %ld %ld", (long)sticky.tv_sec, (long)sticky.tv_nsec);
    R1(SYS_personality, 0);
}

static void futexes(void) {
    static const int ops[] = {0, 9, 9 | 256, 11, 11 | 256, 0 | 256, 6, 6 | 256, 13, 13 | 256, 0 | 128, 9 | 128, 64};
    for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++) {
        char name[32];
        snprintf(name, sizeof name, "futex.%d", ops[i]);
        int pi = (ops[i] & ~384) == 6 || (ops[i] & ~384) == 13;
        static ts_t *const times[] = {&bad_nsec, &negative_sec, BAD, &zero, &tiny};
        static const char *const names[] = {"bad", "negative", "fault", "zero", "past"};
        for (int t = 0; t < 5; t++) {
            // Our own lock: a deadlock, whatever the time.
            word = pi ? (uint32_t)getpid() : 0;
            line("= %s.%s %ld", name, names[t], R6(SYS_futex, &word, ops[i], 0, times[t], &huge_past, ~0));
        }
        line("= %s.value %ld", name, pi ? 0 : R6(SYS_futex, &word, ops[i], 5, &tiny, &huge_past, ~0));
        line("= %s.null_word %ld", name, R6(SYS_futex, 0, ops[i], 0, &tiny, 0, ~0));
    }
    SAME("futex.wake.a3", R4(SYS_futex, &word, FUTEX_WAKE, 1, 1));
    SAME("futex.requeue.a3", R6(SYS_futex, &word, FUTEX_REQUEUE, 1, 1, &word, 0));
    struct {
        uint64_t val, uaddr;
        uint32_t flags, reserved;
    } w = {0, (uint64_t)&word, 2, 0};
    word = 0;
    for (int id = 0; id < 3; id++) {
        char name[32];
        snprintf(name, sizeof name, "waitv.%d", id);
        line("= %s zero %ld past %ld bad %ld negative %ld fault %ld null %ld", name,
             R5(SYS_futex_waitv, &w, 1, 0, &zero, id), R5(SYS_futex_waitv, &w, 1, 0, &tiny, id),
             R5(SYS_futex_waitv, &w, 1, 0, &bad_nsec, id), R5(SYS_futex_waitv, &w, 1, 0, &negative_sec, id),
             R5(SYS_futex_waitv, &w, 1, 0, BAD, id), R5(SYS_futex_waitv, &w, 0, 0, NULL, id));
        snprintf(name, sizeof name, "wait2.%d", id);
        line("= %s zero %ld past %ld bad %ld negative %ld fault %ld value %ld", name,
             R6(SYS_futex_wait, &word, 0, ~0u, 2, &zero, id), R6(SYS_futex_wait, &word, 0, ~0u, 2, &tiny, id),
             R6(SYS_futex_wait, &word, 0, ~0u, 2, &bad_nsec, id), R6(SYS_futex_wait, &word, 0, ~0u, 2, &negative_sec, id),
             R6(SYS_futex_wait, &word, 0, ~0u, 2, BAD, id), R6(SYS_futex_wait, &word, 5, ~0u, 2, &tiny, id));
    }
}

static void messages(void) {
    int sem = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf take = {0, -1, 0}, none = {0, 0, 0};
    EACH_BAD("semtimedop", R4(SYS_semtimedop, sem, &take, 1, T));
    EACH_BAD("semtimedop.ready", R4(SYS_semtimedop, sem, &none, 1, T));
    SAME("semtimedop.id", R4(SYS_semtimedop, -5, &take, 1, &tiny));
    semctl(sem, 0, IPC_RMID);

    char name[40];
    snprintf(name, sizeof name, "/diecast-errors-%d", getpid());
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 8};
    int q = mq_open(name, O_RDWR | O_CREAT, 0600, &attr);
    mq_unlink(name);
    char buf[8];
    EACH_BAD("mq_timedreceive", R5(SYS_mq_timedreceive, q, buf, 8, NULL, T));
    SAME("mq_timedreceive.fd", R5(SYS_mq_timedreceive, 999, buf, 8, NULL, &tiny));
    SAME("mq_timedsend.would_not_block", R5(SYS_mq_timedsend, q, "x", 1, 0, &bad_nsec));
    SAME("mq_timedsend.ready", R5(SYS_mq_timedsend, q, "x", 1, 0, &tiny));
    EACH_BAD("mq_timedsend", R5(SYS_mq_timedsend, q, "x", 1, 0, T));

    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    EACH_BAD("rt_sigtimedwait", R4(SYS_rt_sigtimedwait, &set, NULL, T, 8));
    SAME("rt_sigtimedwait.size", R4(SYS_rt_sigtimedwait, &set, NULL, &tiny, 4));
    SAME("rt_sigtimedwait.set", R4(SYS_rt_sigtimedwait, BAD, NULL, &tiny, 8));
    kill(getpid(), SIGUSR2);
    SAME("rt_sigtimedwait.pending", R4(SYS_rt_sigtimedwait, &set, NULL, &zero, 8));

    int s[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, s)) _exit(90);
    fcntl(s[0], F_SETFL, O_NONBLOCK);
    struct iovec v = {buf, 8};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
    EACH_BAD("recvmmsg.empty", R5(SYS_recvmmsg, s[0], &m, 1, 0, T));
    send(s[1], "1", 1, 0);
    ts_t left = {5, 0};
    SAME("recvmmsg", R5(SYS_recvmmsg, s[0], &m, 1, 0, &left));
    line("range recvmmsg.left 4900000000 %ld 5000000000", ns_of(left));
    send(s[1], "1", 1, 0);
    SAME("recvmmsg.read_only", R5(SYS_recvmmsg, s[0], &m, 1, 0, read_only(&left, sizeof left)));

    aio_context_t ctx = 0;
    struct io_event e;
    R2(SYS_io_setup, 4, &ctx);
    ts_t carried = {0, -1};
    SAME("io_getevents.none", R5(SYS_io_getevents, ctx, 0, 1, &e, &bad_nsec));
    SAME("io_getevents.negative", R5(SYS_io_getevents, ctx, 0, 1, &e, &carried));
    SAME("io_getevents.zero", R5(SYS_io_getevents, ctx, 1, 1, &e, &zero));
    SAME("io_getevents.fault", R5(SYS_io_getevents, ctx, 1, 1, &e, BAD));
    SAME("io_getevents.ctx", R5(SYS_io_getevents, 0x77, 1, 1, &e, &tiny));
    SAME("io_pgetevents.packed", R6(SYS_io_pgetevents, ctx, 1, 1, &e, &tiny, BAD));
}

static void option(int fd, const char *name, int opt, long sec, long usec) {
    struct timeval t = {sec, usec}, back = {-7, -7};
    socklen_t len = sizeof back;
    long r = R5(SYS_setsockopt, fd, SOL_SOCKET, opt, &t, sizeof t);
    long g = R5(SYS_getsockopt, fd, SOL_SOCKET, opt, &back, &len);
    line("= %s.%ld.%ld set %ld get %ld len %u", name, sec, usec, r, g, len);
    if (r) return;
    // Read back: what was set, rounded up to a tick of the kernel (at most 10 ms of real time).
    long asked = sec < 0 ? 0 : sec * 1000000 + usec, got = back.tv_sec * 1000000 + back.tv_usec;
    if (asked == 0)
        line("= %s.%ld.%ld back %ld", name, sec, usec, got);
    else
        line("range %s.%ld.%ld %ld %ld %ld", name, sec, usec, asked, got, asked + 20001);
}

static void sockets(void) {
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    static const struct {
        const char *name;
        int opt;
    } opts[] = {{"rcvtimeo", SO_RCVTIMEO}, {"sndtimeo", SO_SNDTIMEO}, {"rcvtimeo_new", 66}, {"sndtimeo_new", 67}};
    for (int i = 0; i < 4; i++) {
        option(s, opts[i].name, opts[i].opt, 0, 0);
        option(s, opts[i].name, opts[i].opt, 0, 200000);
        option(s, opts[i].name, opts[i].opt, 3, 0);
        option(s, opts[i].name, opts[i].opt, 12345, 999999);
        option(s, opts[i].name, opts[i].opt, 0, 1000000);
        option(s, opts[i].name, opts[i].opt, 0, -1);
        option(s, opts[i].name, opts[i].opt, -1, 0);
        option(s, opts[i].name, opts[i].opt, 0, 1);
    }
    struct timeval t = {1, 0};
    socklen_t len = 16;
    SAME("setsockopt.short", R5(SYS_setsockopt, s, SOL_SOCKET, SO_RCVTIMEO, &t, 8));
    SAME("setsockopt.fault", R5(SYS_setsockopt, s, SOL_SOCKET, SO_RCVTIMEO, BAD, 16));
    SAME("setsockopt.null", R5(SYS_setsockopt, s, SOL_SOCKET, SO_RCVTIMEO, NULL, 16));
    SAME("setsockopt.fd", R5(SYS_setsockopt, 999, SOL_SOCKET, SO_RCVTIMEO, &t, 16));
    SAME("setsockopt.not", R5(SYS_setsockopt, 1, SOL_SOCKET, SO_RCVTIMEO, &t, 16));
    SAME("getsockopt.fault", R5(SYS_getsockopt, s, SOL_SOCKET, SO_RCVTIMEO, BAD, &len));
    SAME("getsockopt.len", R5(SYS_getsockopt, s, SOL_SOCKET, SO_RCVTIMEO, &t, BAD));
}

static void timers(void) {
    struct itimerspec bad = {{0, SEC}, {1, 0}}, bad2 = {{0, 0}, {-1, 0}}, off = {{0, 0}, {0, 0}}, on = {{2, 0}, {50, 0}}, got;
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    uint64_t ticks;
    SAME("timerfd.interval", R4(SYS_timerfd_settime, fd, 0, &bad, NULL));
    SAME("timerfd.value", R4(SYS_timerfd_settime, fd, 0, &bad2, NULL));
    SAME("timerfd.flags", R4(SYS_timerfd_settime, fd, 8, &on, NULL));
    SAME("timerfd.fault", R4(SYS_timerfd_settime, fd, 0, BAD, NULL));
    SAME("timerfd.null", R4(SYS_timerfd_settime, fd, 0, NULL, NULL));
    SAME("timerfd.fd", R4(SYS_timerfd_settime, 999, 0, &on, NULL));
    SAME("timerfd.not", R4(SYS_timerfd_settime, 1, 0, &on, NULL));
    SAME("timerfd.on", R4(SYS_timerfd_settime, fd, 0, &on, NULL));
    SAME("timerfd.old", R4(SYS_timerfd_settime, fd, 0, &off, &got));
    line("= timerfd.old.interval %ld", ns_of(got.it_interval));
    line("range timerfd.old.value 49000000000 %ld 50000000000", ns_of(got.it_value));
    SAME("timerfd.off", R2(SYS_timerfd_gettime, fd, &got));
    line("= timerfd.off.value %ld %ld", ns_of(got.it_value), ns_of(got.it_interval));
    SAME("timerfd.old.fault", R4(SYS_timerfd_settime, fd, 0, &off, BAD));
    SAME("timerfd.gettime.fault", R2(SYS_timerfd_gettime, fd, BAD));
    SAME("timerfd.gettime.fd", R2(SYS_timerfd_gettime, 999, &got));
    struct itimerspec past = {{0, 0}, {0, 1}}, never = {{0, 0}, {INT64_MAX, 0}};
    SAME("timerfd.past", R4(SYS_timerfd_settime, fd, 1, &past, NULL));
    SAME("timerfd.past.ticks", R3(SYS_read, fd, &ticks, 8) == 8 ? (long)ticks : -1);
    SAME("timerfd.expired", R2(SYS_timerfd_gettime, fd, &got));
    line("= timerfd.expired.value %ld", ns_of(got.it_value));
    SAME("timerfd.never", R4(SYS_timerfd_settime, fd, 0, &never, NULL));
    SAME("timerfd.never.gettime", R2(SYS_timerfd_gettime, fd, &got));
    SAME("timerfd.never.armed", got.it_value.tv_sec > 100000000);

    timer_t id;
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    SAME("timer_create", R3(SYS_timer_create, CLOCK_MONOTONIC, &none, &id));
    SAME("timer_create.clock", R3(SYS_timer_create, 99, &none, &id));
    SAME("timer_create.raw", R3(SYS_timer_create, CLOCK_MONOTONIC_RAW, &none, &id));
    SAME("timer_create.fault", R3(SYS_timer_create, CLOCK_MONOTONIC, BAD, &id));
    SAME("timer_create.out", R3(SYS_timer_create, CLOCK_MONOTONIC, &none, BAD));
    SAME("timer.interval", R4(SYS_timer_settime, 0, 0, &bad, NULL));
    SAME("timer.value", R4(SYS_timer_settime, 0, 0, &bad2, NULL));
    SAME("timer.id", R4(SYS_timer_settime, 77, 0, &on, NULL));
    SAME("timer.id.bad", R4(SYS_timer_settime, -1, 0, &bad, NULL));
    SAME("timer.null", R4(SYS_timer_settime, 0, 0, NULL, NULL));
    SAME("timer.fault", R4(SYS_timer_settime, 0, 0, BAD, NULL));
    SAME("timer.on", R4(SYS_timer_settime, 0, 0, &on, NULL));
    SAME("timer.gettime", R2(SYS_timer_gettime, 0, &got));
    line("= timer.interval %ld", ns_of(got.it_interval));
    line("range timer.value 49000000000 %ld 50000000000", ns_of(got.it_value));
    SAME("timer.off", R4(SYS_timer_settime, 0, 0, &off, &got));
    line("range timer.old 49000000000 %ld 50000000000", ns_of(got.it_value));
    SAME("timer.gettime.fault", R2(SYS_timer_gettime, 0, BAD));
    SAME("timer.gettime.id", R2(SYS_timer_gettime, -1, &got));
    SAME("timer.old.fault", R4(SYS_timer_settime, 0, 0, &off, BAD));

    signal(SIGALRM, SIG_IGN);
    struct itimerval iv = {{2, 0}, {100, 0}}, old, carry = {{0, 0}, {0, 1000000}}, neg = {{0, 0}, {-1, 0}};
    SAME("setitimer.usec", R3(SYS_setitimer, 0, &carry, NULL));
    SAME("setitimer.negative", R3(SYS_setitimer, 0, &neg, NULL));
    SAME("setitimer.which", R3(SYS_setitimer, 3, &iv, NULL));
    SAME("setitimer.fault", R3(SYS_setitimer, 0, BAD, NULL));
    SAME("setitimer.on", R3(SYS_setitimer, 0, &iv, NULL));
    SAME("getitimer", R2(SYS_getitimer, 0, &old));
    line("= getitimer.interval %ld %ld", (long)old.it_interval.tv_sec, (long)old.it_interval.tv_usec);
    line("range getitimer.value 99 %ld 100", (long)old.it_value.tv_sec);
    SAME("alarm.after", R1(SYS_alarm, 7));
    SAME("alarm.again", R1(SYS_alarm, 100000000));
    line("range alarm.long 99999990 %ld 100000000", R1(SYS_alarm, 0));
    SAME("alarm.none", R1(SYS_alarm, 0));
    SAME("setitimer.rearm", R3(SYS_setitimer, 0, &iv, &old));
    line("= setitimer.old %ld %ld", (long)old.it_value.tv_sec, (long)old.it_value.tv_usec);
    SAME("setitimer.null", R3(SYS_setitimer, 0, NULL, &old));
    line("range setitimer.null.old 99 %ld 100", (long)old.it_value.tv_sec);
    SAME("setitimer.both_null", R3(SYS_setitimer, 0, NULL, NULL));
    SAME("alarm.disarmed", R1(SYS_alarm, 0));
    SAME("setitimer.old.fault", R3(SYS_setitimer, 0, NULL, BAD));
    SAME("getitimer.fault", R2(SYS_getitimer, 0, BAD));
    SAME("getitimer.which", R2(SYS_getitimer, 9, &old));
    // A tick, or a hit of the meter, may come before it is disarmed.
    signal(SIGVTALRM, SIG_IGN);
    struct itimerval soon = {{0, 0}, {0, 1}};
    SAME("getitimer.soon", R3(SYS_setitimer, 1, &soon, NULL));
    R3(SYS_setitimer, 1, NULL, NULL);
}

static void clocks(void) {
    struct timex x = {0};
    line("range adjtimex 0 %ld 5", R1(SYS_adjtimex, &x));
    line("near adjtimex.time %ld %ld", x.time.tv_sec * SEC + x.time.tv_usec * (x.status & STA_NANO ? 1 : 1000),
         now(CLOCK_REALTIME));
    SAME("adjtimex.fault", R1(SYS_adjtimex, BAD));
    SAME("adjtimex.null", R1(SYS_adjtimex, NULL));
    SAME("clock_adjtime.clock", R2(SYS_clock_adjtime, 1, &x));
    SAME("clock_adjtime.fault", R2(SYS_clock_adjtime, 0, BAD));
    SAME("gettimeofday.fault", R2(SYS_gettimeofday, BAD, NULL));
    SAME("gettimeofday.null", R2(SYS_gettimeofday, NULL, NULL));
    SAME("gettimeofday.zone", R2(SYS_gettimeofday, NULL, BAD));
    SAME("time.fault", R1(SYS_time, BAD));
    SAME("sigaction.size", R4(SYS_rt_sigaction, 10, NULL, NULL, 4));
    SAME("sigaction.signal", R4(SYS_rt_sigaction, 65, NULL, BAD, 8));
    SAME("sigaction.kill", R4(SYS_rt_sigaction, 9, &(struct sigaction){0}, NULL, 8));
    SAME("sigaction.fault", R4(SYS_rt_sigaction, 10, BAD, NULL, 8));
    SAME("sigaction.old.fault", R4(SYS_rt_sigaction, 10, NULL, BAD, 8));
    SAME("sigprocmask.how", R4(SYS_rt_sigprocmask, 9, &(long){0}, NULL, 8));
    SAME("sigprocmask.how.query", R4(SYS_rt_sigprocmask, 9, NULL, &(long){0}, 8));
    SAME("sigprocmask.size", R4(SYS_rt_sigprocmask, 0, NULL, NULL, 4));
    SAME("sigprocmask.fault", R4(SYS_rt_sigprocmask, 0, BAD, NULL, 8));
    SAME("sigprocmask.old.fault", R4(SYS_rt_sigprocmask, 0, NULL, BAD, 8));
    SAME("sigsuspend.fault", R2(SYS_rt_sigsuspend, BAD, 8));
    SAME("sigsuspend.null", R2(SYS_rt_sigsuspend, NULL, 8));
    SAME("clock_settime.null", R2(SYS_clock_settime, 0, NULL));
    SAME("sigsuspend.size", R2(SYS_rt_sigsuspend, &(long){0}, 4));
    SAME("clone3.fault", R2(435, BAD, 88));
    SAME("clone3.size", R2(435, ((long[16]){0}), 16));
    SAME("clone3.flags", R2(435, ((long[16]){0x4000}), 64) > 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"sleeps", sleeps}, {"polls", polls}, {"futexes", futexes}, {"messages", messages},
                 {"sockets", sockets}, {"timers", timers}, {"clocks", clocks}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (argc < 2 || !strcmp(argv[1], parts[i].name)) line("= part.%s status %d", parts[i].name, in_child(parts[i].f));
    return 0;
}
