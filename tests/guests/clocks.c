// All clocks by vDSO and by system call: they agree, go forward, and count at the frame's rate.
//
// Covers: clock_gettime clock_getres gettimeofday time sysinfo
#include "guest.h"
#include <sys/sysinfo.h>
#include <sys/times.h>
#include <sys/timex.h>

static const struct {
    const char *name;
    clockid_t id;
} CLOCKS[] = {
    {"realtime", 0}, {"monotonic", 1}, {"raw", 4}, {"realtime_coarse", 5}, {"monotonic_coarse", 6}, {"boottime", 7}, {"tai", 11},
};
#define CLOCKS_LEN ((int)(sizeof CLOCKS / sizeof *CLOCKS))

static long of_tv(struct timeval t) { return t.tv_sec * SEC + t.tv_usec * 1000; }

// Each value lies between two readings of the reference by the other way (coarse ones may be behind a tick).
static void agree(void) {
    for (int i = 0; i < CLOCKS_LEN; i++) {
        clockid_t id = CLOCKS[i].id;
        long coarse = id == 5 || id == 6, back = 0, worst = 0;
        for (int n = 0; n < 2000; n++) {
            long a = now(id), b = now_raw(id), c = now(id);
            if (b < a || c < b) back++;
            if (b - a > worst) worst = b - a;
        }
        line("= agree.%s backwards %ld", CLOCKS[i].name, back);
        long fine = now(id == 5 ? 0 : id == 6 ? 1 : id), here = now(id);
        line("near agree.%s %ld %ld", CLOCKS[i].name, here, coarse ? fine : now(id));
    }
    struct timeval tv, raw_tv;
    long a = now(0);
    gettimeofday(&tv, NULL);
    R2(SYS_gettimeofday, &raw_tv, NULL);
    long c = now(0);
    line("range gettimeofday %ld %ld %ld", a / 1000, of_tv(tv) / 1000, c / 1000);
    line("range gettimeofday.raw %ld %ld %ld", a / 1000, of_tv(raw_tv) / 1000, c / 1000);
    long s = now(5) / SEC, stored = 0, t = R1(SYS_time, &stored);
    line("range time %ld %ld %ld", s, t, now(5) / SEC);
    line("range time.stored %ld %ld %ld", t, stored, t);
    line("range time.vdso %ld %ld %ld", s, (long)time(NULL), now(5) / SEC);
    struct timex x = {0};
    R1(SYS_adjtimex, &x);
    line("near adjtimex %ld %ld", x.time.tv_sec * SEC + x.time.tv_usec * (x.status & STA_NANO ? 1 : 1000), now(0));
    x = (struct timex){0};
    R2(SYS_clock_adjtime, CLOCK_REALTIME, &x);
    line("near clock_adjtime %ld %ld", x.time.tv_sec * SEC + x.time.tv_usec * (x.status & STA_NANO ? 1 : 1000), now(0));
    SAME("clock_settime.monotonic", R2(SYS_clock_settime, 1, (&(ts_t){1, 0})));
    SAME("clock_settime.bad", R2(SYS_clock_settime, 0, (&(ts_t){-1, 0})));
}

// The page at a fixed address that programs of old call, where the kernel still has it.
static void fixed_page(void) {
    char text[16384], *at = text;
    int fd = open("/proc/self/maps", O_RDONLY);
    for (long n; at < text + sizeof text - 1 && (n = read(fd, at, text + sizeof text - 1 - at)) > 0; at += n) {}
    *at = 0;
    close(fd);
    if (!strstr(text, "[vsyscall]")) return;
    struct timeval tv = {0, 0};
    time_t stored = 0, s = now(5) / SEC;
    for (int i = 0; i < 200; i++) {
        long a = now(0);
        int r = ((int (*)(struct timeval *, void *))0xffffffffff600000)(&tv, NULL);
        long c = now(0);
        if (i == 0 || i == 199) line("range vsyscall.gettimeofday.%d %ld %ld %ld", r, a / 1000, of_tv(tv) / 1000, c / 1000);
    }
    time_t t = ((time_t(*)(time_t *))0xffffffffff600400)(&stored);
    line("range vsyscall.time %ld %ld %ld", s, t, now(5) / SEC);
    line("range vsyscall.time.stored %ld %ld %ld", t, stored, t);
    unsigned core = -1;
    SAME("vsyscall.getcpu", ((int (*)(unsigned *, void *, void *))0xffffffffff600800)(&core, NULL, NULL));
    SAME("vsyscall.getcpu.core", core < 4096);
}

// No second image of the kernel's own, whose clocks would be the host's, while the first is mapped.
static void no_other_image(void) {
    SAME("vdso.again", R2(SYS_arch_prctl, 0x2003, 0));
    SAME("vdso.again.32", R2(SYS_arch_prctl, 0x2002, 0));
    SAME("vdso.again.x32", R2(SYS_arch_prctl, 0x2001, 0));
}

static void rates(void) {
    long v0[CLOCKS_LEN];
    unsigned long c0 = tsc();
    for (int i = 0; i < CLOCKS_LEN; i++) v0[i] = now(CLOCKS[i].id);
    nanosleep(&(ts_t){0, 120 * MS}, NULL);
    for (int i = 0; i < CLOCKS_LEN; i++) {
        long v1 = now(CLOCKS[i].id);
        line("rate %s %ld %lu", CLOCKS[i].name, v1 - v0[i], tsc() - c0);
    }
}

static void resolutions(void) {
    for (int i = 0; i < CLOCKS_LEN; i++) {
        ts_t a, b;
        clock_getres(CLOCKS[i].id, &a);
        R2(SYS_clock_getres, CLOCKS[i].id, &b);
        line("near res.%s %ld %ld", CLOCKS[i].name, ns_of(a), ns_of(b));
        line("value res.%s %ld", CLOCKS[i].name, ns_of(a));
    }
}

// CPU clocks count the program's work, whichever way they are read, and stand still while it sleeps.
static void cpu(void) {
    clockid_t mine;
    clock_getcpuclockid(getpid(), &mine);
    volatile unsigned long x = 0;
    long p0 = now(CLOCK_PROCESS_CPUTIME_ID), t0 = now(CLOCK_THREAD_CPUTIME_ID), pid0 = now(mine);
    while (now(CLOCK_THREAD_CPUTIME_ID) - t0 < 30 * MS)
        for (int i = 0; i < 10000; i++) x += i;
    long p1 = now_raw(CLOCK_PROCESS_CPUTIME_ID), t1 = now_raw(CLOCK_THREAD_CPUTIME_ID), pid1 = now(mine);
    line("range cpu.thread 29000000 %ld 60000000", t1 - t0);
    line("near cpu.process %ld %ld", p1 - p0, t1 - t0);
    line("near cpu.pid %ld %ld", pid1 - pid0, t1 - t0);
    long a = now(CLOCK_PROCESS_CPUTIME_ID);
    nanosleep(&(ts_t){0, 50 * MS}, NULL);
    line("range cpu.asleep 0 %ld 8000000", now(CLOCK_PROCESS_CPUTIME_ID) - a);
}

static void uptime(void) {
    struct sysinfo i;
    long before = now(CLOCK_BOOTTIME) / SEC;
    sysinfo(&i);
    line("range uptime %ld %ld %ld", before, i.uptime, now(CLOCK_BOOTTIME) / SEC + 1);
    SAME("sysinfo.fault", R1(SYS_sysinfo, BAD));
}

// The clocks of alarms, where the machine has one: those that they stand for.
static void alarms(void) {
    static const clockid_t like[][2] = {{8, 0}, {9, 7}};
    for (int i = 0; i < 2; i++) {
        ts_t t, by_vdso;
        long r = R2(SYS_clock_gettime, like[i][0], &t), before = now(like[i][1]);
        line("= alarm.%d %ld %d", (int)like[i][0], r, clock_gettime(like[i][0], &by_vdso));
        if (r) continue;
        R2(SYS_clock_gettime, like[i][0], &t);
        clock_gettime(like[i][0], &by_vdso);
        long after = now(like[i][1]);
        line("range alarm.%d.raw %ld %ld %ld", (int)like[i][0], before, ns_of(t), after);
        line("range alarm.%d.vdso %ld %ld %ld", (int)like[i][0], ns_of(t), ns_of(by_vdso), after);
    }
}

// The CPU clock of another process: what that reads itself before it waits.
static void foreign(void) {
    int ask[2], told[2];
    if (pipe(ask) || pipe(told)) return;
    pid_t pid = fork();
    if (!pid) {
        long used = now(CLOCK_PROCESS_CPUTIME_ID);
        while (now(CLOCK_PROCESS_CPUTIME_ID) - used < 20 * MS);
        used = now(CLOCK_PROCESS_CPUTIME_ID);
        (void)!write(told[1], &used, sizeof used);
        (void)!read(ask[0], &used, 1);
        _exit(0);
    }
    long its = 0, seen;
    (void)!read(told[0], &its, sizeof its);
    nanosleep(&(ts_t){0, 5 * MS}, NULL);
    clockid_t clock;
    line("= foreign %d", clock_getcpuclockid(pid, &clock));
    seen = now(clock);
    line("near foreign %ld %ld", its, seen);
    line("range foreign %ld %ld %ld", 20 * MS, seen, 200 * MS);
    (void)!write(ask[1], "", 1);
    waitpid(pid, NULL, 0);
    line("= foreign.gone %d", clock_gettime(clock, &(ts_t){0, 0}) ? errno : 0);
}

int main(void) {
    agree();
    fixed_page();
    no_other_image();
    alarms();
    foreign();
    rates();
    resolutions();
    cpu();
    uptime();
    return 0;
}
