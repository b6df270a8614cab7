// A fixed piece of work: how much CPU time and how much time on the clock does it take? With "deaf" it ignores and blocks every
// signal, by calls of its own.
#include "guest.h"

static void deaf(void) {
    for (int sig = 1; sig < 65; sig++) signal(sig, SIG_IGN);
    unsigned long all = ~0ul;
    if (R4(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all)) _exit(90);
}

int main(int argc, char **argv) {
    long turns = (argc > 1 ? atol(argv[1]) : 100) * 1000000L / 2;
    unsigned long x = 1;
    if (argc > 2 && !strcmp(argv[2], "deaf")) deaf();
    long w = mono(), p = now(CLOCK_PROCESS_CPUTIME_ID);
    for (long i = 0; i < turns; i++) __asm__ volatile("imul $3, %0, %0\n\timul $5, %0, %0" : "+r"(x));
    long wall = mono() - w, cpu = now(CLOCK_PROCESS_CPUTIME_ID) - p;
    line("value wall %ld", wall);
    line("value cpu %ld", cpu);
    line("near busy %ld %ld", wall, cpu);
    return 0;
}
