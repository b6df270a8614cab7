// Timers: when they fire, how often, and what they say is left.
//
// Covers: getitimer setitimer alarm timer_create timer_settime timer_gettime timerfd_settime timerfd_gettime keyctl
#include "guest.h"
#include <sys/resource.h>
#include <sys/timerfd.h>

static volatile int fired;
static void count(int sig) { fired += sig != 0; }

static void until_fired(int n) {
    sigset_t block, old;
    sigemptyset(&block);
    sigaddset(&block, SIGALRM);
    sigprocmask(SIG_BLOCK, &block, &old);
    while (fired < n) sigsuspend(&old);
    sigprocmask(SIG_SETMASK, &old, NULL);
}

static void took(const char *name, long asked, long since, unsigned long c0) {
    long v = mono() - since;
    line("wait %s %ld %ld", name, asked, v);
    line("rate %s %ld %lu", name, v, tsc() - c0);
}

static void posix(const char *name, clockid_t id, int absolute) {
    timer_t t;
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    fired = 0;
    if (R3(SYS_timer_create, id, &e, &t)) _exit(91);
    long kid = 0;
    memcpy(&kid, &t, 4);
    // Before the end is set: what passes in between, such as a hit's sleep, must not show as earliness.
    unsigned long c0 = tsc();
    long m = mono();
    struct itimerspec s = {{0, 0}, absolute ? in(id, 40 * MS) : ts_of(40 * MS)}, got;
    SAME(name, R4(SYS_timer_settime, kid, absolute, &s, NULL));
    R2(SYS_timer_gettime, kid, &got);
    line("range %s.left 1 %ld 40000000", name, ns_of(got.it_value));
    until_fired(1);
    took(name, 40 * MS, m, c0);
    R2(SYS_timer_gettime, kid, &got);
    line("= %s.expired %ld", name, ns_of(got.it_value));
}

static void posix_monotonic(void) { posix("timer.monotonic", CLOCK_MONOTONIC, 0); }
static void posix_realtime(void) { posix("timer.realtime", CLOCK_REALTIME, 0); }
static void posix_abs_monotonic(void) { posix("timer.abs.monotonic", CLOCK_MONOTONIC, TIMER_ABSTIME); }
static void posix_abs_realtime(void) { posix("timer.abs.realtime", CLOCK_REALTIME, TIMER_ABSTIME); }
static void posix_abs_boottime(void) { posix("timer.abs.boottime", CLOCK_BOOTTIME, TIMER_ABSTIME); }
static void posix_abs_tai(void) { posix("timer.abs.tai", CLOCK_TAI, TIMER_ABSTIME); }

// Numbers of timers grow for as long as a process makes some, whether or not it deletes them.
static void posix_many(void) {
    struct sigevent e = {.sigev_notify = SIGEV_NONE};
    for (int i = 0; i < 1100; i++) {
        int id = -1;
        if (R3(SYS_timer_create, CLOCK_MONOTONIC, &e, &id) || R1(SYS_timer_delete, id)) _exit(94);
    }
    posix("timer.many.realtime", CLOCK_REALTIME, TIMER_ABSTIME);
    posix("timer.many.boottime", CLOCK_BOOTTIME, TIMER_ABSTIME);
    posix("timer.many.relative", CLOCK_MONOTONIC, 0);
    timer_t t;
    timer_create(CLOCK_PROCESS_CPUTIME_ID, &(struct sigevent){.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM}, &t);
    struct itimerspec s = {{0, 0}, ts_of(40 * MS)}, got;
    struct itimerval none;
    fired = 0;
    long p = now(CLOCK_PROCESS_CPUTIME_ID);
    timer_settime(t, 0, &s, NULL);
    timer_gettime(t, &got);
    line("range timer.many.cpu.left 20000000 %ld 40000000", ns_of(got.it_value));
    getitimer(ITIMER_VIRTUAL, &none);
    same("timer.many.cpu.alone", "%ld", (long)none.it_value.tv_usec);
    while (!fired) {}
    // The meter's own time is the kernel's to count here.
    line("range timer.many.cpu 5000000 %ld 75000000", now(CLOCK_PROCESS_CPUTIME_ID) - p);
}

// A key that ends after 2 s: the kernel counts whole seconds, so up to one of its own earlier.
static void keys(void) {
    long id = R5(SYS_add_key, "user", "diecast", "x", 1, -2);
    char c;
    SAME("key.made", id > 0);
    SAME("key.timeout", R3(SYS_keyctl, 15, id, 2));
    SAME("key.timeout.none", R3(SYS_keyctl, 15, 0x7ffffff0, 2));
    nanosleep(&(ts_t){0, 800 * MS}, NULL);
    SAME("key.before", R4(SYS_keyctl, 11, id, &c, 1));
    nanosleep(&(ts_t){1, 300 * MS}, NULL);
    SAME("key.after", R4(SYS_keyctl, 11, id, &c, 1));
    id = R5(SYS_add_key, "user", "diecast-2", "x", 1, -2);
    R3(SYS_keyctl, 15, id, 1);
    SAME("key.never", R3(SYS_keyctl, 15, id, 0));
    nanosleep(&(ts_t){1, 100 * MS}, NULL);
    SAME("key.lives", R4(SYS_keyctl, 11, id, &c, 1));
}

// Five periods of 20 ms after a first 10 ms; overruns counted.
static void periodic(void) {
    timer_t t;
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    timer_create(CLOCK_MONOTONIC, &e, &t);
    struct itimerspec s = {ts_of(20 * MS), ts_of(10 * MS)}, got;
    fired = 0;
    unsigned long c0 = tsc();
    long m = mono();
    timer_settime(t, 0, &s, NULL);
    until_fired(5);
    took("timer.periodic", 90 * MS, m, c0);
    timer_gettime(t, &got);
    line("= timer.periodic.interval %ld", ns_of(got.it_interval));
}

static void cpu_timer(void) {
    timer_t t;
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    timer_create(CLOCK_PROCESS_CPUTIME_ID, &e, &t);
    struct itimerspec s = {{0, 0}, ts_of(40 * MS)};
    fired = 0;
    long p = now(CLOCK_PROCESS_CPUTIME_ID);
    timer_settime(t, 0, &s, NULL);
    while (!fired) {}
    line("range timer.cpu 40000000 %ld 75000000", now(CLOCK_PROCESS_CPUTIME_ID) - p);
}

static void itimer(void) {
    struct itimerval v = {{0, 0}, {0, 40000}}, got;
    fired = 0;
    unsigned long c0 = tsc();
    long m = mono();
    setitimer(ITIMER_REAL, &v, NULL);
    getitimer(ITIMER_REAL, &got);
    line("range itimer.left 1 %ld 40000", (long)got.it_value.tv_usec);
    until_fired(1);
    took("itimer", 40 * MS, m, c0);
    v.it_interval.tv_usec = 20000;
    fired = 0;
    c0 = tsc(), m = mono();
    setitimer(ITIMER_REAL, &v, NULL);
    until_fired(3);
    took("itimer.periodic", 80 * MS, m, c0);
    setitimer(ITIMER_REAL, NULL, NULL);
    getitimer(ITIMER_REAL, &got);
    line("= itimer.disarmed %ld %ld", (long)got.it_value.tv_usec, (long)got.it_interval.tv_usec);
}

// Intervals that Linux can't hold read back as the longest that it can.
static void endless_intervals(void) {
    struct itimerval v = {{INT64_MAX, 0}, {3600, 0}}, got;
    setitimer(ITIMER_REAL, &v, NULL);
    getitimer(ITIMER_REAL, &got);
    line("= itimer.endless %ld %ld", (long)got.it_interval.tv_sec, (long)got.it_interval.tv_usec);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    struct itimerspec s = {{INT64_MAX, 999999999}, {3600, 0}}, left;
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, NULL, &timer);
    timerfd_settime(fd, 0, &s, NULL), timer_settime(timer, 0, &s, NULL);
    timerfd_gettime(fd, &left);
    line("= timerfd.endless %ld %ld", (long)left.it_interval.tv_sec, left.it_interval.tv_nsec);
    timer_gettime(timer, &left);
    line("= timer.endless %ld %ld", (long)left.it_interval.tv_sec, left.it_interval.tv_nsec);
    timer_delete(timer);
    close(fd);
}

static void alarms(void) {
    fired = 0;
    unsigned long c0 = tsc();
    long m = mono();
    SAME("alarm.first", R1(SYS_alarm, 1));
    SAME("alarm.left", R1(SYS_alarm, 1));
    until_fired(1);
    took("alarm", 1000 * MS, m, c0);
}

static void usec_carry(void) {
    struct timeval t = {0, 1050000};
    unsigned long c0 = tsc();
    long m = mono();
    SAME("select.carry", R5(SYS_select, 0, NULL, NULL, NULL, &t));
    took("select.carry", 1050 * MS, m, c0);
}

// Interval timers outlive exec and are not inherited by a child.
static void inherited(void) {
    struct itimerval v = {{0, 0}, {50, 0}}, got;
    setitimer(ITIMER_REAL, &v, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        getitimer(ITIMER_REAL, &got);
        line("= itimer.child %ld", (long)got.it_value.tv_sec);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    execl("/proc/self/exe", "timers", "left", NULL);
}

static void timerfd_periodic(void) {
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    unsigned long c0 = tsc();
    long m = mono();
    struct itimerspec s = {ts_of(20 * MS), in(CLOCK_MONOTONIC, 10 * MS)}, got;
    R4(SYS_timerfd_settime, fd, TFD_TIMER_ABSTIME, &s, NULL);
    nanosleep(&(ts_t){0, 75 * MS}, NULL);
    uint64_t ticks = 0, more = 0;
    if (read(fd, &ticks, 8) != 8) _exit(92);
    line("range timerfd.ticks 4 %lu 9", ticks);
    while (ticks < 6 && read(fd, &more, 8) == 8) ticks += more;
    long v = mono() - m;
    line("range timerfd.periodic %ld %ld %ld", 10 * MS + (long)(ticks - 1) * 20 * MS - MS, v, 30 * MS + (long)(ticks - 1) * 20 * MS + 40 * MS);
    line("rate timerfd.periodic %ld %lu", v, tsc() - c0);
    R2(SYS_timerfd_gettime, fd, &got);
    line("= timerfd.interval %ld", ns_of(got.it_interval));
    line("range timerfd.left 1 %ld 20000000", ns_of(got.it_value));
    // The clock of a duplicate, inherited by a child, is still known.
    int real = dup(timerfd_create(CLOCK_REALTIME, 0));
    pid_t pid = fork();
    if (pid == 0) {
        c0 = tsc(), m = mono();
        struct itimerspec a = {{0, 0}, in(CLOCK_REALTIME, 30 * MS)};
        R4(SYS_timerfd_settime, real, TFD_TIMER_ABSTIME, &a, NULL);
        if (read(real, &more, 8) != 8) _exit(93);
        took("timerfd.duplicate", 30 * MS, m, c0);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}

// Where no descriptor is left to ask /proc with, too.
static void timerfd_alone(const char *name, clockid_t id) {
    int fd = timerfd_create(id, 0);
    struct itimerspec s = {ts_of(50 * MS), ts_of(5 * SEC)}, old = {{0, 0}, {0, 0}};
    timerfd_settime(fd, 0, &s, NULL);
    struct rlimit none;
    getrlimit(RLIMIT_NOFILE, &none);
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    unsigned long c0 = tsc();
    long m = mono();
    s = (struct itimerspec){{0, 0}, in(id, 40 * MS)};
    SAME(name, R4(SYS_timerfd_settime, fd, TFD_TIMER_ABSTIME, &s, &old));
    uint64_t ticks = 0;
    if (read(fd, &ticks, 8) != 8) _exit(92);
    took(name, 40 * MS, m, c0);
    same("timerfd.alone.ticks", "%lu %ld", ticks, ns_of(old.it_interval));
    line("range timerfd.alone.old 4500000000 %ld 5000000000", ns_of(old.it_value));
    s.it_value.tv_nsec = SEC;
    SAME("timerfd.alone.bad", R4(SYS_timerfd_settime, fd, TFD_TIMER_ABSTIME, &s, NULL));
    SAME("timerfd.alone.flags", R4(SYS_timerfd_settime, fd, 5, &old, NULL));
    SAME("timerfd.alone.none", R4(SYS_timerfd_settime, 1000, TFD_TIMER_ABSTIME, &old, NULL));
    SAME("timerfd.alone.other", R4(SYS_timerfd_settime, 1, TFD_TIMER_ABSTIME, &old, NULL));
}
static void timerfd_real(void) { timerfd_alone("timerfd.alone.realtime", CLOCK_REALTIME); }
static void timerfd_mono(void) { timerfd_alone("timerfd.alone.monotonic", CLOCK_MONOTONIC); }
static void timerfd_boot(void) { timerfd_alone("timerfd.alone.boottime", CLOCK_BOOTTIME); }

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "left")) {
        struct itimerval got;
        getitimer(ITIMER_REAL, &got);
        line("range itimer.after_exec 48 %ld 50", (long)got.it_value.tv_sec);
        return 0;
    }
    if (argc > 1) {
        keys();
        return 0;
    }
    signal(SIGALRM, count);
    static void (*const parts[])(void) = {posix_monotonic, posix_realtime, posix_abs_monotonic, posix_abs_realtime,
        posix_abs_boottime, posix_abs_tai, posix_many, periodic, cpu_timer, itimer, endless_intervals, alarms,
        usec_carry, inherited, timerfd_periodic, timerfd_real, timerfd_mono, timerfd_boot};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (fork() == 0) {
            parts[i]();
            _exit(0);
        }
    int status, bad = 0;
    while (wait(&status) > 0) bad |= status;
    same("statuses", "%d", bad);
    return 0;
}
