// A thread whose packets tell what it uses has done that when it looks for more to do: by the clock no less time has passed than
// it has worked. With an address it sends one after each piece of work; without, it may be asleep for it in its midst.
//
// Covers: epoll_wait epoll_pwait2 epoll_pwait poll ppoll select pselect6
#include "guest.h"
#include <netdb.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define WORK (400 * 1000L)

static int epoll, never, ready;
static struct pollfd one;

static int to = -1;
static struct addrinfo *peer;

static void burn(long ns) {
    long until = now(CLOCK_THREAD_CPUTIME_ID) + ns;
    while (now(CLOCK_THREAD_CPUTIME_ID) < until) {}
}

static void sleep_for(long ns) {
    ts_t t = ts_of(ns);
    nanosleep(&t, NULL);
}

// A piece of work, and its answer.
static void work(void) {
    burn(WORK);
    if (to >= 0 && sendto(to, "done", 4, 0, peer->ai_addr, peer->ai_addrlen) < 0) _exit(93);
}

// Long enough for the meter to know this thread, and what its packets tell.
static void known(void) {
    burn(50 * MS);
    for (int i = 0; to >= 0 && i < 40; i++) {
        sleep_for(WORK);
        work();
    }
}

static int look_epoll(void) {
    struct epoll_event e;
    return epoll_wait(epoll, &e, 1, 0);
}
static int look_forever(void) {
    struct epoll_event e;
    return epoll_wait(epoll, &e, 1, -1);
}
static int look_pwait(void) {
    struct epoll_event e;
    return epoll_pwait(epoll, &e, 1, 1000, NULL);
}
static int look_pwait2(void) {
    struct epoll_event e;
    return R6(SYS_epoll_pwait2, epoll, &e, 1, NULL, NULL, 8);
}
static int look_poll(void) { return poll(&one, 1, 1000); }
static int ppoll_on(int fd, long ns) {
    struct pollfd p = {fd, POLLIN, 0};
    ts_t t = ts_of(ns);
    return ppoll(&p, 1, &t, NULL);
}
static int select_on(int fd, long ns) {
    fd_set set;
    struct timeval t = tv_of(ns);
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return select(fd + 1, &set, NULL, NULL, &t);
}
static int look_ppoll(void) { return ppoll_on(ready, SEC); }
static int look_select(void) { return select_on(ready, SEC); }

// Of what remains of its work each look may leave a part of a slice: the mean is not far from it.
static void looks(const char *name, int (*look)(void)) {
    enum { ROUNDS = 20 };
    long worked = 0, took = 0, found = 0, short_ones = 0;
    for (int i = 0; i < ROUNDS; i++) {
        sleep_for(WORK);
        long m = mono(), c = now(CLOCK_THREAD_CPUTIME_ID);
        work();
        c = now(CLOCK_THREAD_CPUTIME_ID) - c;
        found += look();
        m = mono() - m;
        took += m, worked += c;
        short_ones += m < c / 2;
    }
    same(name, "%ld", found);
    // What the host took, and the rest of the world, is in it.
    line("range %s.took %ld %ld %ld", name, worked * 3 / 4, took, worked * 3);
    line("range %s.short 0 %ld %d", name, short_ones, ROUNDS / 10);
}

// Who sleeps for so long after each piece of work does not begin the next sooner.
static void paced(void) {
    enum { ROUNDS = 40 };
    long worked = 0, m = mono();
    for (int i = 0; i < ROUNDS; i++) {
        long c = now(CLOCK_THREAD_CPUTIME_ID);
        work();
        worked += now(CLOCK_THREAD_CPUTIME_ID) - c;
        sleep_for(WORK);
    }
    long due = worked + ROUNDS * WORK;
    line("range paced %ld %ld %ld", due * 9 / 10, mono() - m, due * 3);
}

// What is left until an instant, asked of the clock after the work, is over then.
static int wait_epoll(long ns) {
    struct epoll_event e;
    ts_t t = ts_of(ns);
    return R6(SYS_epoll_pwait2, never, &e, 1, &t, NULL, 8);
}
static int wait_ppoll(long ns) { return ppoll_on(never, ns); }
static int wait_select(long ns) { return select_on(never, ns); }
static long late_after(int (*wait)(long), int works, long *found) {
    long due = mono() + 3 * WORK;
    if (works) work();
    long left = due - mono();
    *found += wait(left > 0 ? left : 0);
    return mono() - due;
}
static int by_size(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}
static void until(const char *name, int (*wait)(long)) {
    enum { ROUNDS = 20 };
    long early = 0, found = 0, idle[ROUNDS], late[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        idle[i] = late_after(wait, 0, &found);
        late[i] = late_after(wait, 1, &found);
        early += (idle[i] < 0) + (late[i] < 0);
    }
    // A wait with no work before it takes its host as long, which at any TDF may be long; half of either may meet others.
    qsort(idle, ROUNDS, sizeof *idle, by_size), qsort(late, ROUNDS, sizeof *late, by_size);
    same(name, "%ld %ld", found, early);
    line("range %s.late %ld %ld %ld", name, -WORK, late[ROUNDS / 2] - idle[ROUNDS / 2], WORK / 2);
}

static volatile long told_at;
static void tell(int signal) {
    (void)signal;
    if (!told_at) told_at = mono();
}
static jmp_buf out;
static void leave(int signal) {
    (void)signal;
    longjmp(out, 1);
}
static timer_t timer;
static void in_half_the_work(int signal, void (*handler)(int)) {
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal};
    struct itimerspec s = {{0, 0}, ts_of(WORK / 2)};
    on_signal(signal, SA_NODEFER, handler);
    if (timer_create(CLOCK_MONOTONIC, &e, &timer)) _exit(91);
    timer_settime(timer, 0, &s, NULL);
}

// A signal that comes amid the work does not wait for its end, and ends no call that has not begun.
static void signals(void) {
    long early = 0, found = 0;
    for (int i = 0; i < 20; i++) {
        long m = mono();
        told_at = 0;
        in_half_the_work(SIGUSR1, tell);
        work();
        found += look_pwait();
        while (!told_at) {}
        early += told_at - m < WORK * 7 / 8;
        timer_delete(timer);
    }
    same("signal.found", "%ld", found);
    line("range signal.early 10 %ld 20", early);
    // Its handler may not return.
    volatile int left = 0;
    for (volatile int i = 0; i < 5; i++) {
        in_half_the_work(SIGUSR2, leave);
        if (setjmp(out) == 0) {
            work();
            look_pwait();
            for (;;) pause();
        }
        left++;
        timer_delete(timer);
    }
    same("signal.left", "%d", left);
    // Work that was left told nothing.
    known();
    looks("signal.after", look_pwait);
}

// A thread that is cancelled amid its work ends as it waits.
static void *waits(void *timeout) {
    struct epoll_event e;
    known();
    work();
    epoll_wait(never, &e, 1, 0);
    work();
    told_at = mono();
    epoll_wait(never, &e, 1, (long)timeout);
    return NULL;
}
static void cancelled(const char *name, long timeout) {
    long all = mono();
    for (int i = 0; i < 3 && mono() - all < 10 * SEC; i++) {
        pthread_t t;
        void *result = NULL;
        told_at = 0;
        pthread_create(&t, NULL, waits, (void *)timeout);
        while (!told_at) sched_yield();
        // Amid what it owes, where it owes something.
        sleep_for(WORK / 4);
        pthread_cancel(t);
        ts_t until = in(CLOCK_REALTIME, 5 * SEC);
        if (pthread_timedjoin_np(t, &result, &until)) _exit(95);
        if (result != PTHREAD_CANCELED) _exit(92);
    }
    line("range %s 0 %ld %ld", name, mono() - all, 10 * SEC);
}

int main(int argc, char **argv) {
    if (argc == 3) {
        struct addrinfo hint = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM};
        if (getaddrinfo(argv[1], argv[2], &hint, &peer)) _exit(94);
        to = socket(AF_INET, SOCK_DGRAM, 0);
    }
    struct epoll_event e = {.events = EPOLLIN};
    ready = eventfd(1, 0);
    one = (struct pollfd){ready, POLLIN, 0};
    epoll = epoll_create1(0);
    never = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, ready, &e);
    known();
#ifdef __GLIBC__
    // In musl they are epoll_pwait, which comes to the blob with a timeout only.
    looks("epoll_wait", look_epoll);
    looks("forever", look_forever);
#endif
    looks("epoll_pwait", look_pwait);
    looks("epoll_pwait2", look_pwait2);
    looks("poll", look_poll);
    looks("ppoll", look_ppoll);
    looks("select", look_select);
    paced();
    until("until.epoll", wait_epoll);
    until("until.ppoll", wait_ppoll);
    until("until.select", wait_select);
    signals();
    cancelled("cancel.forever", -1);
    cancelled("cancel.within", 20000);
    return 0;
}
