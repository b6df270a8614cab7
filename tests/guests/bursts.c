// A service as its clients see it: short pieces of work of two sizes with idle gaps. How long does each size take on
// its clock? Arguments: pieces, turns of a short and of a long one, gap in ns, sleep in ns after each piece (0: none).
#include "guest.h"

static void work(long turns) {
    unsigned long x = 1;
    for (long i = 0; i < turns; i++) __asm__ volatile("imul $3, %0, %0\n\timul $5, %0, %0" : "+r"(x));
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    long pieces = atol(argv[1]), turns[2] = {atol(argv[2]), atol(argv[3])};
    ts_t gap = ts_of(atol(argv[4])), rest = ts_of(atol(argv[5]));
    long *took[2] = {calloc(pieces, sizeof(long)), calloc(pieces, sizeof(long))};
    long count[2] = {0, 0};
    unsigned random = 1;
    for (long i = 0; i < pieces; i++) {
        nanosleep(&gap, NULL);
        random = random * 1664525 + 1013904223;
        int size = random >> 31;
        long begin = mono();
        work(turns[size]);
        if (ns_of(rest) > 0) nanosleep(&rest, NULL);
        took[size][count[size]++] = mono() - begin;
    }
    for (int size = 0; size < 2; size++) {
        qsort(took[size], count[size], sizeof(long), ascending);
        line("value %s %ld", size ? "long" : "short", took[size][count[size] / 2]);
    }
    return 0;
}
