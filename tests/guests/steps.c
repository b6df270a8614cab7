// Steps of the wall clock while others wait for an instant of it: each wait ends when the stepped clock shows that instant,
// never before, and waits by a span are left alone. Nor is a wait early by a clock that is made slower. Only in frames:
// natively this would set the host's clock.
//
// Covers: clock_settime adjtimex clock_nanosleep futex mq_timedreceive timer_settime timerfd_settime setitimer
#include "guest.h"
#include <linux/futex.h>
#include <mqueue.h>
#include <sys/timerfd.h>
#include <sys/timex.h>

#define SPAN (1 * SEC)
// The clock is stepped so long after the waits began.
#define STEP_AFTER (400 * MS)
// How late a wait may end on a busy machine.
#define LATE (700 * MS)

static long ahead;

static ts_t at(clockid_t id) { return in(id, ahead); }

static void sleeps(clockid_t id) {
    ts_t t = at(id);
    clock_nanosleep(id, TIMER_ABSTIME, &t, NULL);
}
static void sleeps_real(void) { sleeps(CLOCK_REALTIME); }
static void sleeps_tai(void) { sleeps(CLOCK_TAI); }
static void waits_for_a_word(void) {
    int word = 0;
    ts_t t = at(CLOCK_REALTIME);
    R6(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, &t, NULL, -1);
}
static void waits_for_a_message(void) {
    char text[8192];
    mqd_t q = mq_open("/diecast-steps", O_CREAT | O_RDWR, 0600, NULL);
    mq_unlink("/diecast-steps");
    ts_t t = at(CLOCK_REALTIME);
    mq_timedreceive(q, text, sizeof text, NULL, &t);
}
static void read_timerfd(int flags, struct itimerspec t) {
    long ticks;
    int fd = timerfd_create(CLOCK_REALTIME, 0);
    timerfd_settime(fd, flags, &t, NULL);
    if (read(fd, &ticks, sizeof ticks) != sizeof ticks || ticks != 1) line("= timerfd.ticks %ld", ticks);
}
static void reads_a_timerfd(void) { read_timerfd(TFD_TIMER_ABSTIME, (struct itimerspec){.it_value = at(CLOCK_REALTIME)}); }
static void wait_for_timer(clockid_t id, int flags, struct itimerspec t) {
    timer_t timer;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    timer_create(id, NULL, &timer);
    timer_settime(timer, flags, &t, NULL);
    sigwaitinfo(&set, NULL);
}
static void waits_for_a_timer(void) { wait_for_timer(CLOCK_REALTIME, TIMER_ABSTIME, (struct itimerspec){.it_value = at(CLOCK_REALTIME)}); }
static void waits_for_a_tai_timer(void) { wait_for_timer(CLOCK_TAI, TIMER_ABSTIME, (struct itimerspec){.it_value = at(CLOCK_TAI)}); }

static void sleeps_a_span(void) {
    ts_t t = ts_of(SPAN);
    clock_nanosleep(CLOCK_REALTIME, 0, &t, NULL);
}
static void reads_a_timerfd_of_a_span(void) { read_timerfd(0, (struct itimerspec){.it_value = ts_of(SPAN)}); }
static void waits_for_a_timer_of_a_span(void) { wait_for_timer(CLOCK_REALTIME, 0, (struct itimerspec){.it_value = ts_of(SPAN)}); }

static const struct {
    const char *name;
    void (*f)(void);
    int span;
} WAITS[] = {
    {"nanosleep", sleeps_real, 0}, {"nanosleep.tai", sleeps_tai, 0}, {"futex", waits_for_a_word, 0},
    {"mq", waits_for_a_message, 0}, {"timerfd", reads_a_timerfd, 0}, {"timer", waits_for_a_timer, 0},
    {"timer.tai", waits_for_a_tai_timer, 0}, {"nanosleep.span", sleeps_a_span, 1},
    {"timerfd.span", reads_a_timerfd_of_a_span, 1}, {"timer.span", waits_for_a_timer_of_a_span, 1},
};

// Waits for an instant `distance` ahead, while the clock jumps by `jump`.
static void step(const char *what, long distance, long jump) {
    ahead = distance;
    for (unsigned i = 0; i < sizeof WAITS / sizeof *WAITS; i++) {
        if (fork()) continue;
        char name[64];
        snprintf(name, sizeof name, "%s.%s", what, WAITS[i].name);
        long real = now(CLOCK_REALTIME), began = mono();
        WAITS[i].f();
        long took = mono() - began, shown = now(CLOCK_REALTIME) - real;
        // What is past once the clock was stepped ends then.
        long least = WAITS[i].span ? SPAN : distance - jump > 0 ? distance - jump : 0;
        long most = (least > STEP_AFTER ? least : STEP_AFTER) + LATE;
        line("range %s %ld %ld %ld", name, least, took, most);
        if (!WAITS[i].span) same(name, "shown %d", shown >= distance);
        _exit(0);
    }
    ts_t pause = ts_of(STEP_AFTER);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    ts_t t = in(CLOCK_REALTIME, jump);
    same(what, "%ld", R2(SYS_clock_settime, CLOCK_REALTIME, &t));
    // What is set right after the step is not moved by it.
    long began = mono();
    ahead = SPAN;
    reads_a_timerfd();
    line("range %s.timerfd.after 0 %ld %ld", what, mono() - began - SPAN, LATE);
    began = mono();
    waits_for_a_timer();
    line("range %s.timer.after 0 %ld %ld", what, mono() - began - SPAN, LATE);
    while (wait(NULL) > 0) {}
}

static void polls_a_span(void) { poll(NULL, 0, SPAN / MS); }
static void waits_for_a_word_for_a_span(void) {
    int word = 0;
    ts_t t = ts_of(SPAN);
    R6(SYS_futex, &word, FUTEX_WAIT, 0, &t, NULL, 0);
}
static void sleeps_until(void) {
    ts_t t = in(CLOCK_MONOTONIC, SPAN);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

// Waits of a second, while the clock is made a tenth slower: by it they are no shorter.
static void slow(void) {
    static const struct {
        const char *name;
        void (*f)(void);
    } WAITS[] = {{"nanosleep", sleeps_a_span}, {"poll", polls_a_span}, {"futex", waits_for_a_word_for_a_span}, {"until", sleeps_until}};
    for (unsigned i = 0; i < sizeof WAITS / sizeof *WAITS; i++) {
        if (fork()) continue;
        long began = mono();
        WAITS[i].f();
        line("range slow.%s %ld %ld %ld", WAITS[i].name, SPAN, mono() - began, SPAN + LATE);
        _exit(0);
    }
    ts_t pause = ts_of(STEP_AFTER);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    struct timex x = {.modes = ADJ_TICK, .tick = 9000};
    SAME("slow", R1(SYS_adjtimex, &x) < 0);
    while (wait(NULL) > 0) {}
}

// A period whose signal waits while the timers of its process are held, for a step of the clock, goes on.
static void waiting_period(void) {
    const long every = 50 * MS;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    timer_t timer;
    struct sigevent e = {.sigev_notify = SIGEV_NONE};
    struct itimerspec far = {.it_value = in(CLOCK_REALTIME, 1000 * SEC)};
    timer_create(CLOCK_REALTIME, &e, &timer);
    timer_settime(timer, TIMER_ABSTIME, &far, NULL);
    struct itimerval i = {tv_of(every), tv_of(every)};
    setitimer(ITIMER_REAL, &i, NULL);
    ts_t pause = ts_of(3 * every), within = ts_of(4 * SEC), t;
    nanosleep(&pause, NULL);
    t = in(CLOCK_REALTIME, SEC);
    clock_settime(CLOCK_REALTIME, &t);
    // The supervisor may hold them a while after the call.
    pause = ts_of(STEP_AFTER);
    nanosleep(&pause, NULL);
    sigtimedwait(&set, NULL, &within);
    long lost = 0, began = mono();
    for (int k = 0; k < 5; k++) lost += sigtimedwait(&set, NULL, &within) != SIGALRM;
    line("range period.five %ld %ld %ld", 4 * every, mono() - began, 5 * every + LATE);
    same("period.lost", "%ld", lost);
    getitimer(ITIMER_REAL, &i);
    same("period.changed", "%ld", (long)i.it_interval.tv_usec - every / 1000);
}

int main(void) {
    in_child(waiting_period);
    step("ahead", 60 * SEC, 58 * SEC);
    step("beyond", 60 * SEC, 100 * SEC);
    step("back", 1 * SEC, -1500 * MS);
    slow();
    return 0;
}
