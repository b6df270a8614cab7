// Every wait with a timeout: alone, met by a signal with and without SA_RESTART, and stopped and continued.
//
// Covers: nanosleep clock_nanosleep poll ppoll select pselect6 epoll_wait epoll_pwait epoll_pwait2 futex
// futex_waitv futex_wait semtimedop mq_timedsend mq_timedreceive rt_sigtimedwait recvmmsg io_getevents
// io_pgetevents setsockopt getsockopt
#include "guest.h"
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/timerfd.h>

static ts_t left;      // what the call said is left
static int left_valid; // whether it says so
static long slept_from; // when the wait began

static long began(void) { return slept_from = mono(); }

static long op_nanosleep(long ns) {
    ts_t t = ts_of(ns);
    left_valid = 1;
    began();
    return R2(SYS_nanosleep, &t, &left);
}

static long sleep_on(clockid_t id, int flags, long ns) {
    began();
    ts_t t = flags ? in(id, ns) : ts_of(ns);
    left_valid = !flags;
    return R4(SYS_clock_nanosleep, id, flags, &t, flags ? NULL : &left);
}
static long op_sleep_monotonic(long ns) { return sleep_on(CLOCK_MONOTONIC, 0, ns); }
static long op_sleep_realtime(long ns) { return sleep_on(CLOCK_REALTIME, 0, ns); }
static long op_sleep_boottime(long ns) { return sleep_on(CLOCK_BOOTTIME, 0, ns); }
static long op_sleep_tai(long ns) { return sleep_on(CLOCK_TAI, 0, ns); }
static long op_until_monotonic(long ns) { return sleep_on(CLOCK_MONOTONIC, TIMER_ABSTIME, ns); }
static long op_until_realtime(long ns) { return sleep_on(CLOCK_REALTIME, TIMER_ABSTIME, ns); }
static long op_until_boottime(long ns) { return sleep_on(CLOCK_BOOTTIME, TIMER_ABSTIME, ns); }
static long op_until_tai(long ns) { return sleep_on(CLOCK_TAI, TIMER_ABSTIME, ns); }

static struct pollfd silent(void) {
    int p[2];
    if (pipe(p)) _exit(90);
    return (struct pollfd){p[0], POLLIN, 0};
}
static long op_poll(long ns) {
    struct pollfd f = silent();
    began();
    return R3(SYS_poll, &f, 1, ns / MS);
}
// Rubbish in the upper half of an int argument is ignored by the kernel.
static long op_poll_high_bits(long ns) {
    struct pollfd f = silent();
    began();
    return R3(SYS_poll, &f, 1, 0x1234567800000000L | ns / MS);
}
static long op_ppoll(long ns) {
    struct pollfd f = silent();
    left = ts_of(ns), left_valid = 1;
    began();
    return R5(SYS_ppoll, &f, 1, &left, NULL, 0);
}
static long op_ppoll_full_mask(long ns) {
    struct pollfd f = silent();
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGUSR1);
    left = ts_of(ns), left_valid = 1;
    began();
    return R5(SYS_ppoll, &f, 1, &left, &all, 8);
}
static long op_select(long ns) {
    struct timeval t = tv_of(ns);
    left_valid = 1;
    began();
    long r = R5(SYS_select, 0, NULL, NULL, NULL, &t);
    left = (ts_t){t.tv_sec, t.tv_usec * 1000};
    return r;
}
// Parts of different signs are added before the kernel judges them.
static long op_select_mixed(long ns) {
    struct timeval t = {-1, 1000000 + ns / 1000};
    began();
    return R5(SYS_select, 0, NULL, NULL, NULL, &t);
}
static long op_pselect6(long ns) {
    left = ts_of(ns), left_valid = 1;
    began();
    return R6(SYS_pselect6, 0, NULL, NULL, NULL, &left, NULL);
}
static long op_pselect6_full_mask(long ns) {
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGUSR1);
    struct {
        void *p;
        long n;
    } mask = {&all, 8};
    left = ts_of(ns), left_valid = 1;
    began();
    return R6(SYS_pselect6, 0, NULL, NULL, NULL, &left, &mask);
}
static long op_epoll_wait(long ns) {
    struct epoll_event e;
    int fd = epoll_create1(0);
    began();
    return R4(SYS_epoll_wait, fd, &e, 1, ns / MS);
}
static long op_epoll_pwait(long ns) {
    struct epoll_event e;
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGUSR1);
    int fd = epoll_create1(0);
    began();
    return R6(SYS_epoll_pwait, fd, &e, 1, ns / MS, &all, 8);
}
static long op_epoll_pwait2(long ns) {
    struct epoll_event e;
    ts_t t = ts_of(ns);
    int fd = epoll_create1(0);
    began();
    return R6(SYS_epoll_pwait2, fd, &e, 1, &t, NULL, 0);
}

static uint32_t word, word2;
static long op_futex_wait(long ns) {
    ts_t t = ts_of(ns);
    began();
    return R4(SYS_futex, &word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, &t);
}
static long bitset(int flags, clockid_t id, long ns) {
    began();
    ts_t t = in(id, ns);
    return R6(SYS_futex, &word, FUTEX_WAIT_BITSET | flags, 0, &t, NULL, 0x10);
}
static long op_futex_bitset(long ns) { return bitset(FUTEX_PRIVATE_FLAG, CLOCK_MONOTONIC, ns); }
static long op_futex_bitset_realtime(long ns) { return bitset(FUTEX_CLOCK_REALTIME, CLOCK_REALTIME, ns); }
static long requeue(int flags, clockid_t id, long ns) {
    began();
    ts_t t = in(id, ns);
    return R6(SYS_futex, &word, FUTEX_WAIT_REQUEUE_PI | flags, 0, &t, &word2, 0);
}
static long op_futex_requeue(long ns) { return requeue(0, CLOCK_MONOTONIC, ns); }
static long op_futex_requeue_realtime(long ns) { return requeue(FUTEX_CLOCK_REALTIME, CLOCK_REALTIME, ns); }

static void *owner(void *out) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    R4(SYS_futex, &word, FUTEX_LOCK_PI, 0, NULL);
    __atomic_store_n((int *)out, 1, __ATOMIC_RELEASE);
    for (;;) pause();
}
static void lock_by_another_thread(void) {
    pthread_t t;
    int ready = 0;
    word = 0;
    pthread_create(&t, NULL, owner, &ready);
    while (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) usleep(1000);
}
static long lock_pi(int op, clockid_t id, long ns) {
    lock_by_another_thread();
    began();
    ts_t t = in(id, ns);
    return R4(SYS_futex, &word, op, 0, &t);
}
static long op_futex_lock_pi(long ns) { return lock_pi(FUTEX_LOCK_PI, CLOCK_REALTIME, ns); }
static long op_futex_lock_pi2(long ns) { return lock_pi(FUTEX_LOCK_PI2, CLOCK_MONOTONIC, ns); }
static long op_futex_lock_pi2_realtime(long ns) {
    return lock_pi(FUTEX_LOCK_PI2 | FUTEX_CLOCK_REALTIME, CLOCK_REALTIME, ns);
}
static long waitv(clockid_t id, long ns) {
    struct {
        uint64_t val, uaddr;
        uint32_t flags, reserved;
    } w = {0, (uint64_t)&word, 2, 0};
    began();
    ts_t t = in(id, ns);
    return R5(SYS_futex_waitv, &w, 1, 0, &t, id);
}
static long op_futex_waitv(long ns) { return waitv(CLOCK_MONOTONIC, ns); }
static long op_futex_waitv_realtime(long ns) { return waitv(CLOCK_REALTIME, ns); }
static long wait2(clockid_t id, long ns) {
    began();
    ts_t t = in(id, ns);
    return R6(SYS_futex_wait, &word, 0, 0xffffffffL, 2, &t, id);
}
static long op_futex_wait2(long ns) { return wait2(CLOCK_MONOTONIC, ns); }
static long op_futex_wait2_realtime(long ns) { return wait2(CLOCK_REALTIME, ns); }

static long op_semtimedop(long ns) {
    int id = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf b = {0, -1, 0};
    ts_t t = ts_of(ns);
    began();
    long r = R4(SYS_semtimedop, id, &b, 1, &t);
    semctl(id, 0, IPC_RMID);
    return r;
}

static int queue(int full) {
    char name[40];
    snprintf(name, sizeof name, "/diecast-guest-%d", getpid());
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 8};
    int q = mq_open(name, O_RDWR | O_CREAT, 0600, &attr);
    mq_unlink(name);
    if (full) mq_send(q, "x", 1, 0);
    return q;
}
static long op_mq_timedsend(long ns) {
    int q = queue(1);
    began();
    ts_t t = in(CLOCK_REALTIME, ns);
    return R5(SYS_mq_timedsend, q, "x", 1, 0, &t);
}
static long op_mq_timedreceive(long ns) {
    int q = queue(0);
    char buf[8];
    began();
    ts_t t = in(CLOCK_REALTIME, ns);
    return R5(SYS_mq_timedreceive, q, buf, 8, NULL, &t);
}
static long op_rt_sigtimedwait(long ns) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    ts_t t = ts_of(ns);
    began();
    return R4(SYS_rt_sigtimedwait, &set, NULL, &t, 8);
}

static long op_io_getevents(long ns) {
    aio_context_t ctx = 0;
    struct io_event e;
    if (R2(SYS_io_setup, 4, &ctx)) return -1000;
    ts_t t = ts_of(ns);
    began();
    return R5(SYS_io_getevents, ctx, 1, 1, &e, &t);
}
static long op_io_getevents_mixed(long ns) {
    aio_context_t ctx = 0;
    struct io_event e;
    if (R2(SYS_io_setup, 4, &ctx)) return -1000;
    ts_t t = {1, ns - SEC};
    began();
    return R5(SYS_io_getevents, ctx, 1, 1, &e, &t);
}
static long op_io_pgetevents(long ns) {
    aio_context_t ctx = 0;
    struct io_event e;
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGUSR1);
    struct {
        void *p;
        long n;
    } mask = {&all, 8};
    if (R2(SYS_io_setup, 4, &ctx)) return -1000;
    ts_t t = ts_of(ns);
    began();
    return R6(SYS_io_pgetevents, ctx, 1, 1, &e, &t, &mask);
}

// Socket timeouts count in ticks of the kernel, rounded up.
static int limited(int option, long ns, int full) {
    int s[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, s)) _exit(90);
    struct timeval t = tv_of(ns);
    setsockopt(s[0], SOL_SOCKET, option, &t, sizeof t);
    char block[4096] = {0};
    while (full && send(s[0], block, sizeof block, MSG_DONTWAIT) > 0) {}
    return s[0];
}
static long op_so_rcvtimeo(long ns) {
    char c;
    int s = limited(SO_RCVTIMEO, ns, 0);
    began();
    return R6(SYS_recvfrom, s, &c, 1, 0, NULL, NULL);
}
static long op_so_rcvtimeo_read(long ns) {
    char c;
    int s = limited(SO_RCVTIMEO, ns, 0);
    began();
    return R3(SYS_read, s, &c, 1);
}
static long op_so_sndtimeo(long ns) {
    int s = limited(SO_SNDTIMEO, ns, 1);
    char c = 0;
    began();
    return R6(SYS_sendto, s, &c, 1, 0, NULL, 0);
}
static long op_accept_so_rcvtimeo(long ns) {
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    bind(s, (void *)&a, sizeof a.sun_family);
    listen(s, 1);
    struct timeval t = tv_of(ns);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    began();
    return R3(SYS_accept, s, NULL, NULL);
}

static long timerfd(clockid_t id, int flags, long ns) {
    int fd = timerfd_create(id, 0);
    began();
    struct itimerspec s = {{0, 0}, flags ? in(id, ns) : ts_of(ns)};
    uint64_t ticks = 0;
    if (R4(SYS_timerfd_settime, fd, flags, &s, NULL)) return -1000;
    long r = R3(SYS_read, fd, &ticks, 8);
    return r == 8 ? (long)ticks : r;
}
static long op_timerfd(long ns) { return timerfd(CLOCK_MONOTONIC, 0, ns); }
static long op_timerfd_realtime(long ns) { return timerfd(CLOCK_REALTIME, 0, ns); }
static long op_timerfd_until_monotonic(long ns) { return timerfd(CLOCK_MONOTONIC, TFD_TIMER_ABSTIME, ns); }
static long op_timerfd_until_realtime(long ns) { return timerfd(CLOCK_REALTIME, TFD_TIMER_ABSTIME, ns); }
static long op_timerfd_until_boottime(long ns) { return timerfd(CLOCK_BOOTTIME, TFD_TIMER_ABSTIME, ns); }

// The timeout of recvmmsg is looked at after each datagram: the second one ends the wait.
static long op_recvmmsg(long ns) {
    int s[2];
    char buf[4][8];
    struct iovec v[4];
    struct mmsghdr m[4] = {0};
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, s)) _exit(90);
    for (int i = 0; i < 4; i++) v[i] = (struct iovec){buf[i], 8}, m[i].msg_hdr.msg_iov = &v[i], m[i].msg_hdr.msg_iovlen = 1;
    left = ts_of(ns), left_valid = 0;
    send(s[1], "1", 1, 0);
    began();
    if (fork() == 0) {
        ts_t t = ts_of(ns);
        nanosleep(&t, NULL);
        nanosleep(&(ts_t){0, 2 * MS}, NULL);
        send(s[1], "2", 1, 0);
        _exit(0);
    }
    return R5(SYS_recvmmsg, s[0], m, 4, 0, &left);
}

static const struct op {
    const char *name;
    long (*f)(long);
    int once; // leave out the runs with signals
} OPS[] = {
#define OP(n) {#n, op_##n, 0}
    OP(nanosleep), OP(sleep_monotonic), OP(sleep_realtime), OP(sleep_boottime), OP(sleep_tai), OP(until_monotonic),
    OP(until_realtime), OP(until_boottime), OP(until_tai), OP(poll), OP(poll_high_bits), OP(ppoll),
    OP(ppoll_full_mask), OP(select), OP(pselect6), OP(pselect6_full_mask), OP(epoll_wait), OP(epoll_pwait),
    OP(epoll_pwait2), OP(futex_wait), OP(futex_bitset), OP(futex_bitset_realtime), OP(futex_requeue),
    OP(futex_requeue_realtime), OP(futex_lock_pi), OP(futex_lock_pi2), OP(futex_lock_pi2_realtime), OP(futex_waitv),
    OP(futex_waitv_realtime), OP(futex_wait2), OP(futex_wait2_realtime), OP(semtimedop), OP(mq_timedsend),
    OP(mq_timedreceive), OP(rt_sigtimedwait), OP(io_getevents), OP(io_pgetevents), OP(so_rcvtimeo),
    OP(so_rcvtimeo_read), OP(so_sndtimeo), OP(accept_so_rcvtimeo), OP(timerfd), OP(timerfd_realtime),
    OP(timerfd_until_monotonic), OP(timerfd_until_realtime), OP(timerfd_until_boottime), {"recvmmsg", op_recvmmsg, 1},
    {"select_mixed", op_select_mixed, 1}, {"io_getevents_mixed", op_io_getevents_mixed, 1},
};
#define OPS_LEN ((int)(sizeof OPS / sizeof *OPS))

enum mode { PLAIN, SIGNAL, SIGNAL_RESTART, STOP };
static const char *MODES[] = {"plain", "signal", "restart", "stop"};

static int hits;
static void handler(int sig) { hits += sig == SIGUSR1; }

static void run(const struct op *op, enum mode mode, long ns) {
    on_signal(SIGUSR1, mode == SIGNAL_RESTART ? SA_RESTART : 0, handler);
    pid_t me = getpid();
    if (mode != PLAIN && fork() == 0) {
        nanosleep(&(ts_t){0, ns / 3}, NULL);
        kill(me, mode == STOP ? SIGSTOP : SIGUSR1);
        if (mode == STOP) {
            nanosleep(&(ts_t){0, ns / 8}, NULL);
            kill(me, SIGCONT);
        }
        _exit(0);
    }
    slept_from = 0;
    // Both clocks begin with the wait itself, after the operation's own set-up.
    unsigned long c0 = tsc();
    long m0 = mono();
    long r = op->f(ns);
    unsigned long c1 = tsc();
    long m1 = mono();
    char name[80];
    snprintf(name, sizeof name, "%s.%s", op->name, MODES[mode]);
    // The two lines of one wait tell what came of it and how long it was.
    line("= %s %ld hits=%d", name, r, hits);
    line("rate %s %ld %lu", name, m1 - m0, c1 - c0);
    if (r != -EINTR) line("wait %s %ld %ld", name, ns, m1 - slept_from);
    if (left_valid && r == -EINTR) line("near %s.left %ld %ld", name, ns - ns_of(left), m1 - slept_from);
    if (left_valid && r == 0 && op->f != op_nanosleep && strncmp(op->name, "sleep", 5)) line("= %s.left %ld", name, ns_of(left));
    fflush(NULL);
    R1(SYS_exit_group, 0);
}

int main(int argc, char **argv) {
    long ns = 48 * MS;
    const char *only = argc > 1 ? argv[1] : "";
    int running = 0, status;
    for (int mode = PLAIN; mode <= STOP; mode++)
        for (int i = 0; i < OPS_LEN; i++) {
            if ((OPS[i].once && mode != PLAIN) || !strstr(OPS[i].name, only)) continue;
            if (running == 12) wait(&status), running--;
            running++;
            if (fork() == 0) run(&OPS[i], mode, ns);
        }
    int bad = 0;
    while (running > 0 && wait(&status) > 0) running--, bad |= status;
    same("statuses", "%d", bad);
    return 0;
}
