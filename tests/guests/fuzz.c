// Random calls of the table with random arguments: fuzz SEED EPISODES [FIRST]. A line for each call, with what it gave.
//
// An episode is a process of its own with descriptors, handlers and 40 calls of its own; how it ends is a line too, so
// a call may kill it. Results must not depend on how time passes: waits are short, or something ends them at once, and
// of times only what is sure is printed. Runs as nobody, so that no clock, limit or policy of the host is changed.
//
// Covers: open stat fstat lstat newfstatat statx utime utimes futimesat utimensat poll lseek rt_sigaction rt_sigprocmask ioctl select shmctl nanosleep getitimer alarm setitimer
// setsockopt getsockopt wait4 semctl msgctl gettimeofday getrlimit getrusage sysinfo times rt_sigpending
// rt_sigtimedwait rt_sigsuspend sigaltstack personality sched_setparam sched_getparam sched_setscheduler
// sched_getscheduler signalfd signalfd4 sched_rr_get_interval prctl adjtimex setrlimit settimeofday time futex
// sched_setaffinity sched_getaffinity io_getevents semtimedop timer_create timer_settime timer_gettime clock_settime
// clock_gettime clock_getres clock_nanosleep epoll_wait mq_timedsend mq_timedreceive waitid openat pselect6 ppoll
// epoll_pwait timerfd_settime timerfd_gettime recvmmsg prlimit64 clock_adjtime getcpu sched_setattr sched_getattr
// seccomp io_pgetevents clone3 openat2 epoll_pwait2 futex_waitv futex_wait keyctl unshare setns
// tkill tgkill
// Left out: execve execveat ptrace (seen by the supervisor, not trapped; guest processes, test tracers), rseq
// io_uring_setup io_uring_enter io_uring_register perf_event_open (refused in a frame)
#include "chance.h"
#include <grp.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/msg.h>
#include <sys/timerfd.h>
#include <sys/timex.h>

#define CALLS_EACH 40
// An episode takes some ms.
#define HANG_MS 20000

// What an episode leaves to be removed when it is killed.
static struct { volatile int sem, shm, msg; } *objects;
static int episode, step;
static const char *name;
static volatile int hits[65];
// What the last handler had blocked.
static volatile uint64_t mask_seen;

static long all_hits(void) {
    long sum = 0;
    for (int i = 0; i < 65; i++) sum = sum * 3 + hits[i];
    return sum & 0xffffff;
}
#define SAY(format, ...) line("= %d.%02d %s " format " hits %lx", episode, step, name, __VA_ARGS__, all_hits())

// Descriptors.
static int pipe_fd[2], epoll, event, timer_fd, tcp, udp;
static mqd_t queue;
static aio_context_t aio;

static int fd(void) {
    const int fds[] = {-1, 99, pipe_fd[0], pipe_fd[1], epoll, event, timer_fd, tcp, udp, queue, 2000000};
    return PICK(fds);
}

// Times. No wait of any length that matters: wrong ones, zero, or up to 300 us.
static ts_t brief_time(void) {
    static const ts_t wrong[] = {{-1, 0}, {0, -1}, {0, SEC}, {INT64_MIN, 0}, {0, INT64_MAX}, {0, 0}, {0, 1}};
    return one_in(2) ? PICK(wrong) : (ts_t){0, below(300000)};
}
static void *brief(void) {
    ts_t t = brief_time();
    return at(&t, sizeof t);
}
// For calls that something ends at once.
static void *any_time(void) {
    static const ts_t list[] = {{INT64_MAX, 999999999}, {INT64_MAX, 0}, {5, 0}, {0, 999999999}, {-1, 5}, {1L << 33, 7}};
    return at(&PICK(list), sizeof(ts_t));
}
// An instant that is past, or no instant.
static void *past(void) {
    static const ts_t list[] = {{-1, 0}, {0, -1}, {0, SEC}, {0, 0}, {0, 1}, {1, 5}, {INT64_MIN, 3}};
    return at(&PICK(list), sizeof(ts_t));
}
// An interval and a value, of which no valid one comes while this runs.
static void *spec(void) {
    static const long values[] = {0, 0, 1000000, 3600, -1, INT64_MAX, INT64_MIN};
    static const long parts[] = {0, 0, 1, 999999, 999999999, SEC, 1000000, -1, INT64_MAX};
    long s[4] = {PICK(values), PICK(parts), PICK(values), PICK(parts)};
    if (s[2] == 0 && s[3] > 0) s[2] = 1000;
    return at(s, sizeof s);
}
// What is left of a time, without what depends on when it was asked.
static long about(long sec, long part) {
    if (sec > 100000000 || sec < -100000000) return 9;
    return sec < 0 ? sec : sec == 0 && part == 0 ? 0 : 10 + (sec + 50) / 100;
}
static void say_pair(long r, const void *p) {
    const long *s = p;
    if (r != 0 || held(p) == -77) SAY("%ld", r);
    else SAY("%ld every %ld.%ld left %ld", r, about(s[0], s[1]), s[1], about(s[2], s[3]));
}

// Masks.
static void *a_mask(void) {
    uint64_t set = one_in(2) ? next() : 1UL << below(64);
    return at(&set, 8);
}
static long mask_len(void) { return one_in(6) ? number() : 8; }

// Clocks.
static void do_clock_gettime(void) {
    clockid_t c = a_clock();
    ts_t *p = room(16);
    long r = R2(SYS_clock_gettime, c, p), other = now(c);
    int is_near = r == 0 && held(p) != -77 && labs(ns_of(*p) - other) < 5 * SEC;
    SAY("%ld near %d", r, is_near);
}
static void do_clock_getres(void) {
    void *p = room(16);
    clockid_t c = a_clock();
    long r = R2(SYS_clock_getres, c, p);
    SAY("%ld %ld", r, r || c == 5 || c == 6 ? 0 : held(p));
}
static void do_gettimeofday(void) {
    long *p = room(16);
    long r = R2(SYS_gettimeofday, p, one_in(2) ? NULL : room(8));
    SAY("%ld %d", r, r == 0 && held(p) != -77 && labs(*p - time(NULL)) < 5);
}
static void do_time(void) {
    long r = R1(SYS_time, one_in(2) ? NULL : room(8));
    SAY("%ld", r > 0 ? labs(r - time(NULL)) < 5 : r);
}
static void do_clock_settime(void) { SAY("%ld", R2(SYS_clock_settime, a_clock(), spec())); }
static void do_settimeofday(void) {
    void *t = one_in(2) ? NULL : spec();
    // A null time and a null zone set nothing, and are allowed.
    SAY("%ld", R2(SYS_settimeofday, t, one_in(2) ? NULL : room(8)));
}
static void *a_timex(void) {
    struct timex x = {.modes = one_in(3) ? 0 : 1U << below(16), .tick = number(), .freq = number(), .offset = number()};
    return at(&x, sizeof x);
}
static void say_state(long r) { SAY("%ld", r > 0 ? 0 : r); }
static void do_adjtimex(void) { say_state(R1(SYS_adjtimex, a_timex())); }
static void do_clock_adjtime(void) { say_state(R2(SYS_clock_adjtime, a_clock(), a_timex())); }
static void do_sysinfo(void) { SAY("%ld", R1(SYS_sysinfo, room(112))); }
static void do_times(void) { SAY("%d", R1(SYS_times, room(32)) < 0); }
static void do_getrusage(void) { SAY("%ld", R2(SYS_getrusage, one_in(4) ? number() : below(3) - 1, room(144))); }

// Sleeps and waits.
static void do_nanosleep(void) {
    ts_t *t = brief(), asked = {0, 0};
    if (held(t) != -77) asked = *t;
    long began = mono(), r = R2(SYS_nanosleep, t, room(16));
    SAY("%ld early %d", r, r == 0 && asked.tv_sec == 0 && mono() - began < asked.tv_nsec);
}
static void do_clock_nanosleep(void) {
    static const ts_t refused[] = {{-1, 0}, {0, -1}, {0, SEC}};
    clockid_t c = a_clock();
    long flags = number();
    // A clock of CPU time stands still while its only thread sleeps.
    void *t = c == 2 || c < 0 ? at(&PICK(refused), 16) : flags & 1 ? past() : brief();
    if ((c == 2 || c < 0) && t == sealed) t = BAD;
    SAY("%ld", R4(SYS_clock_nanosleep, c, flags, t, room(16)));
}
static void *two_fds(void) {
    struct pollfd p[2] = {{fd(), POLLIN, 0}, {fd(), POLLOUT, 0}};
    return at(p, sizeof p);
}
static void do_poll(void) { SAY("%ld", R3(SYS_poll, two_fds(), below(3), below(3))); }
static void do_ppoll(void) {
    struct pollfd ready = {pipe_fd[1], POLLOUT, 0};
    int at_once = one_in(3);
    void *t = at_once ? any_time() : brief(), *m = one_in(2) ? NULL : a_mask(), *p = at_once ? &ready : two_fds();
    if (at_once || t != NULL) SAY("%ld", R5(SYS_ppoll, p, at_once ? 1 : below(3), t, m, mask_len()));
}
static char events[64];
static void do_epoll_wait(void) {
    SAY("%ld", R4(SYS_epoll_wait, fd(), one_in(4) ? BAD : events, one_in(3) ? number() : 2, below(3)));
}
static void do_epoll_pwait(void) {
    void *m = one_in(2) ? NULL : a_mask();
    SAY("%ld", R6(SYS_epoll_pwait, fd(), events, one_in(3) ? number() : 2, below(3), m, mask_len()));
}
static void do_epoll_pwait2(void) {
    void *t = brief(), *m = one_in(2) ? NULL : a_mask();
    if (t != NULL) SAY("%ld", R6(SYS_epoll_pwait2, fd(), events, below(3), t, m, mask_len()));
}
// The descriptors of a select: with one that is ready, or none that is.
static void *a_set(int is_ready) {
    static fd_set set;
    FD_ZERO(&set);
    if (is_ready) FD_SET(pipe_fd[1], &set);
    return is_ready ? (void *)&set : at(&set, sizeof set);
}
static void do_select(void) {
    static const struct timeval list[] = {{-1, 0}, {0, -1}, {INT64_MIN, 0}, {0, 0}, {0, 1}, {0, 300}};
    int at_once = one_in(3);
    long fds = at_once ? 64 : one_in(3) ? number() : below(40);
    void *t = at_once ? any_time() : at(&PICK(list), sizeof *list);
    if (at_once || t != NULL) SAY("%ld", R5(SYS_select, fds, NULL, a_set(at_once), NULL, t));
}
static void do_pselect6(void) {
    struct { void *mask; long len; } pack = {one_in(2) ? NULL : a_mask(), mask_len()};
    int at_once = one_in(3);
    void *t = at_once ? any_time() : brief();
    if (!at_once && t == NULL) return;
    SAY("%ld", R6(SYS_pselect6, at_once ? 64 : below(10), NULL, a_set(at_once), NULL, t, one_in(2) ? NULL : at(&pack, 16)));
}
static void do_futex(void) {
    static const int ops[] = {0, 9, 128, 137, 1, 6, 13, 400, 11, 265};
    int word = 5, op = PICK(ops), locks = op == 6 || op == 13;
    void *t = op & 9 ? past() : brief();
    // Without a time only what ends at once: a word that is something else.
    if (t == NULL && locks) return;
    void *place = one_in(4) ? room(4) : (void *)&word;
    long r = R6(SYS_futex, place, op, t == NULL ? 4 : 5 - below(2), t, NULL, one_in(4) ? 0 : -1);
    SAY("%ld", r);
}
static void do_futex_waitv(void) {
    uint32_t word = 5;
    struct { uint64_t value, addr; uint32_t flags, zero; } w = {5 - below(2), (uint64_t)(uintptr_t)&word, 2 | (one_in(4) ? number() : 0), 0};
    void *t = past();
    if (t == NULL) w.value = 4;
    SAY("%ld", R5(SYS_futex_waitv, at(&w, sizeof w), one_in(4) ? below(200) - 1 : 1, one_in(8), t, one_in(3) ? number() : below(2)));
}
static void do_futex_wait(void) {
    uint32_t word = 5;
    void *t = past();
    long value = t == NULL ? 4 : 5 - below(2), clock = one_in(3) ? number() : below(2);
    SAY("%ld", R6(SYS_futex_wait, &word, value, one_in(4) ? 0 : -1, one_in(4) ? number() : 2, t, clock));
}
static void do_semtimedop(void) {
    struct sembuf b = {below(2), -(short)below(2), one_in(2) ? IPC_NOWAIT : 0};
    void *t = brief();
    long count = one_in(3) ? below(2) * 1000 : 1;
    if (t != NULL) SAY("%ld", R4(SYS_semtimedop, one_in(4) ? -1 - below(9) : objects->sem, at(&b, sizeof b), count, t));
}
static void do_mq_timedreceive(void) {
    char out[64];
    void *t = past();
    if (t != NULL) SAY("%ld", R5(SYS_mq_timedreceive, one_in(4) ? fd() : queue, out, one_in(3) ? number() : 64, one_in(2) ? NULL : room(4), t));
}
static void do_mq_timedsend(void) {
    void *t = past();
    if (t != NULL) SAY("%ld", R5(SYS_mq_timedsend, one_in(4) ? fd() : queue, pages, one_in(3) ? number() : 8, below(3), t));
}
static void do_recvmmsg(void) {
    char text[16];
    struct iovec v = {text, sizeof text};
    struct { struct msghdr head; unsigned len; } m = {{.msg_iov = &v, .msg_iovlen = 1}, 0};
    int sent = write(udp, "hello", 5) == 5, dont_wait = sent ? 0 : MSG_DONTWAIT;
    void *t = any_time();
    long r = R5(SYS_recvmmsg, one_in(6) ? fd() : udp, &m, 1, dont_wait | MSG_DONTWAIT * one_in(2), t);
    SAY("%ld %u", r, m.len);
    recv(udp, text, sizeof text, MSG_DONTWAIT);
}
// A negative time never ends here, so there is none.
static void *aio_time(void) {
    ts_t t = {0, below(300000)};
    return at(&t, sizeof t);
}
static void do_io_getevents(void) {
    void *t = aio_time();
    if (t != NULL) SAY("%ld", R5(SYS_io_getevents, one_in(4) ? number() : (long)aio, below(2), 1 + below(2), events, t));
}
static void do_io_pgetevents(void) {
    struct { void *mask; long len; } pack = {one_in(2) ? NULL : a_mask(), mask_len()};
    void *t = aio_time(), *p = one_in(2) ? NULL : at(&pack, 16);
    if (t != NULL) SAY("%ld", R6(SYS_io_pgetevents, one_in(4) ? number() : (long)aio, below(2), 1 + below(2), events, t, p));
}

// Timers.
static void do_timerfd_settime(void) {
    void *s = spec(), *o = one_in(2) ? NULL : room(32);
    long r = R4(SYS_timerfd_settime, one_in(3) ? fd() : timer_fd, one_in(3) ? number() : below(2), s, o);
    say_pair(r, o);
}
static void do_timerfd_gettime(void) {
    void *o = room(32);
    say_pair(R2(SYS_timerfd_gettime, one_in(3) ? fd() : timer_fd, o), o);
}
static int timer_id = -1;
static void do_timer_create(void) {
    if (timer_id >= 0) R1(SYS_timer_delete, timer_id);
    timer_id = -1;
    struct sigevent e = {.sigev_notify = one_in(3) ? (int)number() : SIGEV_NONE, .sigev_signo = below(70)};
    void *p = one_in(3) ? NULL : at(&e, sizeof e);
    int *id = one_in(5) ? BAD : &timer_id;
    SAY("%ld", R3(SYS_timer_create, a_clock(), p, id));
}
static int a_timer(void) { return one_in(6) ? (int)number() | 64 : timer_id; }
static void do_timer_settime(void) {
    void *s = spec(), *o = one_in(2) ? NULL : room(32);
    // Never an instant: it may be past, and a signal comes some time after the call.
    long r = R4(SYS_timer_settime, a_timer(), one_in(4) ? number() & ~1 : 0, s, o);
    say_pair(r, o);
}
static void do_timer_gettime(void) {
    void *o = room(32);
    say_pair(R2(SYS_timer_gettime, a_timer(), o), o);
}
static void do_setitimer(void) {
    void *s = one_in(8) ? NULL : spec(), *o = one_in(2) ? NULL : room(32);
    say_pair(R3(SYS_setitimer, one_in(4) ? number() : below(3), s, o), o);
}
static void do_getitimer(void) {
    void *o = room(32);
    say_pair(R2(SYS_getitimer, one_in(4) ? number() : below(3), o), o);
}
static void do_alarm(void) {
    static const unsigned seconds[] = {0, 5, 1000, INT32_MAX, 1U << 31, UINT32_MAX};
    long before = R1(SYS_alarm, PICK(seconds)), left = R1(SYS_alarm, 0);
    SAY("%ld %ld", about(before, 0), left);
}

// Options of sockets.
static const int SOCKET_TIMES[] = {13, 20, 21, 29, 35, 37, 47, 63, 64, 65, 66, 67}, TCP_TIMES[] = {4, 5, 8, 9, 18, 26, 37, 44, 45, 46};
// Those from which on messages have stamps: where a frame's process lacks CAP_SYS_ADMIN they set no_new_privs.
static int stamps(int level, int option) { return level == SOL_SOCKET && option != 13 && option != 20 && option != 21 && option != 47 && option < 66; }
static void do_setsockopt(void) {
    static const long values[] = {0, 1, 5, 100, 1000, 32767, 32768, 999999, 1000000, -1, INT32_MAX, INT32_MIN, INT64_MAX};
    int level = one_in(12) ? (int)number() : one_in(2) ? SOL_SOCKET : IPPROTO_TCP;
    int option = level == SOL_SOCKET ? PICK(SOCKET_TIMES) : PICK(TCP_TIMES);
    long v[2] = {PICK(values), PICK(values)};
    void *p = at(v, 16);
    if (stamps(level, option) && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0) return;
    SAY("%d %d %ld", level, option, R5(SYS_setsockopt, one_in(4) ? fd() : tcp, level, option, p, one_in(3) ? below(20) : one_in(2) ? 4 : 16));
}
static void do_getsockopt(void) {
    int level = one_in(2) ? SOL_SOCKET : IPPROTO_TCP, option = level == SOL_SOCKET ? PICK(SOCKET_TIMES) : PICK(TCP_TIMES);
    int len = one_in(3) ? (int)number() : 16;
    int *l = one_in(8) ? at(&len, 4) : &len;
    void *p = room(16);
    long r = R5(SYS_getsockopt, one_in(4) ? fd() : tcp, level, option, p, l);
    SAY("%d %d %ld len %d value %lx", level, option, r, r ? 0 : len, r ? 0 : held(p));
}
static void do_ioctl(void) {
    static const int asked[] = {0x8906, 0x8907};
    if (one_in(2) && write(udp, "x", 1) == 1) recv(udp, events, 8, MSG_DONTWAIT);
    SAY("%ld", R3(SYS_ioctl, one_in(3) ? udp : fd(), PICK(asked), room(16)));
}

// Objects of IPC.
static void do_shmctl(void) {
    static const int how[] = {2, 2, 13, 15};
    int cmd = PICK(how);
    SAY("%ld", R3(SYS_shmctl, cmd == 2 && !one_in(4) ? objects->shm : -1 - below(9), cmd, room(112)));
}
static void do_semctl(void) {
    static const int how[] = {2, 2, 18, 20};
    int cmd = PICK(how);
    SAY("%ld", R4(SYS_semctl, cmd == 2 && !one_in(4) ? objects->sem : -1 - below(9), 0, cmd, room(104)));
}
static void do_msgctl(void) {
    static const int how[] = {2, 2, 11, 13};
    int cmd = PICK(how);
    SAY("%ld", R3(SYS_msgctl, cmd == 2 && !one_in(4) ? objects->msg : -1 - below(9), cmd, room(120)));
}

// Children, their usage, and limits.
static int a_zombie(void) {
    int pid = fork();
    if (pid == 0) _exit(below(100));
    siginfo_t i;
    while (waitid(P_PID, pid, &i, WEXITED | WNOWAIT) < 0 && errno == EINTR) {}
    return pid;
}
static void do_wait4(void) {
    int pid = one_in(2) ? a_zombie() : -1;
    int *status = one_in(2) ? NULL : room(4);
    long r = R4(SYS_wait4, pid, status, WNOHANG | (one_in(4) ? number() : 0), one_in(6) ? BAD : pages + 2048);
    SAY("%ld %ld", r == pid && pid > 0 ? 1 : r, r == pid ? held(status) & 0xffff : 0);
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
}
static void do_waitid(void) {
    int pid = one_in(2) ? a_zombie() : (int)number();
    siginfo_t i = {.si_status = -1};
    long r = R5(SYS_waitid, one_in(3) ? below(4) : P_PID, pid, one_in(4) ? room(128) : (void *)&i,
                WNOHANG | (one_in(3) ? number() : WEXITED), room(144));
    SAY("%ld %d", r, i.si_status);
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
}
static void do_clone3(void) {
    static const long flags[] = {0, 0, 1L << 32, 0x800, 1L << 32 | 0x800, 1L << 63, 0xff};
    static const long sizes[] = {0, 63, 64, 80, 88, 96, 128, 129, 4096, 5000};
    long a[16] = {PICK(flags), 0, 0, 0, one_in(4) ? below(70) : SIGCHLD};
    // A signal other than SIGCHLD would come some time later.
    if (a[4] > 0 && a[4] <= 64) a[4] = SIGCHLD;
    if (one_in(6)) a[5 + below(2)] = number();
    void *p = at(a, sizeof a);
    long pid = R2(SYS_clone3, p, one_in(3) ? PICK(sizes) : 88);
    if (pid == 0) _exit(7);
    int status = 0;
    if (pid > 0)
        while (waitpid(pid, &status, __WALL) < 0 && errno == EINTR) {}
    SAY("%ld %x", pid > 0 ? 1 : pid, status);
}
static void do_getrlimit(void) {
    void *p = room(16);
    long r = R2(SYS_getrlimit, one_in(2) ? 16 + below(9) : 0, p);
    SAY("%ld %lx", r, r ? 0 : held(p));
}
// Of CPU time: nothing that an episode could reach.
static void *a_limit(void) {
    static const unsigned long values[] = {3600, 86400, ~0UL, ~0UL >> 1, 1UL << 40, ~0UL - 1};
    unsigned long l[2] = {PICK(values), PICK(values)};
    return at(l, 16);
}
static void do_setrlimit(void) {
    void *p = a_limit();
    if (p != sealed && ((uintptr_t)p & 511) != 511) SAY("%ld", R2(SYS_setrlimit, one_in(3) ? 16 + below(9) : 0, held(p) == 0 ? BAD : p));
}
static void do_prlimit64(void) {
    void *old = one_in(3) ? NULL : room(16), *new = one_in(3) ? a_limit() : NULL;
    if (new == sealed || held(new) == 0) new = BAD;
    long r = R4(SYS_prlimit64, one_in(3) ? -1 : 0, one_in(3) ? 16 + below(9) : 0, new, old);
    SAY("%ld %lx", r, r ? 0 : held(old));
}
static void *a_filter(void) {
    static struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog p = {one_in(4) ? below(2) * 5000 : 1, one_in(5) ? BAD : &allow};
    return at(&p, sizeof p);
}
static void do_prctl(void) {
    long v = one_in(2) ? number() : below(100000), r = 0;
    switch (below(3)) {
    case 0: r = R1(SYS_prctl, PR_GET_SECCOMP); v = 0; break;
    // Strict mode is left out: it can't be had on top of a filter.
    case 1: r = R3(SYS_prctl, PR_SET_SECCOMP, 2, a_filter()); v = 0; break;
    // A long slack would delay this run.
    default: r = R2(SYS_prctl, PR_SET_TIMERSLACK, v); v = R1(SYS_prctl, PR_GET_TIMERSLACK); R2(SYS_prctl, PR_SET_TIMERSLACK, 1000);
    }
    SAY("%ld %ld", r, v);
}
// Keyrings of the process and its threads only, which go with them; nothing that ends while this runs.
static void do_keyctl(void) {
    static const long keys[] = {-1, -2, -2, 0, -9, INT32_MAX};
    static const long seconds[] = {0, 3600, 1L << 32 | 3600, INT32_MAX, UINT32_MAX, 1L << 32};
    SAY("%ld", R3(SYS_keyctl, 15, PICK(keys), PICK(seconds)));
}
// Without a user namespace, in which everyone may make one of time.
static void do_unshare(void) {
    static const long flags[] = {0x80, 0x80, 0x80 | CLONE_FS, 0x80 | CLONE_NEWUTS, 0x81, 0, CLONE_FS, 1L << 32 | 0x80};
    SAY("%ld", R1(SYS_unshare, PICK(flags)));
}
static void do_setns(void) {
    static const long kinds[] = {0, 0, 0x80, 0x80, 0x80 | CLONE_NEWUTS, 0x81, CLONE_NEWUTS, 1L << 32};
    static const char *const files[] = {"/proc/self/ns/time", "/proc/self/ns/uts", "/proc/self/status"};
    int f = one_in(3) ? fd() : open(PICK(files), O_RDONLY | O_CLOEXEC);
    SAY("%ld", R2(SYS_setns, f, PICK(kinds)));
    if (f > udp && f != queue && f < 99) close(f);
}
static void do_seccomp(void) {
    static const long flags[] = {0, 0, 1, 2, 4, 64, 1L << 31};
    SAY("%ld", R3(SYS_seccomp, 1, PICK(flags), a_filter()));
}

// Signals.
static void on_any(int sig) {
    uint64_t mask = 0;
    hits[sig]++;
    R4(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, 8);
    // A frame keeps SIGSYS and SIGTRAP out of the masks of other signals' handlers (LIMITS.md).
    mask_seen = sig == SIGSYS || sig == SIGTRAP ? mask : mask & ~(1UL << (SIGSYS - 1) | 1UL << (SIGTRAP - 1));
}
static void on_info(int sig, siginfo_t *i, void *uc) {
    hits[sig] += 1 + (i->si_signo == sig) + (uc != NULL);
    on_any(sig);
}
// SIGSEGV and its like stay as they are, so that a fault of the run itself ends it.
static const int SIGNALS[] = {SIGSYS, SIGSYS, SIGTRAP, SIGTRAP, SIGUSR1, SIGUSR2, 40, 41};
static void do_rt_sigaction(void) {
    static const int others[] = {SIGKILL, SIGSTOP, 0, 65, 64, -1};
    static const unsigned flags[] = {0, SA_RESTART, SA_NODEFER, SA_RESETHAND, SA_ONSTACK, 0x400, 0x10000000};
    struct { void *f; unsigned long flags; void *restorer; uint64_t mask; } a = {NULL}, o = {NULL};
    int sig = one_in(5) ? PICK(others) : PICK(SIGNALS);
    struct sigaction handler = {.sa_handler = on_any, .sa_flags = PICK(flags) | PICK(flags)};
    if (one_in(2)) handler.sa_flags |= SA_SIGINFO, handler.sa_sigaction = on_info;
    // On a stack that is too small for them natively, handlers of these two run all the same in a frame.
    if (sig == SIGSYS || sig == SIGTRAP) handler.sa_flags &= ~SA_ONSTACK;
    if (one_in(2)) {
        uint64_t mask = next();
        memcpy(&handler.sa_mask, &mask, 8);
        int r = sigaction(sig, &handler, NULL);
        R4(SYS_rt_sigaction, sig, NULL, &o, 8);
        SAY("handler %d %d %lx %lx", sig, r, o.flags, (long)o.mask);
        return;
    }
    a.f = (void *)below(2), a.flags = (unsigned)(one_in(2) ? 0x04000000 : number()), a.mask = next();
    void *p = one_in(3) ? NULL : at(&a, sizeof a);
    long r = R4(SYS_rt_sigaction, sig, p, one_in(5) ? BAD : (void *)&o, mask_len());
    SAY("%d %ld %lx %lx %lx", sig, r, (unsigned long)o.f > 1 ? 2 : (long)o.f, o.flags, (long)o.mask);
}
static void do_rt_sigprocmask(void) {
    void *m = one_in(4) ? NULL : a_mask(), *o = one_in(3) ? NULL : room(8);
    long r = R4(SYS_rt_sigprocmask, one_in(5) ? number() : below(3), m, o, mask_len());
    SAY("%ld %lx", r, r ? 0 : held(o));
}
static void do_rt_sigpending(void) {
    void *p = room(8);
    long len = one_in(3) ? number() : 8, r = R2(SYS_rt_sigpending, p, len);
    SAY("%ld %lx", r, r == 0 && len == 8 ? held(p) : 0);
}
// A signal to itself: handled, held, ignored or the end of the episode.
static void do_send(void) {
    siginfo_t i = {.si_code = SI_QUEUE};
    int sig = PICK(SIGNALS);
    i.si_value.sival_int = below(1000);
    mask_seen = 0;
    long r = one_in(3) ? R3(SYS_tgkill, getpid(), getpid(), sig) : one_in(3) ? R2(SYS_tkill, getpid(), sig) : one_in(2) ? R2(SYS_kill, getpid(), sig) : R3(SYS_rt_sigqueueinfo, getpid(), sig, &i);
    SAY("%d %ld mask %lx", sig, r, (long)mask_seen);
}
// A descriptor for signals, of SIGSYS and SIGTRAP or of others: what waits in it, and then no more.
static void a_signalfd(int has_flags) {
    const uint64_t traps = 1UL << (SIGSYS - 1) | 1UL << (SIGTRAP - 1);
    uint64_t set = one_in(2) ? next() & traps : next() & ~traps;
    struct { uint32_t sig; int32_t error, code; char rest[116]; } record[2] = {{0}, {0}};
    void *mask = at(&set, 8);
    long old = one_in(4) ? fd() : -1, len = mask_len(), flags = one_in(3) ? number() : SFD_NONBLOCK;
    long r = has_flags ? R4(SYS_signalfd4, old, mask, len, flags) : R3(SYS_signalfd, old, mask, len);
    if (r < 0) {
        SAY("%ld", r);
        return;
    }
    struct pollfd ready = {r, POLLIN, 0};
    fcntl(r, F_SETFL, O_NONBLOCK);
    int polled = poll(&ready, 1, 0);
    long got = read(r, record, sizeof record);
    SAY("0 ready %d %d read %ld: %d %d, %d %d", polled, ready.revents, got, record[0].sig, record[0].code, record[1].sig,
        record[1].code);
    close(r);
}
static void do_signalfd(void) { a_signalfd(0); }
static void do_signalfd4(void) { a_signalfd(1); }
static void do_rt_sigtimedwait(void) {
    uint64_t set = next();
    siginfo_t info = {0};
    void *t = brief(), *i = one_in(2) ? NULL : one_in(4) ? room(128) : &info;
    if (t == NULL) return;
    long r = R4(SYS_rt_sigtimedwait, at(&set, 8), i, t, mask_len());
    SAY("%ld %d %d %d", r, info.si_signo, info.si_code, info.si_code == SI_QUEUE ? info.si_value.sival_int : 0);
}
static void do_rt_sigsuspend(void) {
    uint64_t all = ~0UL, before, none = next() & ~(1UL << (SIGUSR1 - 1));
    R4(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8);
    on_signal(SIGUSR1, 0, on_any);
    R2(SYS_kill, getpid(), SIGUSR1);
    void *m = at(&none, 8);
    long r = R2(SYS_rt_sigsuspend, m, mask_len());
    SAY("%ld", r);
    R4(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
}
static void do_sigaltstack(void) {
    static char memory[1 << 16] __attribute__((aligned(64)));
    static const unsigned long sizes[] = {0, 2047, 2048, 4096, 8192, 11264, 16384, 1 << 16};
    static const int flags[] = {0, 0, 0, SS_ONSTACK, SS_DISABLE, 1 << 31, 1 << 31 | SS_DISABLE, 4, -1};
    stack_t s = {memory, PICK(flags), PICK(sizes)}, o = {NULL};
    void *p = one_in(3) ? NULL : at(&s, sizeof s);
    long r = R2(SYS_sigaltstack, p, one_in(4) ? BAD : (void *)&o);
    SAY("%ld %d %x %lx", r, o.ss_sp == memory, o.ss_flags, (long)o.ss_size);
}

// Policies and cores.
static int a_thread(void) { return one_in(3) ? (int)number() | 1 << 30 : 0; }
static void *a_param(void) {
    int param = one_in(3) ? (int)number() : 0;
    return at(&param, 4);
}
static void do_sched_setparam(void) { SAY("%ld", R2(SYS_sched_setparam, a_thread(), a_param())); }
static void do_sched_getparam(void) {
    void *p = room(4);
    long r = R2(SYS_sched_getparam, a_thread(), p);
    SAY("%ld %ld", r, r ? 0 : held(p) & 0xffffffff);
}
static void do_sched_setscheduler(void) {
    SAY("%ld", R3(SYS_sched_setscheduler, a_thread(), one_in(4) ? number() : below(8), a_param()));
}
static void do_sched_getscheduler(void) { SAY("%ld", R1(SYS_sched_getscheduler, a_thread())); }
static void do_sched_rr_get_interval(void) { SAY("%ld", R2(SYS_sched_rr_get_interval, a_thread(), room(16))); }
static void do_sched_setattr(void) {
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t times[3]; } a = {
        one_in(4) ? (uint32_t)number() : 48, below(8), one_in(4) ? 1UL << below(8) : 0, below(3), one_in(3) ? below(3) : 0, {0}};
    SAY("%ld", R3(SYS_sched_setattr, a_thread(), at(&a, sizeof a), one_in(6) ? number() : 0));
}
static void do_sched_getattr(void) {
    SAY("%ld", R4(SYS_sched_getattr, a_thread(), room(56), one_in(3) ? below(100) : 48 + 8 * below(2), one_in(5) ? number() : 0));
}
static void do_sched_setaffinity(void) {
    unsigned long set[4] = {next(), one_in(2) ? 0 : next()};
    long len = one_in(3) ? 8 * below(5) : below(40);
    long r = R3(SYS_sched_setaffinity, a_thread(), len, at(set, sizeof set)), got[16] = {0};
    R3(SYS_sched_getaffinity, 0, sizeof got, got);
    SAY("%ld %lx", r, got[0]);
}
static void do_sched_getaffinity(void) {
    long len = one_in(3) ? below(200) : 8 * below(20);
    long r = R3(SYS_sched_getaffinity, a_thread(), len, one_in(4) ? BAD : pages + 1024);
    SAY("%ld", r);
}
static void do_getcpu(void) { SAY("%ld", R3(SYS_getcpu, room(4), room(4), NULL)); }
static void do_personality(void) {
    // Bits 8 to 15 and 28 to 31 are the frame's, low ones choose another system's habits.
    long v = one_in(3) ? 0xffffffff : 1L << (17 + below(11));
    SAY("%lx", R1(SYS_personality, v));
}

// Files.
static const char *a_path(void) {
    static const char *paths[] = {"/proc/uptime", "/proc/self/stat", "/proc/stat", "/proc/loadavg", "/proc/self/status", "/proc/thread-self/schedstat",
                                  "/dev/null", "/nowhere", "", "/proc", "/proc/self", "/etc/passwd/x"};
    return one_in(8) ? BAD : PICK(paths);
}
static int open_flags(void) {
    static const int flags[] = {O_RDONLY, O_RDONLY, O_WRONLY, O_RDWR, O_CLOEXEC, O_DIRECTORY, O_PATH, O_NONBLOCK, O_NOFOLLOW, O_APPEND, O_NOATIME, 3};
    return PICK(flags) | PICK(flags);
}
static void say_file(long f) {
    char c = 0;
    if (f < 0) { SAY("%ld", f); return; }
    // O_LARGEFILE is the C library's, O_NOFOLLOW can't be set on the file that stands for one of /proc.
    long flags = fcntl(f, F_GETFL) & ~0x28000, seek = R3(SYS_lseek, f, 0, below(2)), got = R3(SYS_read, f, &c, 1);
    SAY("%ld %lx %d %ld %ld %x", f, flags, fcntl(f, F_GETFD), seek, got, c >= '0' && c <= '9' ? '0' : c);
    close(f);
}
static void do_open(void) { say_file(R3(SYS_open, a_path(), open_flags(), 0)); }
static void do_openat(void) { say_file(R4(SYS_openat, one_in(3) ? fd() : AT_FDCWD, a_path(), open_flags(), 0)); }
static void do_openat2(void) {
    uint64_t how[4] = {open_flags(), one_in(5) ? number() : 0, one_in(3) ? 1UL << below(8) : 0, one_in(8)};
    long size = one_in(4) ? below(40) : 24;
    say_file(R4(SYS_openat2, one_in(3) ? fd() : AT_FDCWD, a_path(), at(how, sizeof how), size));
}
static void do_lseek(void) { SAY("%ld", R3(SYS_lseek, fd(), 0, one_in(3) ? number() : 0)); }

// Times of files: `file` is one of its own, which a path names too.
static int file = -1;
static char file_path[32];
static const char *a_file(void) { return one_in(3) ? a_path() : file_path; }
static int a_fd(void) { return one_in(3) ? fd() : file; }
// The times that a call wrote, which begin at `from`: near now, or what they are; of a file of this run only.
static void say_times(long r, const void *out, int from, int step, int count) {
    char text[200] = "";
    for (int i = 0, n = 0; r == 0 && held(out) != -77 && i < count; i++) {
        const struct { long sec; unsigned nsec; } *t = (const void *)((const char *)out + from + i * step);
        int is_now = labs(t->sec - time(NULL)) < 5;
        n += snprintf(text + n, sizeof text - n, " %ld.%u", is_now ? 0 : t->sec, is_now ? 0 : t->nsec);
    }
    SAY("%ld%s", r, text);
}
static void do_stat(void) {
    void *o = room(144);
    say_times(R2(SYS_stat, file_path, o), o, 72, 16, 3);
    SAY("%ld", R2(SYS_stat, a_path(), room(144)));
}
static void do_lstat(void) { SAY("%ld", R2(SYS_lstat, a_file(), room(144))); }
static void do_fstat(void) {
    void *o = room(144);
    say_times(R2(SYS_fstat, file, o), o, 72, 16, 3);
    SAY("%ld", R2(SYS_fstat, fd(), room(144)));
}
static void do_newfstatat(void) {
    static const int flags[] = {0, 0x100, 0x800, 0x1000, 0x4000};
    long f = one_in(4) ? number() : PICK(flags);
    SAY("%ld", R4(SYS_newfstatat, one_in(2) ? AT_FDCWD : a_fd(), one_in(3) ? "" : a_file(), room(144), f));
}
static void do_statx(void) {
    void *o = room(256);
    if (one_in(2)) say_times(R5(SYS_statx, file, "", 0x1000, 0x7ff, o), o, 64, 16, 4);
    else SAY("%ld", R5(SYS_statx, a_fd(), a_file(), one_in(3) ? number() : 0, one_in(3) ? number() : 0x7ff, o));
}
static const long INSTANTS[] = {0, 1, -1, 1000000000, 4102444800, 1L << 33, INT64_MAX, INT64_MIN};
static void *two_times(const long *parts, int count) {
    long t[4] = {PICK(INSTANTS), parts[below(count)], PICK(INSTANTS), parts[below(count)]};
    return one_in(6) ? NULL : at(t, sizeof t);
}
static void do_utimensat(void) {
    static const long parts[] = {0, 1, 999999999, SEC, -1, UTIME_NOW, UTIME_OMIT, 5};
    void *t = two_times(parts, 8);
    long f = one_in(4) ? number() : one_in(3) ? 0x100 : 0;
    if (one_in(2)) SAY("%ld", R4(SYS_utimensat, a_fd(), NULL, t, f));
    else SAY("%ld", R4(SYS_utimensat, one_in(2) ? AT_FDCWD : a_fd(), a_file(), t, f));
}
static const long MICROS[] = {0, 1, 999999, 1000000, -1, 500000};
static void do_utimes(void) { SAY("%ld", R2(SYS_utimes, a_file(), two_times(MICROS, 6))); }
static void do_futimesat(void) {
    SAY("%ld", R3(SYS_futimesat, one_in(2) ? AT_FDCWD : a_fd(), one_in(3) ? NULL : a_file(), two_times(MICROS, 6)));
}
static void do_utime(void) {
    long t[2] = {PICK(INSTANTS), PICK(INSTANTS)};
    SAY("%ld", R2(SYS_utime, a_file(), one_in(6) ? NULL : at(t, sizeof t)));
}

#define ALL(X) X(clock_gettime) X(clock_getres) X(gettimeofday) X(time) X(clock_settime) X(settimeofday) X(adjtimex) \
    X(clock_adjtime) X(sysinfo) X(times) X(getrusage) X(nanosleep) X(clock_nanosleep) X(poll) X(ppoll) X(epoll_wait) \
    X(epoll_pwait) X(epoll_pwait2) X(select) X(pselect6) X(futex) X(futex_waitv) X(futex_wait) X(semtimedop) \
    X(mq_timedreceive) X(mq_timedsend) X(recvmmsg) X(io_getevents) X(io_pgetevents) X(timerfd_settime) \
    X(timerfd_gettime) X(timer_create) X(timer_settime) X(timer_gettime) X(setitimer) X(getitimer) X(alarm) \
    X(setsockopt) X(getsockopt) X(ioctl) X(shmctl) X(semctl) X(msgctl) X(wait4) X(waitid) X(clone3) X(getrlimit) \
    X(setrlimit) X(prlimit64) X(prctl) X(seccomp) X(keyctl) X(unshare) X(setns) X(rt_sigaction) X(rt_sigprocmask) X(rt_sigpending) X(send) \
    X(signalfd) X(signalfd4) X(rt_sigtimedwait) X(rt_sigsuspend) X(sigaltstack) X(sched_setparam) X(sched_getparam) X(sched_setscheduler) \
    X(sched_getscheduler) X(sched_rr_get_interval) X(sched_setattr) X(sched_getattr) X(sched_setaffinity) \
    X(sched_getaffinity) X(getcpu) X(personality) X(open) X(openat) X(openat2) X(lseek) X(stat) X(lstat) X(fstat) \
    X(newfstatat) X(statx) X(utimensat) X(utimes) X(futimesat) X(utime)
#define ROW(n) {#n, do_##n},
static const struct { const char *name; void (*call)(void); } CALLS[] = {ALL(ROW)};

static void open_all(void) {
    static const int clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME};
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof here;
    char queue_name[32];
    struct mq_attr attr = {.mq_maxmsg = 2, .mq_msgsize = 64};
    if (pipe(pipe_fd)) _exit(96);
    epoll = epoll_create1(0);
    event = eventfd(1, EFD_NONBLOCK);
    timer_fd = timerfd_create(PICK(clocks), TFD_NONBLOCK);
    tcp = socket(AF_INET, SOCK_STREAM, 0);
    udp = socket(AF_INET, SOCK_DGRAM, 0);
    file = memfd_create("fuzz", 0);
    snprintf(file_path, sizeof file_path, "/proc/self/fd/%d", file);
    if (bind(udp, (struct sockaddr *)&here, sizeof here) || getsockname(udp, (struct sockaddr *)&here, &len)
        || connect(udp, (struct sockaddr *)&here, len)) _exit(95);
    struct epoll_event e = {EPOLLIN, {.u64 = 0}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, one_in(2) ? event : pipe_fd[0], &e);
    objects->sem = semget(IPC_PRIVATE, 2, 0600);
    objects->shm = shmget(IPC_PRIVATE, 4096, 0600);
    objects->msg = msgget(IPC_PRIVATE, 0600);
    sprintf(queue_name, "/fuzz-%d", getpid());
    queue = mq_open(queue_name, O_RDWR | O_CREAT, 0600, &attr);
    mq_unlink(queue_name);
    // Its end takes 30 ms.
    if (one_in(8)) R2(SYS_io_setup, 4, &aio);
}
static void run_episode(void) {
    open_all();
    if (one_in(2)) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    // Most episodes live on when a signal comes.
    for (unsigned i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
        if (!one_in(6)) on_signal(SIGNALS[i], SIGNALS[i] > SIGSYS && one_in(3) ? SA_ONSTACK : 0, on_any);
    for (step = 0; step < CALLS_EACH; step++) {
        int which = below(sizeof CALLS / sizeof *CALLS);
        name = CALLS[which].name;
        CALLS[which].call();
    }
}
static void remove_objects(void) {
    semctl(objects->sem, 0, IPC_RMID);
    shmctl(objects->shm, IPC_RMID, NULL);
    msgctl(objects->msg, IPC_RMID, NULL);
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    int count = argc > 2 ? atoi(argv[2]) : 10, first = argc > 3 ? atoi(argv[3]) : 0;
    if (geteuid() == 0 && (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))) return 97;
    struct timex tick = {.modes = ADJ_TICK};
    if (R1(SYS_adjtimex, &tick) != -EPERM) return 98;
    prctl(PR_SET_DUMPABLE, 1);
    // Linux hands a stack's flags on through exec: they are those of whoever ran this.
    stack_t none = {.ss_flags = SS_DISABLE};
    sigaltstack(&none, NULL);
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    pages = mmap(NULL, PLACES * 8192 + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    objects = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < PLACES; i++) mprotect(pages + i * 8192 + 4096, 4096, PROT_NONE);
    sealed = pages + PLACES * 8192;
    mprotect(sealed, 4096, PROT_READ);
    for (episode = first; episode < first + count; episode++) {
        state = (seed * 1000003 + episode) * 2 + 1;
        for (int i = 0; i < 8; i++) next();
        int pid = fork(), status = 0;
        if (pid == 0) {
            run_episode();
            _exit(0);
        }
        struct pollfd ended = {syscall(SYS_pidfd_open, pid, 0), POLLIN, 0};
        int hangs = poll(&ended, 1, HANG_MS) == 0;
        if (hangs) kill(pid, SIGKILL);
        close(ended.fd);
        waitpid(pid, &status, 0);
        remove_objects();
        line("= %d.end %s %x", episode, hangs ? "hangs" : "ends", status & ~0x80);
    }
    return 0;
}
