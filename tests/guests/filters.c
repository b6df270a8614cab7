// Seccomp filters of the program's own: they judge what the program does, and nothing that the frame does for it.
//
// Covers: seccomp prctl
#include "guest.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/time.h>
#include <sys/times.h>
#include <ucontext.h>

#define LOAD BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define EQUAL(nr, verdict) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, verdict)
#define ELSE(verdict) BPF_STMT(BPF_RET | BPF_K, verdict)
#define INSTALL(flags, ...)                                                                        \
    ({                                                                                             \
        struct sock_filter code[] = {LOAD, __VA_ARGS__};                                           \
        struct sock_fprog program = {sizeof code / sizeof *code, code};                            \
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);                                                    \
        (flags) < 0 ? R5(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)           \
                    : R3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);                   \
    })

// A wait, work, and another wait: under a meter the work is interrupted many times.
static void live(const char *name, ts_t *far) {
    for (int i = 0; i < 2; i++) {
        unsigned long c0 = tsc();
        long m = mono();
        *far = (ts_t){0, 20 * MS};
        R2(SYS_nanosleep, far, NULL);
        line("wait %s %ld %ld %lu", name, 20 * MS, mono() - m, tsc() - c0);
        line("rate %s %ld %lu", name, mono() - m, tsc() - c0);
        m = mono();
        while (mono() - m < 30 * MS) {}
    }
}

// What a sandbox leaves (nothing to return from a handler by: it has none), and the page that is far from the stack.
static ts_t elsewhere;
static void strict(void) {
    long r = INSTALL(-1, EQUAL(SYS_nanosleep, SECCOMP_RET_ALLOW), EQUAL(SYS_write, SECCOMP_RET_ALLOW),
                     EQUAL(SYS_exit_group, SECCOMP_RET_ALLOW), EQUAL(SYS_exit, SECCOMP_RET_ALLOW),
                     EQUAL(SYS_poll, SECCOMP_RET_ALLOW),
                     EQUAL(SYS_restart_syscall, SECCOMP_RET_ALLOW), ELSE(SECCOMP_RET_KILL_PROCESS));
    SAME("strict", r);
    live("strict", &elsewhere);
    long m = mono();
    SAME("strict.poll", R3(SYS_poll, NULL, 0, 15));
    line("wait strict.poll %ld %ld", 15 * MS, mono() - m);
}

// Everything unknown fails, as under a service manager.
static void polite(void) {
    SAME("polite", INSTALL(0, EQUAL(SYS_nanosleep, SECCOMP_RET_ALLOW), EQUAL(SYS_write, SECCOMP_RET_ALLOW),
                           EQUAL(SYS_exit_group, SECCOMP_RET_ALLOW), EQUAL(SYS_rt_sigreturn, SECCOMP_RET_ALLOW),
                           ELSE(SECCOMP_RET_ERRNO | EPERM)));
    live("polite", &elsewhere);
    SAME("polite.getpid", R0(SYS_getpid));
    SAME("polite.open", R2(SYS_open, "/dev/null", 0));
}

// What the filter refuses is refused, with its own number.
static void errors(void) {
    struct itimerval v = {{0, 0}, {1, 0}};
    ts_t t = {0, MS};
    SAME("errors", INSTALL(0, EQUAL(SYS_nanosleep, SECCOMP_RET_ERRNO | 71), EQUAL(SYS_setitimer, SECCOMP_RET_ERRNO | 72),
                           EQUAL(SYS_poll, SECCOMP_RET_ERRNO | 73), EQUAL(SYS_rt_sigprocmask, SECCOMP_RET_ERRNO | 74),
                           EQUAL(SYS_rt_sigaction, SECCOMP_RET_ERRNO | 75), EQUAL(SYS_getrusage, SECCOMP_RET_ERRNO | 76),
                           EQUAL(SYS_getppid, SECCOMP_RET_ERRNO | 77), ELSE(SECCOMP_RET_ALLOW)));
    SAME("errors.nanosleep", R2(SYS_nanosleep, &t, NULL));
    SAME("errors.setitimer", R3(SYS_setitimer, 0, &v, NULL));
    SAME("errors.poll", R3(SYS_poll, NULL, 0, 5));
    SAME("errors.rt_sigprocmask", R4(SYS_rt_sigprocmask, 0, NULL, &v, 8));
    SAME("errors.rt_sigaction", R4(SYS_rt_sigaction, SIGUSR1, NULL, NULL, 8));
    SAME("errors.getrusage", R2(SYS_getrusage, 0, &v));
    SAME("errors.getppid", R0(SYS_getppid));
    SAME("errors.2", INSTALL(0, EQUAL(SYS_clock_gettime, SECCOMP_RET_ERRNO | 80), EQUAL(SYS_gettimeofday, SECCOMP_RET_ERRNO | 81),
                             EQUAL(SYS_time, SECCOMP_RET_ERRNO | 82), EQUAL(SYS_times, SECCOMP_RET_ERRNO | 83),
                             EQUAL(SYS_alarm, SECCOMP_RET_ERRNO | 84), EQUAL(SYS_clock_settime, SECCOMP_RET_ERRNO | 85),
                             EQUAL(SYS_settimeofday, SECCOMP_RET_ERRNO | 86), EQUAL(SYS_adjtimex, SECCOMP_RET_ERRNO | 87),
                             EQUAL(SYS_sigaltstack, SECCOMP_RET_ERRNO | 88), ELSE(SECCOMP_RET_ALLOW)));
    SAME("errors.clock_gettime", R2(SYS_clock_gettime, 1, &t));
    SAME("errors.gettimeofday", R2(SYS_gettimeofday, &v, NULL));
    SAME("errors.time", R1(SYS_time, NULL));
    SAME("errors.times", R1(SYS_times, NULL));
    SAME("errors.alarm", R1(SYS_alarm, 5));
    SAME("errors.clock_settime", R2(SYS_clock_settime, 0, BAD));
    SAME("errors.settimeofday", R2(SYS_settimeofday, BAD, NULL));
    SAME("errors.adjtimex", R1(SYS_adjtimex, BAD));
    SAME("errors.sigaltstack", R2(SYS_sigaltstack, NULL, NULL));
    SAME("errors.clock_nanosleep", R4(SYS_clock_nanosleep, 1, 0, &t, NULL));
    SAME("errors.fault", R2(SYS_clock_nanosleep, 1, BAD));
}

// Calls that the frame serves by others, while everything but they and what handlers need kills. Under a meter it
// is hit with a timer of CPU time set.
static volatile int rung, counted;
static void on_alarm(int sig) { rung += sig == SIGALRM, counted += sig == SIGPROF; }
static void others(void) {
    struct itimerval every = {{0, 10000}, {0, 10000}}, soon = {{0, 0}, {0, 20000}}, none = {{0, 0}, {0, 0}};
    sigset_t all, two;
    struct tms tms;
    struct timeval tv;
    struct timezone zone;
    sigfillset(&all);
    sigemptyset(&two);
    sigaddset(&two, SIGUSR1);
    sigaddset(&two, SIGUSR2);
    signal(SIGALRM, on_alarm);
    signal(SIGPROF, on_alarm);
    SAME("others", INSTALL(0, EQUAL(SYS_nanosleep, SECCOMP_RET_ALLOW), EQUAL(SYS_write, SECCOMP_RET_ALLOW),
                           EQUAL(SYS_exit_group, SECCOMP_RET_ALLOW), EQUAL(SYS_rt_sigreturn, SECCOMP_RET_ALLOW),
                           EQUAL(SYS_restart_syscall, SECCOMP_RET_ALLOW), EQUAL(SYS_rt_sigprocmask, SECCOMP_RET_ALLOW),
                           EQUAL(SYS_setitimer, SECCOMP_RET_ALLOW), EQUAL(SYS_alarm, SECCOMP_RET_ALLOW),
                           EQUAL(SYS_times, SECCOMP_RET_ALLOW), EQUAL(SYS_clock_settime, SECCOMP_RET_ALLOW),
                           EQUAL(SYS_getrusage, SECCOMP_RET_ERRNO | 90), ELSE(SECCOMP_RET_KILL_PROCESS)));
    for (int how = SIG_BLOCK; how <= SIG_SETMASK; how++) SAME("others.mask", sigprocmask(how, &two, NULL));
    SAME("others.all", sigprocmask(SIG_SETMASK, &all, NULL));
    sigemptyset(&two);
    SAME("others.none", sigprocmask(SIG_SETMASK, &two, NULL));
    SAME("others.times", times(&tms) > 0);
    SAME("others.zone", gettimeofday(&tv, &zone));
    SAME("others.set", R2(SYS_clock_settime, 0, BAD));
    SAME("others.alarm", R1(SYS_alarm, 100));
    SAME("others.again", R1(SYS_alarm, 50));
    SAME("others.end", R1(SYS_alarm, 0));
    SAME("others.prof", setitimer(ITIMER_PROF, &every, NULL));
    live("others", &elsewhere);
    // A busy host may have given it less CPU time than that.
    for (long m = mono(); !counted && mono() - m < 2000 * MS;) {}
    SAME("others.counted", counted > 0);
    SAME("others.prof.end", setitimer(ITIMER_PROF, &none, &every));
    SAME("others.real", setitimer(ITIMER_REAL, &soon, NULL));
    while (!rung) R2(SYS_nanosleep, (&(ts_t){0, 5 * MS}), NULL);
}

static void on_sys(int sig, siginfo_t *i, void *p) {
    ucontext_t *u = p;
    line("= trap %d code %d errno %d call %d arch %x", sig, i->si_code, i->si_errno, i->si_syscall, i->si_arch);
    u->uc_mcontext.gregs[REG_RAX] = 77;
}
static void traps(void) {
    struct sigaction a = {.sa_sigaction = on_sys, .sa_flags = SA_SIGINFO};
    ts_t t = {0, MS};
    sigaction(SIGSYS, &a, NULL);
    SAME("traps", INSTALL(0, EQUAL(SYS_getppid, SECCOMP_RET_TRAP | 5), EQUAL(SYS_clock_nanosleep, SECCOMP_RET_TRAP | 6), ELSE(SECCOMP_RET_ALLOW)));
    SAME("traps.getppid", R0(SYS_getppid));
    SAME("traps.clock_nanosleep", R4(SYS_clock_nanosleep, 1, 0, &t, NULL));
    live("traps", &elsewhere);
}

static void kills(void) {
    ts_t t = {0, MS};
    SAME("kills", INSTALL(0, EQUAL(SYS_nanosleep, SECCOMP_RET_KILL_PROCESS), ELSE(SECCOMP_RET_ALLOW)));
    R2(SYS_nanosleep, &t, NULL);
    line("= kills survived");
}

// Two filters, the second one under the first, and bad ones.
static void stacked(void) {
    struct sock_filter none[] = {ELSE(SECCOMP_RET_ALLOW)};
    struct sock_fprog empty = {0, none}, far = {1, (void *)8}, loose = {1, (struct sock_filter[]){LOAD}};
    SAME("stacked.1", INSTALL(-1, EQUAL(SYS_getppid, SECCOMP_RET_ERRNO | 1), ELSE(SECCOMP_RET_ALLOW)));
    SAME("stacked.2", INSTALL(0, EQUAL(SYS_getuid, SECCOMP_RET_ERRNO | 2), ELSE(SECCOMP_RET_ALLOW)));
    SAME("stacked.getppid", R0(SYS_getppid));
    SAME("stacked.getuid", R0(SYS_getuid));
    SAME("stacked.empty", R3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &empty));
    SAME("stacked.far", R3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &far));
    SAME("stacked.loose", R3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &loose));
    SAME("stacked.null", R3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL));
    SAME("stacked.flags", R3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1 << 20, &loose));
    SAME("stacked.bad", R5(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, BAD, 0, 0));
    SAME("stacked.mode", R2(SYS_prctl, PR_SET_SECCOMP, 9));
    live("stacked", &elsewhere);
}

// A new image under the filter of the old one: what only the frame would call, kills.
static char self[512];
static void across_exec(void) {
    SAME("exec", INSTALL(0, EQUAL(SYS_madvise, SECCOMP_RET_KILL_PROCESS), EQUAL(462, SECCOMP_RET_KILL_PROCESS),
                         EQUAL(SYS_gettid, SECCOMP_RET_KILL_PROCESS), EQUAL(SYS_prctl, SECCOMP_RET_KILL_PROCESS),
                         EQUAL(SYS_rt_sigaction, SECCOMP_RET_KILL_PROCESS), EQUAL(SYS_rt_sigprocmask, SECCOMP_RET_KILL_PROCESS),
                         ELSE(SECCOMP_RET_ALLOW)));
    execl(self, self, "again", NULL);
    _exit(127);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        live(argv[1], &elsewhere);
        return 0;
    }
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 98;
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"strict", strict}, {"polite", polite}, {"errors", errors}, {"others", others}, {"traps", traps}, {"kills", kills},
        {"stacked", stacked}, {"exec", across_exec}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
