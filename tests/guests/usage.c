// CPU time in all its forms agrees with itself, and timers and limits count it.
//
// Covers: getrusage times wait4 waitid setrlimit getrlimit prlimit64 prctl seccomp
#include "guest.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/times.h>

static long tv_ns(struct timeval t) { return t.tv_sec * SEC + t.tv_usec * 1000L; }
static long cpu_of(const struct rusage *u) { return tv_ns(u->ru_utime) + tv_ns(u->ru_stime); }
static long used(int who) {
    struct rusage u;
    getrusage(who, &u);
    return cpu_of(&u);
}

// Burns so much of the guest's own CPU time.
static void burn(long ns) {
    long until = now(CLOCK_PROCESS_CPUTIME_ID) + ns;
    while (now(CLOCK_PROCESS_CPUTIME_ID) < until) {}
}

static void self(void) {
    long p0 = now(CLOCK_PROCESS_CPUTIME_ID), u0 = used(RUSAGE_SELF), t0 = used(RUSAGE_THREAD);
    struct tms before, after;
    long c0 = times(&before);
    long m = mono();
    burn(200 * MS);
    long c1 = times(&after), p = now(CLOCK_PROCESS_CPUTIME_ID) - p0, wall = mono() - m;
    line("near usage.self %ld %ld", p, used(RUSAGE_SELF) - u0);
    line("near usage.thread %ld %ld", p, used(RUSAGE_THREAD) - t0);
    long ticks = after.tms_utime + after.tms_stime - before.tms_utime - before.tms_stime;
    line("range usage.times %ld %ld %ld", p / 10000000 - 3, ticks, p / 10000000 + 3);
    line("range usage.times.wall %ld %ld %ld", wall / 10000000 - 1, c1 - c0, wall / 10000000 + 1);
    long last = 0, back = 0;
    for (int i = 0; i < 3000; i++) {
        long u = used(RUSAGE_SELF);
        back += u < last;
        last = u;
    }
    SAME("usage.backwards", back);
    SAME("getrusage.bad", R2(SYS_getrusage, 5, &before));
    SAME("getrusage.fault", R2(SYS_getrusage, RUSAGE_SELF, BAD));
    SAME("times.fault", R1(SYS_times, BAD));
}

// A child starts at zero, whatever its parent's meter has cost.
static void child(void) {
    burn(100 * MS);
    long c[2];
    int p[2];
    if (pipe(p)) _exit(90);
    pid_t pid = fork();
    if (pid == 0) {
        long first = now(CLOCK_PROCESS_CPUTIME_ID);
        burn(100 * MS);
        c[0] = now(CLOCK_PROCESS_CPUTIME_ID) - first;
        c[1] = used(RUSAGE_SELF) - first;
        line("near child.self %ld %ld", c[0], c[1]);
        line("range child.first 0 %ld 10000000", first);
        if (write(p[1], c, sizeof c) != sizeof c) _exit(91);
        _exit(0);
    }
    struct rusage u = {0};
    int status;
    SAME("wait4", R4(SYS_wait4, pid, &status, 0, &u) == pid);
    if (read(p[0], c, sizeof c) != sizeof c) _exit(92);
    line("near child.wait4 %ld %ld", c[0], cpu_of(&u));
    line("near child.children %ld %ld", c[0], used(RUSAGE_CHILDREN));
    if ((pid = fork()) == 0) {
        burn(50 * MS);
        _exit(3);
    }
    siginfo_t i = {0};
    memset(&u, 0xff, sizeof u);
    SAME("waitid.nohang", R5(SYS_waitid, P_PID, pid, &i, WEXITED | WNOHANG, &u));
    SAME("waitid", R5(SYS_waitid, P_PID, pid, &i, WEXITED, &u));
    line("near child.waitid 50000000 %ld", cpu_of(&u));
    same("waitid.status", "%d", i.si_status);
    SAME("wait4.none", R4(SYS_wait4, -1, &status, 0, &u));
    SAME("wait4.fault", (pid = fork()) == 0 ? (_exit(0), 0) : R4(SYS_wait4, pid, &status, 0, BAD));
}

// What the meter costs a child in its parent's memory is no part of the parent's clock.
static void of_vfork(void) {
    sigset_t set;
    // As posix_spawn does. Who has made no call by then is not told from its child.
    sigprocmask(SIG_BLOCK, NULL, &set);
    long used = now(CLOCK_PROCESS_CPUTIME_ID);
    pid_t pid = vfork();
    if (pid == 0) {
        long first = now(CLOCK_THREAD_CPUTIME_ID);
        while (now(CLOCK_THREAD_CPUTIME_ID) - first < 1000 * MS) {}
        _exit(0);
    }
    SAME("vfork.wait", R4(SYS_wait4, pid, NULL, 0, NULL) == pid);
    long p = now(CLOCK_PROCESS_CPUTIME_ID), t = now(CLOCK_THREAD_CPUTIME_ID);
    line("range vfork.waits 0 %ld 20000000", p - used);
    while (now(CLOCK_THREAD_CPUTIME_ID) - t < 100 * MS) {}
    t = now(CLOCK_THREAD_CPUTIME_ID) - t, p = now(CLOCK_PROCESS_CPUTIME_ID) - p;
    line("range vfork.parent %ld %ld %ld", t * 8 / 10, p, t * 12 / 10);
}

static volatile int fired;
static void count(int sig) { fired += sig > 0; }

// One timer of 40 ms of CPU time, then periods of 30 ms: never early, at most a few of the kernel's ticks late.
static void timer_on(const char *name, clockid_t clock, clockid_t measured) {
    timer_t t;
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    signal(SIGUSR1, count);
    fired = 0;
    if (R3(SYS_timer_create, clock, &e, &t)) _exit(93);
    long id = 0;
    memcpy(&id, &t, 4);
    struct itimerspec s = {{0, 0}, ts_of(60 * MS)}, got;
    long c0 = now(measured);
    R4(SYS_timer_settime, id, 0, &s, NULL);
    R2(SYS_timer_gettime, id, &got);
    line("range %s.left 30000000 %ld 60000000", name, ns_of(got.it_value));
    while (!fired) {}
    line("wait %s 60000000 %ld", name, now(measured) - c0);
    R2(SYS_timer_gettime, id, &got);
    line("= %s.fired %d left %ld", name, fired, ns_of(got.it_value));
    s = (struct itimerspec){ts_of(30 * MS), ts_of(30 * MS)};
    fired = 0;
    c0 = now(measured);
    R4(SYS_timer_settime, id, 0, &s, NULL);
    while (fired < 6) {}
    line("wait %s.periodic 180000000 %ld", name, now(measured) - c0);
    struct itimerspec off = {{0, 0}, {0, 0}};
    R4(SYS_timer_settime, id, 0, &off, &got);
    line("= %s.interval %ld", name, ns_of(got.it_interval));
    line("range %s.old 1 %ld 30000000", name, ns_of(got.it_value));
    s = (struct itimerspec){{0, 0}, ts_of(now(measured) + 50 * MS)};
    fired = 0;
    R4(SYS_timer_settime, id, TIMER_ABSTIME, &s, NULL);
    while (!fired) {}
    line("range %s.absolute 0 %ld 30000000", name, now(measured) - ns_of(s.it_value));
}
static void process_timer(void) { timer_on("timer.process", CLOCK_PROCESS_CPUTIME_ID, CLOCK_PROCESS_CPUTIME_ID); }
static void thread_timer(void) { timer_on("timer.thread", CLOCK_THREAD_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID); }

static void itimers(void) {
    signal(SIGPROF, count);
    signal(SIGVTALRM, count);
    struct itimerval v = {{0, 40000}, {0, 40000}}, got, off = {{0, 0}, {0, 0}};
    fired = 0;
    long c0 = now(CLOCK_PROCESS_CPUTIME_ID);
    SAME("itimer.prof", R3(SYS_setitimer, ITIMER_PROF, &v, NULL));
    while (fired < 5) {}
    // The kernel counts these two by its tick, not by the clock that is read here.
    line("range itimer.prof 185000000 %ld 400000000", now(CLOCK_PROCESS_CPUTIME_ID) - c0);
    SAME("itimer.off", R3(SYS_setitimer, ITIMER_PROF, &off, &got));
    same("itimer.old", "%ld", (long)got.it_interval.tv_usec);
    SAME("itimer.get", R2(SYS_getitimer, ITIMER_PROF, &got));
    same("itimer.none", "%ld %ld", (long)got.it_value.tv_usec, (long)got.it_interval.tv_usec);
    fired = 0;
    SAME("itimer.virtual", R3(SYS_setitimer, ITIMER_VIRTUAL, &v, NULL));
    c0 = now(CLOCK_PROCESS_CPUTIME_ID);
    while (fired < 2) {}
    line("range itimer.virtual 70000000 %ld 400000000", now(CLOCK_PROCESS_CPUTIME_ID) - c0);
    v.it_value.tv_usec = 1000000;
    SAME("itimer.bad", R3(SYS_setitimer, ITIMER_PROF, &v, NULL));
    SAME("itimer.which", R3(SYS_setitimer, 3, &off, NULL));
}

static void limits(void) {
    struct rlimit l, got;
    static const rlim_t large[][2] = {{3999999998, RLIM_INFINITY}, {150000000, 300000000}, {100000000, 100000002}};
    for (int i = 0; i < 3; i++) {
        l = (struct rlimit){large[i][0], large[i][1]};
        long r = R2(SYS_setrlimit, RLIMIT_CPU, &l);
        getrlimit(RLIMIT_CPU, &got);
        same("limits.large", "%d %ld %ld %ld", i, r, (long)got.rlim_cur, (long)got.rlim_max);
    }
    l = (struct rlimit){100, 200};
    SAME("setrlimit", setrlimit(RLIMIT_CPU, &l));
    getrlimit(RLIMIT_CPU, &got);
    same("getrlimit", "%ld %ld", (long)got.rlim_cur, (long)got.rlim_max);
    l.rlim_cur = 50;
    SAME("prlimit", R4(SYS_prlimit64, 0, RLIMIT_CPU, &l, &got));
    same("prlimit.old", "%ld", (long)got.rlim_cur);
    R2(SYS_getrlimit, RLIMIT_CPU, &got);
    same("getrlimit.raw", "%ld %ld", (long)got.rlim_cur, (long)got.rlim_max);
    SAME("prlimit.fault", R4(SYS_prlimit64, 0, RLIMIT_CPU, BAD, NULL));
    l = (struct rlimit){2, 1};
    SAME("setrlimit.bad", R2(SYS_setrlimit, RLIMIT_CPU, &l));
    R4(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &got);
    SAME("prlimit.other", got.rlim_cur > 0);
}

// SIGXCPU comes after two seconds of the program's own CPU time, by the kernel's tick.
static volatile long exceeded;
static void on_limit(int sig) { exceeded = sig == SIGXCPU ? now(CLOCK_PROCESS_CPUTIME_ID) : -1; }
static void limit_met(void) {
    struct rlimit l = {2, 30};
    signal(SIGXCPU, on_limit);
    SAME("limit", setrlimit(RLIMIT_CPU, &l));
    while (!exceeded) {}
    line("range limit.met 1900000000 %ld 2400000000", exceeded);
}

// The clock of user time alone, by number, after that of all CPU time; the kernel counts it by its tick.
static void user_clocks(void) {
    static char room[1 << 16];
    clockid_t process = ~getpid() * 8 | 1, thread = (clockid_t)(~R0(SYS_gettid)) * 8 | 5;
    int zero = open("/dev/zero", O_RDONLY);
    long before[] = {now(CLOCK_PROCESS_CPUTIME_ID), now(process), now(thread)};
    while (now(CLOCK_PROCESS_CPUTIME_ID) - before[0] < 300 * MS) {
        for (int i = 0; i < 20; i++)
            if (read(zero, room, sizeof room) <= 0) _exit(94);
    }
    line("range user.process.kernel 0 %ld 150000000", now(process) - before[1]);
    line("range user.thread.kernel 0 %ld 150000000", now(thread) - before[2]);
    // Ticks meet the slices of a busy machine's frame at random, about 75 in 300 ms, give or take 9: one measurement in three
    // must hold.
    long all, of_process, of_thread;
    for (int left = 3; left > 0; left--) {
        all = now(CLOCK_PROCESS_CPUTIME_ID);
        before[1] = now(process), before[2] = now(thread);
        for (long m = mono(); mono() - m < 300 * MS;) {}
        all = now(CLOCK_PROCESS_CPUTIME_ID) - all;
        of_process = now(process) - before[1], of_thread = now(thread) - before[2];
        if (of_process >= all * 7 / 10 && of_process <= all + 30 * MS && of_thread >= all * 7 / 10 && of_thread <= all + 30 * MS)
            break;
    }
    line("range user.process %ld %ld %ld", all * 7 / 10, of_process, all + 30 * MS);
    line("range user.thread %ld %ld %ld", all * 7 / 10, of_thread, all + 30 * MS);
    close(zero);
}

// Which part of a child's CPU time is system time, as `time` shows it: hardly any of a loop's, nearly all of reads. The kernel's
// ticks meet 400 ms of it about a hundred times; one measurement in three must hold.
static long system_percent(int reads) {
    static char room[1 << 16];
    struct rusage before, after;
    getrusage(RUSAGE_CHILDREN, &before);
    pid_t pid = fork();
    if (pid == 0) {
        int zero = open("/dev/zero", O_RDONLY);
        for (long end = now(CLOCK_PROCESS_CPUTIME_ID) + 400 * MS; now(CLOCK_PROCESS_CPUTIME_ID) < end;) {
            if (reads)
                for (int i = 0; i < 20; i++)
                    if (read(zero, room, sizeof room) <= 0) _exit(94);
            for (volatile int i = 0; !reads && i < 1000000; i++) {}
        }
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    getrusage(RUSAGE_CHILDREN, &after);
    long system = tv_ns(after.ru_stime) - tv_ns(before.ru_stime);
    return system * 100 / (cpu_of(&after) - cpu_of(&before) + 1);
}

static void modes(void) {
    long loop = 100, reads = 0;
    for (int left = 3; left > 0 && loop > 8; left--) loop = system_percent(0);
    for (int left = 3; left > 0 && reads < 75; left--) reads = system_percent(1);
    line("range modes.loop 0 %ld 8", loop);
    line("range modes.reads 75 %ld 100", reads);
}

static void slack(void) {
    SAME("slack", prctl(PR_GET_TIMERSLACK));
    SAME("slack.set", prctl(PR_SET_TIMERSLACK, 7000));
    SAME("slack.get", prctl(PR_GET_TIMERSLACK));
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    sigprocmask(SIG_BLOCK, &one, NULL);
    SAME("slack.kept", prctl(PR_GET_TIMERSLACK));
    SAME("slack.default", (prctl(PR_SET_TIMERSLACK, 0), prctl(PR_GET_TIMERSLACK)));
}

// Short waits in milliseconds last as long as those in nanoseconds: a frame below TDF 1 has no whole real ones.
static void short_polls(void) {
    struct pollfd f = {-1, 0, 0};
    long took[2] = {0, 0};
    for (int i = 0; i < 400; i++) {
        ts_t t = {0, MS};
        long m = mono();
        if (i & 1) R3(SYS_poll, &f, 1, 1);
        else R5(SYS_ppoll, &f, 1, &t, NULL, 0);
        took[i & 1] += mono() - m;
    }
    line("near polls.short %ld %ld", took[0], took[1]);
    line("range polls.short 200000000 %ld 4000000000", took[1]);
}

// A sandbox that knows poll and epoll_wait, not ppoll and epoll_pwait2.
static void sandbox(void) {
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog p = {sizeof f / sizeof *f, f};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    SAME("seccomp", R3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p));
    struct pollfd d = {-1, 0, 0};
    long m = mono();
    SAME("sandbox.poll", R3(SYS_poll, &d, 1, 20));
    line("wait sandbox.poll 20000000 %ld", mono() - m);
    execl("/proc/self/exe", "usage", "as", "sandboxed", NULL);
}

int main(int argc, char **argv) {
    int half = argc == 2 && !strcmp(argv[1], "limits");
    if (argc == 3) {
        struct pollfd d = {-1, 0, 0};
        same(argv[2], "%ld", R3(SYS_poll, &d, 1, 20));
        return 0;
    }
    // As long as the other half.
    static const struct {
        const char *name;
        void (*f)(void);
        int half;
    } parts[] = {{"self", self, 0}, {"child", child, 0}, {"process_timer", process_timer, 0}, {"thread_timer", thread_timer, 0},
        {"itimers", itimers, 0}, {"of_vfork", of_vfork, 1}, {"limits", limits, 1}, {"limit_met", limit_met, 1}, {"user_clocks", user_clocks, 1},
        {"modes", modes, 0},
        {"slack", slack, 0}, {"short_polls", short_polls, 0}, {"sandbox", sandbox, 0}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].half == half) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
