// What a frame refuses, and says so.
//
// Covers: io_uring_setup io_uring_enter io_uring_register rseq
#include "guest.h"

int main(void) {
    long params[16] = {0};
    line("value io_uring_setup %ld", R2(425, 1, params));
    line("value io_uring_enter %ld", R6(426, -1, 0, 0, 0, NULL, 0));
    line("value io_uring_register %ld", R4(427, -1, 0, NULL, 0));
    line("value rseq %ld", R4(334, params, 32, 0, 0x53053053));
    // An x32 number.
    line("value x32 %ld", R2(0x40000000 | 228, 1, params));
    return 0;
}
