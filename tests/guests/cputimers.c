// Sleeps that count CPU time.
//
// Covers: clock_nanosleep
#include "guest.h"
#include <pthread.h>

static void burn(long ns) {
    long until = now(CLOCK_THREAD_CPUTIME_ID) + ns;
    while (now(CLOCK_THREAD_CPUTIME_ID) < until) {}
}
static void *burn_300(void *unused) {
    burn(300 * MS);
    return unused;
}

// A sleep by the process's CPU time lasts that long by its own clock.
static void sleeps(void) {
    pthread_t t;
    pthread_create(&t, NULL, burn_300, NULL);
    ts_t s = ts_of(100 * MS), left = {0, 0};
    long p = now(CLOCK_PROCESS_CPUTIME_ID);
    SAME("sleep.relative", R4(SYS_clock_nanosleep, CLOCK_PROCESS_CPUTIME_ID, 0, &s, &left));
    line("wait sleep.relative 100000000 %ld", now(CLOCK_PROCESS_CPUTIME_ID) - p);
    same("sleep.untouched", "%ld", ns_of(left));
    p = now(CLOCK_PROCESS_CPUTIME_ID);
    s = ts_of(p + 100 * MS);
    SAME("sleep.absolute", R4(SYS_clock_nanosleep, CLOCK_PROCESS_CPUTIME_ID, TIMER_ABSTIME, &s, NULL));
    line("wait sleep.absolute 100000000 %ld", now(CLOCK_PROCESS_CPUTIME_ID) - p);
    SAME("sleep.past", R4(SYS_clock_nanosleep, CLOCK_PROCESS_CPUTIME_ID, TIMER_ABSTIME, &s, NULL));
    s = ts_of(0);
    SAME("sleep.zero", R4(SYS_clock_nanosleep, CLOCK_PROCESS_CPUTIME_ID, 0, &s, NULL));
    SAME("sleep.own", R4(SYS_clock_nanosleep, CLOCK_THREAD_CPUTIME_ID, 0, &s, NULL));
    SAME("sleep.none", R4(SYS_clock_nanosleep, ~0x3ffffffu << 3 | 2, 0, &s, NULL));
    pthread_join(t, NULL);
}

// What is left of it after a signal.
static void nothing(int sig) { (void)sig; }
static void interrupted(void) {
    on_signal(SIGALRM, 0, nothing);
    struct itimerval soon = {{0, 0}, {0, 20000}};
    ts_t s = ts_of(10 * SEC), left = {0, 0};
    setitimer(ITIMER_REAL, &soon, NULL);
    SAME("sleep.interrupted", R4(SYS_clock_nanosleep, CLOCK_PROCESS_CPUTIME_ID, 0, &s, &left));
    line("range sleep.left 9900000000 %ld 10000000000", ns_of(left));
}

int main(void) {
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"sleeps", sleeps}, {"interrupted", interrupted}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f));
    return 0;
}
