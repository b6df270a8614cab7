// SIGTRAP that one thread sends to another: it comes, whatever the meter does meanwhile, and says who sent it.
//
// Covers: tkill tgkill rt_sigtimedwait
#include "guest.h"
#include <pthread.h>

static volatile int got, wrong, other, stop;
static void take(int sig, siginfo_t *info, void *context) {
    (void)context;
    got++;
    wrong += sig != SIGTRAP || info->si_code != SI_TKILL || info->si_pid != getpid() || info->si_uid != getuid();
}
static void *spin(void *unused) {
    other = R0(SYS_gettid);
    while (!stop) {}
    return unused;
}

// One at a time, at all places of a grain.
static void to_another(long nr) {
    struct sigaction s = {.sa_sigaction = take, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGTRAP, &s, NULL);
    pthread_t t;
    pthread_create(&t, NULL, spin, NULL);
    while (!other) {}
    long lost = 0, refused = 0;
    for (long i = 0; i < 1500; i++) {
        int before = got;
        refused += (nr == SYS_tgkill ? R3(nr, getpid(), other, SIGTRAP) : R2(nr, other, SIGTRAP)) != 0;
        // One that comes after builds beside this test let it is late; one that never comes is lost.
        for (long m = mono(); got == before && mono() - m < 20 * SEC;) {}
        if (got == before && ++lost) break;
        nanosleep(&(ts_t){0, i * 7919 % 200000}, NULL);
    }
    stop = 1;
    pthread_join(t, NULL);
    same("trap.lost", "%ld", lost);
    same("trap.refused", "%ld", refused);
    same("trap.twice", "%d", got + lost > 1500);
    same("trap.wrong", "%d", wrong);
}
static void by_tgkill(void) { to_another(SYS_tgkill); }
static void by_tkill(void) { to_another(SYS_tkill); }

static void *nothing(void *unused) {
    other = R0(SYS_gettid);
    return unused;
}
static void others(void) {
    struct sigaction s = {.sa_sigaction = take, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &s, NULL);
    long self = R0(SYS_gettid);
    SAME("trap.self", R3(SYS_tgkill, getpid(), self, SIGTRAP));
    SAME("trap.self.tkill", R2(SYS_tkill, self, SIGTRAP));
    same("trap.self.got", "%d %d", got, wrong);
    SAME("trap.none", R3(SYS_tgkill, getpid(), 0x3ffffff, SIGTRAP));
    SAME("trap.zero", R3(SYS_tgkill, getpid(), 0, SIGTRAP));
    SAME("trap.group", R3(SYS_tgkill, 1, self, SIGTRAP));
    SAME("trap.negative", R2(SYS_tkill, -1, SIGTRAP));
    pthread_t t;
    pthread_create(&t, NULL, nothing, NULL);
    pthread_join(t, NULL);
    // One that was joined may not have left the kernel yet.
    for (long m = mono(); R3(SYS_tgkill, getpid(), other, 0) == 0 && mono() - m < 20 * SEC;) {}
    SAME("trap.ended", R2(SYS_tkill, other, SIGTRAP));
    // What is waited for comes once.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    SAME("trap.blocked", R3(SYS_tgkill, getpid(), self, SIGTRAP));
    SAME("trap.taken", sigtimedwait(&set, NULL, &(ts_t){0, 0}));
    SAME("trap.once", sigtimedwait(&set, NULL, &(ts_t){0, 1}));
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    for (long m = mono(); mono() - m < 20 * MS;) {}
    same("trap.got", "%d", got);
}

int main(void) {
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"by_tgkill", by_tgkill}, {"by_tkill", by_tkill}, {"others", others}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f));
    return 0;
}
