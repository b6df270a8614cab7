// What a frame refuses, and says so.
//
// Covers: io_uring_setup io_uring_enter io_uring_register rseq perf_event_open unshare setns
#include "guest.h"
#include <linux/perf_event.h>
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

int main(void) {
    long params[16] = {0};
    line("value io_uring_setup %ld", R2(425, 1, params));
    line("value io_uring_enter %ld", R6(426, -1, 0, 0, 0, NULL, 0));
    line("value io_uring_register %ld", R4(427, -1, 0, NULL, 0));
    line("value rseq %ld", R4(334, params, 32, 0, 0x53053053));
    // The clock of a task, which anyone may count where the kernel lets anyone count anything.
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_TASK_CLOCK, .exclude_kernel = 1};
    line("value perf_event_open %ld", R5(298, &attr, 0, -1, -1, 8));
    // Calls that would be the program's to answer, from all addresses.
    static volatile char selector;
    line("value dispatch %ld", R5(SYS_prctl, 59, 1, 0, 0, &selector));
    line("value dispatch.off %ld", R5(SYS_prctl, 59, 0, 0, 0, 0));
    // By clone3 first: no namespace of time can be made by one whose children are in another already.
    long pid = R2(435, ((long[8]){CLONE_NEWTIME}), 64);
    if (pid == 0) _exit(0);
    line("value clone3 %ld", pid);
    line("value unshare %ld", R1(272, CLONE_NEWTIME));
    line("value unshare.beside %ld", R1(272, CLONE_NEWTIME | CLONE_NEWUTS));
    line("value unshare.fs %ld", R1(272, CLONE_FS));
    int ns = open("/proc/self/ns/time", O_RDONLY), uts = open("/proc/self/ns/uts", O_RDONLY);
    line("value setns.named %ld", R2(308, ns, CLONE_NEWTIME));
    line("value setns.any %ld", R2(308, ns, 0));
    line("value setns.uts %ld", R2(308, uts, 0));
    line("value setns.bad %ld", R2(308, -1, 0));
    // Whoever may not make one is told so, not that there are none.
    if (setresuid(65534, 65534, 65534)) _exit(90);
    line("value unshare.nobody %ld", R1(272, CLONE_NEWTIME));
    line("value clone3.nobody %ld", R2(435, ((long[8]){CLONE_NEWTIME}), 64));
    // An x32 number.
    line("value x32 %ld", R2(0x40000000 | 228, 1, params));
    return 0;
}
