// A fixed piece of work: how much CPU time and how much time on the clock does it take?
#include "guest.h"

int main(int argc, char **argv) {
    long turns = (argc > 1 ? atol(argv[1]) : 100) * 1000000L / 2;
    unsigned long x = 1;
    long w = mono(), p = now(CLOCK_PROCESS_CPUTIME_ID);
    for (long i = 0; i < turns; i++) __asm__ volatile("imul $3, %0, %0\n\timul $5, %0, %0" : "+r"(x));
    long wall = mono() - w, cpu = now(CLOCK_PROCESS_CPUTIME_ID) - p;
    line("value wall %ld", wall);
    line("value cpu %ld", cpu);
    line("near busy %ld %ld", wall, cpu);
    return 0;
}
