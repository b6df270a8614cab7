// Timers and sleeps that count CPU time, and CPU clocks of others.
//
// Covers: timer_settime timer_create setitimer getitimer clock_nanosleep clock_gettime getrusage; CPU times in /proc
#include "guest.h"
#include <pthread.h>
#include <sys/resource.h>

static void burn(long ns) {
    long until = now(CLOCK_THREAD_CPUTIME_ID) + ns;
    while (now(CLOCK_THREAD_CPUTIME_ID) < until) {}
}
static void *burn_300(void *unused) {
    burn(300 * MS);
    return unused;
}

static timer_t timer_of(clockid_t id) {
    timer_t t;
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    sigset_t block;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    sigprocmask(SIG_BLOCK, &block, NULL);
    if (timer_create(id, &e, &t)) _exit(91);
    return t;
}
// The signal that a timer sends, within so much of MONOTONIC.
static long told(long within) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    ts_t t = ts_of(within);
    return sigtimedwait(&set, NULL, &t);
}

// An instant that has passed fires at once, although nothing runs.
static void past(void) {
    timer_t t = timer_of(CLOCK_PROCESS_CPUTIME_ID);
    struct itimerspec s = {{0, 0}, {0, 1}}, got;
    // A new process has used no time by this clock for as long as its core was stolen before.
    burn(MS);
    long m = mono();
    timer_settime(t, TIMER_ABSTIME, &s, NULL);
    SAME("past.signal", told(SEC) == SIGUSR1);
    line("wait past 0 %ld", mono() - m);
    timer_gettime(t, &got);
    same("past.left", "%ld", ns_of(got.it_value));
    SAME("past.once", told(10 * MS) == SIGUSR1);
    s.it_interval = ts_of(30 * MS);
    timer_settime(t, TIMER_ABSTIME, &s, NULL);
    SAME("past.periodic", told(SEC) == SIGUSR1);
    long p = now(CLOCK_PROCESS_CPUTIME_ID), told_again = 0;
    timer_gettime(t, &got);
    line("range past.next 1 %ld 30000000", ns_of(got.it_value));
    // Linux looks at these timers in ticks that meet this process: beside six busy loops up to 0.5 s of CPU time late.
    while (!told_again && now(CLOCK_PROCESS_CPUTIME_ID) - p < 10 * SEC) {
        burn(MS);
        told_again = told(0) == SIGUSR1;
    }
    same("past.again", "%ld", told_again);
    line("wait past.again %ld %ld", ns_of(got.it_value), now(CLOCK_PROCESS_CPUTIME_ID) - p);
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

static volatile int profiled;
static void count(int sig) { profiled += sig == SIGPROF; }
static long us_of(struct timeval t) { return t.tv_sec * 1000000L + t.tv_usec; }

// A child of vfork has timers of its own, in its parent's memory.
static void guests(void) {
    on_signal(SIGPROF, 0, count);
    timer_t t = timer_of(CLOCK_MONOTONIC);
    pid_t pid = vfork();
    if (pid == 0) {
        struct itimerval i = {{0, 0}, {0, 50000}}, got = {{0, 0}, {0, 0}};
        R3(SYS_setitimer, ITIMER_PROF, &i, NULL);
        R2(SYS_getitimer, ITIMER_PROF, &got);
        line("range guest.left 1 %ld 60000", us_of(got.it_value));
        struct sigevent e = {.sigev_notify = SIGEV_NONE};
        int id = -1;
        R3(SYS_timer_create, CLOCK_PROCESS_CPUTIME_ID, &e, &id);
        struct itimerspec s = {{0, 0}, ts_of(50 * MS)};
        SAME("guest.timer", R4(SYS_timer_settime, id, 0, &s, NULL));
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    waitpid(pid, NULL, 0);
    burn(200 * MS);
    same("guest.profiled", "%d", profiled);
    struct itimerspec s = {{0, 0}, ts_of(20 * MS)};
    long m = mono();
    timer_settime(t, 0, &s, NULL);
    SAME("guest.parents", told(SEC) == SIGUSR1);
    line("wait guest.parents 20000000 %ld", mono() - m);
}

// A child has none of its parent's timers, and its own begin with no period.
static void of_child(void) {
    timer_t t = timer_of(CLOCK_PROCESS_CPUTIME_ID);
    struct itimerspec s = {ts_of(40 * SEC), ts_of(30 * SEC)};
    struct itimerval p = {{20, 0}, {10, 0}};
    timer_settime(t, 0, &s, NULL);
    setitimer(ITIMER_PROF, &p, NULL);
    setitimer(ITIMER_VIRTUAL, &p, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        for (int which = ITIMER_VIRTUAL; which <= ITIMER_PROF; which++) {
            getitimer(which, &p);
            same("child.itimer", "%d %ld %ld", which, us_of(p.it_value), us_of(p.it_interval));
        }
        for (int k = 0; k < 3; k++) {
            t = timer_of(CLOCK_PROCESS_CPUTIME_ID);
            timer_gettime(t, &s);
            same("child.timer", "%ld %ld", ns_of(s.it_value), ns_of(s.it_interval));
        }
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    getitimer(ITIMER_PROF, &p);
    same("child.parents", "%ld", us_of(p.it_interval));
}

// What is left of ITIMER_PROF and ITIMER_VIRTUAL outlives the image, the interval too.
static void over_exec(void) {
    struct itimerval p = {{0, 30000}, {0, 200000}}, v = {{0, 0}, {10, 0}};
    on_signal(SIGPROF, 0, SIG_IGN);
    setitimer(ITIMER_PROF, &p, NULL);
    setitimer(ITIMER_VIRTUAL, &v, NULL);
    burn(100 * MS);
    execl("/proc/self/exe", "cputimers", "after", NULL);
}
static void after_exec(void) {
    struct itimerval p, v;
    getitimer(ITIMER_PROF, &p);
    getitimer(ITIMER_VIRTUAL, &v);
    long c = now(CLOCK_PROCESS_CPUTIME_ID);
    line("range exec.prof 60000 %ld 115000", us_of(p.it_value));
    line("range exec.virtual 9800000 %ld 10010000", us_of(v.it_value));
    same("exec.interval", "%ld %ld", us_of(p.it_interval), us_of(v.it_interval));
    on_signal(SIGPROF, 0, count);
    while (profiled < 1) {}
    // Of the kernel's it is a tick or two late, and it counts by ticks.
    line("range exec.fires %ld %ld %ld", us_of(p.it_value) * 1000 - 10 * MS, now(CLOCK_PROCESS_CPUTIME_ID) - c, 150 * MS);
    while (profiled < 4) {}
    line("range exec.periods 120000000 %ld 280000000", now(CLOCK_PROCESS_CPUTIME_ID) - c);
}

// Whoever uses the CPU time is told, if it does not block the signal.
static volatile int told_here, told_elsewhere;
static __thread volatile int here;
static void who(int sig) {
    (void)sig;
    if (here) told_here++; else told_elsewhere++;
}
static void *burn_here(void *blocks) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    sigaddset(&set, SIGVTALRM);
    if (blocks) pthread_sigmask(SIG_BLOCK, &set, NULL);
    here = 1;
    // Nearly all of it in user mode.
    for (long until = now(CLOCK_THREAD_CPUTIME_ID) + 300 * MS; now(CLOCK_THREAD_CPUTIME_ID) < until;)
        for (volatile int i = 0; i < 100000; i++) {}
    return NULL;
}
static void whom(void) {
    on_signal(SIGPROF, SA_RESTART, who);
    on_signal(SIGVTALRM, SA_RESTART, who);
    for (int which = ITIMER_VIRTUAL; which <= ITIMER_PROF; which++) {
        for (long blocks = 0; blocks < 2; blocks++) {
            struct itimerval i = {{0, 20000}, {0, 20000}};
            pthread_t t;
            told_here = told_elsewhere = 0;
            pthread_create(&t, NULL, burn_here, (void *)blocks);
            setitimer(which, &i, NULL);
            pthread_join(t, NULL);
            setitimer(which, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
            line("range whom.%d.%ld 8 %d 20", which, blocks, blocks ? told_elsewhere : told_here);
            line("range whom.%d.%ld.else 0 %d 1", which, blocks, blocks ? told_here : told_elsewhere);
        }
    }
}

static volatile int stop;
static void *spin(void *unused) {
    while (!stop) {}
    return unused;
}

static void *looks(void *back) {
    long last = 0;
    while (!stop) {
        long c = now(CLOCK_THREAD_CPUTIME_ID);
        *(long *)back += c < last;
        last = c;
    }
    return NULL;
}

// CPU clocks of another thread and of a child don't go back, nor does the usage of a thread.
static void backwards(void) {
    pthread_t t;
    clockid_t id;
    pthread_create(&t, NULL, spin, NULL);
    pthread_getcpuclockid(t, &id);
    long last = 0, back = 0, first = now(id), m = mono() + 200 * MS;
    while (mono() < m) {
        long c = now(id);
        back += c < last;
        last = c;
    }
    stop = 1;
    pthread_join(t, NULL);
    same("back.thread", "%ld", back);
    line("range back.thread.ran 10000000 %ld 220000000", last - first);
    // Nor do those of threads whose first hits come meanwhile, read by others or themselves.
    long new_ones = 0, own = 0;
    for (int k = 0; k < 60; k++) {
        stop = 0;
        pthread_create(&t, NULL, spin, NULL);
        pthread_getcpuclockid(t, &id);
        for (last = back = 0, m = mono() + 3 * MS; mono() < m;) {
            long c = now(id);
            back += c < last;
            last = c;
        }
        stop = 1;
        pthread_join(t, NULL);
        new_ones += back > 0;
    }
    same("back.new", "%ld", new_ones);
    for (int k = 0; k < 10; k++) {
        stop = 0;
        pthread_create(&t, NULL, looks, &own);
        nanosleep(&(ts_t){0, 3 * MS}, NULL);
        stop = 1;
        pthread_join(t, NULL);
    }
    same("back.own", "%ld", own);
    pid_t pid = fork();
    if (pid == 0) {
        stop = 0;
        pthread_create(&t, NULL, spin, NULL);
        burn(80 * MS);
        stop = 1;
        pthread_join(t, NULL);
        burn(60 * MS);
        _exit(0);
    }
    clock_getcpuclockid(pid, &id);
    for (last = back = 0; waitpid(pid, NULL, WNOHANG) == 0; nanosleep(&(ts_t){0, 200000}, NULL)) {
        long c = now(id);
        back += c < last;
        last = c > last ? c : last;
    }
    same("back.child", "%ld", back);
    line("range back.child.ran 100000000 %ld 260000000", last);
    long user = 0, system = 0, users = 0, systems = 0, until = now(CLOCK_THREAD_CPUTIME_ID) + 200 * MS;
    burn(MS);
    while (now(CLOCK_THREAD_CPUTIME_ID) < until) {
        struct rusage r;
        for (int k = 0; k < 50; k++) R0(SYS_getppid);
        getrusage(RUSAGE_THREAD, &r);
        users += us_of(r.ru_utime) < user;
        systems += us_of(r.ru_stime) < system;
        user = us_of(r.ru_utime);
        system = us_of(r.ru_stime);
    }
    same("back.usage", "%ld %ld", users, systems);
}

// The first number of a file, or the sum of the two times of a process or thread in ticks.
static long cpu_in(const char *path, int stat) {
    char text[600] = "";
    int fd = open(path, O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) _exit(92);
    close(fd);
    if (!stat) return atol(text);
    long user, system;
    sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system);
    return user + system;
}
static int spun;
static void *spin_by_name(void *unused) {
    __atomic_store_n(&spun, R0(SYS_gettid), __ATOMIC_RELEASE);
    while (!stop) R0(SYS_getppid);
    return unused;
}
// Nor do the CPU times of another thread and of a child in files of /proc.
static void in_proc(void) {
    char path[3][64];
    pthread_t t;
    pthread_create(&t, NULL, spin_by_name, NULL);
    while (!__atomic_load_n(&spun, __ATOMIC_ACQUIRE)) {}
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) R0(SYS_getppid);
    }
    snprintf(path[0], 64, "/proc/self/task/%d/schedstat", spun);
    snprintf(path[1], 64, "/proc/self/task/%d/stat", spun);
    snprintf(path[2], 64, "/proc/%d/stat", pid);
    long back[3] = {0, 0, 0}, last[3] = {0, 0, 0}, m = mono() + 400 * MS;
    for (int k = 0; k < 3; k++) last[k] = cpu_in(path[k], k);
    long first = last[0];
    while (mono() < m) {
        for (int k = 0; k < 3; k++) {
            long c = cpu_in(path[k], k);
            back[k] += c < last[k];
            last[k] = c;
        }
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    stop = 1;
    pthread_join(t, NULL);
    same("proc.back", "%ld %ld %ld", back[0], back[1], back[2]);
    line("range proc.ran 10000000 %ld 420000000", last[0] - first);
}

static int there[2], back_again[2];
static void *answer(void *unused) {
    char c;
    while (read(there[0], &c, 1) == 1 && write(back_again[1], &c, 1) == 1) {}
    return unused;
}
// Nor do those of a child that does nothing any more, while its node's threads take turns, at which the meter has a larger part.
static void idle_in_proc(void) {
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        burn(400 * MS);
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(pid, NULL, WUNTRACED);
    char path[64], c = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    pthread_t t;
    if (pipe(there) || pipe(back_again)) _exit(93);
    pthread_create(&t, NULL, answer, NULL);
    long first = cpu_in(path, 1), m = mono() + 300 * MS;
    while (mono() < m && write(there[1], &c, 1) == 1 && read(back_again[0], &c, 1) == 1) {}
    same("proc.idle.back", "%d", cpu_in(path, 1) < first);
    line("range proc.idle.ran 30 %ld 42", first);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == 'a') {
        after_exec();
        return 0;
    }
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"past", past}, {"sleeps", sleeps}, {"interrupted", interrupted}, {"guests", guests}, {"of_child", of_child},
        {"whom", whom}, {"over_exec", over_exec}, {"backwards", backwards}, {"in_proc", in_proc},
        {"idle_in_proc", idle_in_proc}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f));
    return 0;
}
