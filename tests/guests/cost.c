// Ticks of the processor's counter for a clock read, a system call without time, and a wait that a frame traps (of
// length zero, so that only the trap is measured): the best round of each.
#include "guest.h"

#define ROUND 400

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 300;
    unsigned long best_clock = ~0ul, best_call = ~0ul, best_trap = ~0ul;
    struct pollfd f = {-1, 0, 0};
    ts_t t;
    for (int r = 0; r < rounds; r++) {
        unsigned long c0 = tsc();
        for (int i = 0; i < ROUND; i++) clock_gettime(CLOCK_MONOTONIC, &t);
        unsigned long c1 = tsc();
        for (int i = 0; i < ROUND; i++) R0(SYS_getppid);
        unsigned long c2 = tsc();
        for (int i = 0; i < ROUND / 8; i++) {
            ts_t zero = {0, 0};
            R5(SYS_ppoll, &f, 0, &zero, NULL, 0);
        }
        unsigned long c3 = tsc();
        if (c3 - c2 < best_trap) best_trap = c3 - c2;
        if (c1 - c0 < best_clock) best_clock = c1 - c0;
        if (c2 - c1 < best_call) best_call = c2 - c1;
    }
    line("value clock_ticks_per_1000 %lu", best_clock * 1000 / ROUND);
    line("value call_ticks_per_1000 %lu", best_call * 1000 / ROUND);
    line("value trap_ticks_per_1000 %lu", best_trap * 1000 / (ROUND / 8));
    return 0;
}
