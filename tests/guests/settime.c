// Setting the clock: in a frame the node's own, never the host's. Without an argument only what the kernel refuses,
// which is the same natively; `set` sets it.
//
// Covers: clock_settime settimeofday adjtimex clock_adjtime
#include "guest.h"
#include <linux/capability.h>
#include <sys/timerfd.h>
#include <sys/timex.h>

static long adj(struct timex *x) { return R1(SYS_adjtimex, x); }
static struct timex modes(unsigned m) { return (struct timex){.modes = m}; }

// Values that no kernel takes, and their order.
static void refused(const char *who) {
    ts_t bad = {-1, 0}, nsec = {1, SEC}, far = {8277292036, 0}, before_boot = {0, 0};
    line("= %s.clock_settime %ld %ld %ld %ld %ld", who, R2(SYS_clock_settime, 0, &bad), R2(SYS_clock_settime, 0, &nsec),
         R2(SYS_clock_settime, 0, &far), R2(SYS_clock_settime, 0, BAD), R2(SYS_clock_settime, 0, NULL));
    line("= %s.before_boot %ld", who, R2(SYS_clock_settime, 0, &before_boot));
    for (int id = 1; id <= 12; id++) line("= %s.clock.%d %ld", who, id, R2(SYS_clock_settime, id, (&(ts_t){1, 0})));
    struct timeval usec = {1, 1000001}, whole = {1, 1000000}, past = {-1, 0};
    line("= %s.settimeofday %ld %ld %ld %ld %ld", who, R2(SYS_settimeofday, &usec, NULL),
         R2(SYS_settimeofday, &whole, NULL), R2(SYS_settimeofday, &past, NULL), R2(SYS_settimeofday, BAD, NULL),
         R2(SYS_settimeofday, NULL, BAD));
    line("= %s.settimeofday.zone %ld %ld %ld", who, R2(SYS_settimeofday, NULL, (&(int[2]){901, 0})),
         R2(SYS_settimeofday, NULL, (&(int[2]){-901, 0})), R2(SYS_settimeofday, &past, BAD));
    line("= %s.settimeofday.nothing %ld", who, R2(SYS_settimeofday, NULL, NULL));
    struct timex x = modes(ADJ_TICK);
    line("= %s.tick %ld", who, adj(&x));
    x.tick = 11001;
    line("= %s.tick.far %ld", who, adj(&x));
    x = modes(0x8000);
    line("= %s.adjtime.alone %ld", who, adj(&x));
    x = modes(ADJ_FREQUENCY);
    x.freq = INT64_MAX;
    line("= %s.freq.far %ld", who, adj(&x));
    x = modes(ADJ_SETOFFSET);
    x.time.tv_usec = -1;
    line("= %s.setoffset.negative %ld", who, adj(&x));
    x.time.tv_usec = 1000000;
    line("= %s.setoffset.usec %ld", who, adj(&x));
    x = modes(ADJ_SETOFFSET | ADJ_NANO);
    x.time.tv_usec = SEC;
    line("= %s.setoffset.nsec %ld", who, adj(&x));
    x = modes(ADJ_SETOFFSET);
    x.time.tv_sec = -(1L << 40);
    line("= %s.setoffset.before_boot %ld", who, adj(&x));
    line("= %s.adjtimex %ld %ld", who, adj(BAD), adj(NULL));
    for (int id = 1; id <= 12; id++) line("= %s.clock_adjtime.%d %ld", who, id, R2(SYS_clock_adjtime, id, &x));
    x = modes(0xa001);
    line("= %s.adjtime.read %d", who, adj(&x) >= 0);
    x = modes(0);
    long state = adj(&x);
    line("= %s.read %d tolerance %ld precision %ld pps %ld", who, state >= 0, x.tolerance, x.precision, x.calcnt);
}

// The same without CAP_SYS_TIME; what would set anything comes here too.
static void not_permitted(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2];
    R2(SYS_capget, &head, caps);
    caps[0].effective &= ~(1u << CAP_SYS_TIME);
    R2(SYS_capset, &head, caps);
    refused("unprivileged");
    ts_t here = {now(0) / SEC, 0};
    struct timeval tv = {here.tv_sec, 0};
    line("= unprivileged.set %ld %ld", R2(SYS_clock_settime, 0, &here), R2(SYS_settimeofday, &tv, NULL));
    static const unsigned each[] = {ADJ_OFFSET, ADJ_FREQUENCY, ADJ_MAXERROR, ADJ_STATUS, ADJ_TAI, ADJ_NANO, 0x8001};
    for (unsigned i = 0; i < sizeof each / sizeof *each; i++) {
        struct timex x = modes(each[i]);
        line("= unprivileged.mode.%x %ld %ld", each[i], adj(&x), R2(SYS_clock_adjtime, 0, &x));
    }
}

static long ahead(void) {
    long a = now(1), r = now(0), b = now(1);
    return r - (a + b) / 2;
}

static void step(void) {
    long real = now(0), began = mono(), before = ahead();
    SAME("set", R2(SYS_clock_settime, 0, (&(ts_t){1234567890, 500000000})));
    long after = now(0);
    line("range set.real 1234567890500000000 %ld 1234567890600000000", after);
    line("range set.raw_call 1234567890500000000 %ld 1234567890600000000", now_raw(0));
    line("range set.time 1234567890 %ld 1234567891", (long)time(NULL));
    line("range set.monotonic_goes_on 0 %ld 100000000", mono() - began);
    line("near set.tai %ld %ld", now(CLOCK_TAI), now(0));
    struct timex x = modes(0);
    SAME("set.state", adj(&x));
    line("= set.unsync %d %ld %ld", !!(x.status & STA_UNSYNC), x.maxerror, x.esterror);
    // Relative sleeps don't notice, another process does.
    long t0 = mono();
    nanosleep(&(ts_t){0, 30 * MS}, NULL);
    line("wait set.nanosleep %ld %ld", 30 * MS, mono() - t0);
    pid_t pid = fork();
    if (pid == 0) {
        line("range set.in_a_child 1234567890500000000 %ld 1234567891500000000", now(0));
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    // What it would be now had nobody set it.
    struct timeval tv = tv_of(real + mono() - began);
    SAME("set.back", R2(SYS_settimeofday, &tv, NULL));
    line("near set.back.ahead %ld %ld", ahead(), before);
    before = ahead();
    x = modes(ADJ_SETOFFSET | ADJ_NANO);
    x.time = (struct timeval){-2, 250000000};
    line("= setoffset %ld", adj(&x));
    line("range setoffset.by -1750010000 %ld -1749990000", ahead() - before);
    x = modes(ADJ_SETOFFSET | ADJ_MICRO);
    x.time = (struct timeval){1, 750000};
    R2(SYS_clock_adjtime, 0, &x);
    line("range setoffset.back -20000 %ld 20000", ahead() - before);
    // An absolute wait that begins now ends by the new clock.
    clock_settime(0, &(ts_t){2000000000, 0});
    t0 = mono();
    clock_nanosleep(0, TIMER_ABSTIME, &(ts_t){2000000000, 50 * MS}, NULL);
    line("range set.absolute 45000000 %ld 100000000", mono() - t0);
    t0 = mono();
    int fd = timerfd_create(0, 0);
    long n;
    ts_t at = ts_of(now(0) + 40 * MS);
    timerfd_settime(fd, TFD_TIMER_ABSTIME, &(struct itimerspec){{0, 0}, at}, NULL);
    if (read(fd, &n, 8) != 8) n = -1;
    line("range set.timerfd 39000000 %ld 100000000", mono() - t0);
    clock_settime(0, &(ts_t){real / SEC, real % SEC});
}

// How much further one clock gets while another counts `ns`.
static long over(clockid_t of, clockid_t by, long ns) {
    long a = now(by), x = now(of);
    while (now(by) - a < ns) nanosleep(&(ts_t){0, 5 * MS}, NULL);
    long b = now(by), y = now(of);
    return ((y - x) - (b - a)) * ns / (b - a);
}

static void rates(void) {
    struct timex x = modes(ADJ_FREQUENCY);
    x.freq = 500L << 16;
    SAME("freq", adj(&x) >= 0);
    x = modes(0);
    adj(&x);
    line("= freq.reads_back %ld", x.freq);
    nanosleep(&(ts_t){0, 5 * MS}, NULL);
    // 500 ppm of 400 ms, on MONOTONIC and REALTIME, not on RAW.
    line("range freq.monotonic 190000 %ld 215000", over(1, 4, 400 * MS));
    line("range freq.realtime 190000 %ld 215000", over(0, 4, 400 * MS));
    line("range freq.boottime -15000 %ld 15000", over(7, 1, 100 * MS));
    x = modes(ADJ_FREQUENCY | ADJ_TICK);
    x.tick = 9000;
    adj(&x);
    x = modes(0);
    adj(&x);
    line("= tick.reads_back %ld %ld", x.tick, x.freq);
    nanosleep(&(ts_t){0, 5 * MS}, NULL);
    line("range tick.monotonic -20100000 %ld -19900000", over(1, 4, 200 * MS));
    // Waits are as long as the clock that they are asked on.
    for (int i = 0; i < 5; i++) {
        long t0 = now(1);
        nanosleep(&(ts_t){0, 20 * MS}, NULL);
        line("wait tick.nanosleep %ld %ld", 20 * MS, now(1) - t0);
        t0 = now(1);
        ts_t until = ts_of(t0 + 20 * MS);
        clock_nanosleep(1, TIMER_ABSTIME, &until, NULL);
        line("wait tick.absolute %ld %ld", 20 * MS, now(1) - t0);
    }
    struct itimerspec every = {{0, 12345678}, {0, 20 * MS}}, old;
    int fd = timerfd_create(1, 0);
    timerfd_settime(fd, 0, &every, NULL);
    timerfd_gettime(fd, &old);
    line("= tick.interval %ld", ns_of(old.it_interval));
    x = modes(ADJ_TICK | ADJ_FREQUENCY);
    x.tick = 10000;
    adj(&x);
    nanosleep(&(ts_t){0, 5 * MS}, NULL);
    line("range rates.back -15000 %ld 15000", over(1, 4, 100 * MS));
}

static void slews(void) {
    struct timeval by = {0, 100}, left = {0, 0};
    SAME("adjtime", adjtime(&by, NULL));
    adjtime(NULL, &left);
    line("range adjtime.left 50 %ld 100", (long)left.tv_usec);
    line("range adjtime.gains 85000 %ld 115000", over(1, 4, 300 * MS));
    adjtime(NULL, &left);
    line("= adjtime.done %ld %ld", (long)left.tv_sec, (long)left.tv_usec);
    struct timex x = modes(ADJ_STATUS | ADJ_NANO | ADJ_TIMECONST | ADJ_MAXERROR | ADJ_ESTERROR);
    x.status = STA_PLL;
    x.constant = 0;
    line("= pll %ld", adj(&x));
    x = modes(ADJ_OFFSET);
    x.offset = 4 * MS;
    long state = adj(&x);
    line("= pll.offset %ld %ld status %d", state, x.offset, x.status);
    nanosleep(&(ts_t){0, 2 * MS}, NULL);
    // A quarter of it in the first second.
    line("range pll.gains 480000 %ld 520000", over(1, 4, 500 * MS));
    // Switched off, it would go on with the rest.
    x = modes(ADJ_OFFSET);
    adj(&x);
    x = modes(ADJ_STATUS | ADJ_FREQUENCY);
    adj(&x);
    line("= pll.off %d %ld", x.status & STA_PLL, x.freq);
    nanosleep(&(ts_t){0, 5 * MS}, NULL);
    line("range slews.over -15000 %ld 15000", over(1, 4, 100 * MS));
    x = modes(ADJ_TAI);
    x.constant = 37;
    adj(&x);
    line("= tai %d", x.tai);
    line("range tai.ahead 36999900000 %ld 37000100000", now(CLOCK_TAI) - now(0));
    struct timezone zone = {-120, 1}, mine = {0, 0};
    SAME("zone", R2(SYS_settimeofday, NULL, &zone));
    gettimeofday(&by, &mine);
    line("= zone.vdso %d %d", mine.tz_minuteswest, mine.tz_dsttime);
    mine = (struct timezone){0, 0};
    R2(SYS_gettimeofday, NULL, &mine);
    line("= zone.call %d %d", mine.tz_minuteswest, mine.tz_dsttime);
}

// A leap second announced shortly before the end of a day: what adjtimex says, and how far the clocks go.
static void leap(const char *name, int bit) {
    ts_t evening = {19000L * 86400 + (bit == STA_INS ? 86398 : 86397), 800 * MS};
    clock_settime(0, &evening);
    struct timex x = modes(ADJ_STATUS | ADJ_MAXERROR | ADJ_TAI | ADJ_NANO);
    x.status = bit;
    x.constant = 37;
    long announced = adj(&x), real = now(0), mono_then = now(1), tai = now(CLOCK_TAI), states = 0, last = announced;
    while (now(1) - mono_then < (bit == STA_INS ? 2500 : 1500) * MS) {
        x = modes(0);
        long state = adj(&x);
        if (state != last) states = states * 10 + state;
        last = state;
        nanosleep(&(ts_t){0, 50 * MS}, NULL);
    }
    x = modes(0);
    adj(&x);
    long a = now(0), m = now(1);
    line("= leap.%s announced %ld then %ld tai %d status %x", name, announced, states, x.tai, x.status & (STA_INS | STA_DEL));
    line("near leap.%s %ld %ld", name, a - real, m - mono_then + (bit == STA_INS ? -SEC : SEC));
    line("near leap.%s.tai %ld %ld", name, now(CLOCK_TAI) - tai, now(1) - mono_then);
    x = modes(ADJ_STATUS);
    line("= leap.%s.over %ld", name, adj(&x));
}

// While another process changes the rates all the time, no clock goes back.
static void monotone(void) {
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0;; i++) {
            struct timex x = modes(ADJ_TICK);
            x.tick = i % 2 ? 9000 : 11000;
            adj(&x);
            x = modes(0x8001);
            x.offset = i % 3 ? 100000 : -100000;
            adj(&x);
        }
    }
    long back = 0, last = 0, raw_back = 0, raw_last = 0, end = now(4) + 300 * MS;
    while (now(4) < end)
        for (int i = 0; i < 100; i++) {
            long t = now(1), r = now(4);
            back += t < last;
            raw_back += r < raw_last;
            last = t, raw_last = r;
        }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    line("= monotone %ld %ld", back, raw_back);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "set")) {
        step();
        rates();
        slews();
        monotone();
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "leap")) {
        leap("insert", STA_INS);
        leap("delete", STA_DEL);
        return 0;
    }
    // As root nothing here gets as far as setting the clock, but for the order of the checks.
    if (in_child(not_permitted) != 0) line("= child failed");
    refused("root");
    return 0;
}
