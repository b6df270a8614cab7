// Ticks of the processor's counter for one clock read and for one system call without time: the best round.
#include "guest.h"

#define ROUND 400

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 300;
    unsigned long best_clock = ~0ul, best_call = ~0ul;
    ts_t t;
    for (int r = 0; r < rounds; r++) {
        unsigned long c0 = tsc();
        for (int i = 0; i < ROUND; i++) clock_gettime(CLOCK_MONOTONIC, &t);
        unsigned long c1 = tsc();
        for (int i = 0; i < ROUND; i++) R0(SYS_getppid);
        unsigned long c2 = tsc();
        if (c1 - c0 < best_clock) best_clock = c1 - c0;
        if (c2 - c1 < best_call) best_call = c2 - c1;
    }
    line("value clock_ticks_per_1000 %lu", best_clock * 1000 / ROUND);
    line("value call_ticks_per_1000 %lu", best_call * 1000 / ROUND);
    return 0;
}
