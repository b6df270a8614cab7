// What is the frame's in a process stays where it is, whatever the process does to it: it unmaps it, maps over it or protects
// it, and goes on with calls that are served there.
#include "guest.h"
#include <sys/auxv.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
static char stack[8192];

static long change(int how, unsigned long at, unsigned long len) {
    if (how == 0) return R2(SYS_munmap, at, len);
    if (how == 1) return R6(SYS_mmap, at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return R3(SYS_mprotect, at, len, PROT_NONE);
}

// Does it in a child, which then needs its clock, a trapped call, a signal's frame and the meter.
static void attempt(const char *name, unsigned long at, unsigned long len) {
    static const char *ways[] = {"munmap", "mmap", "mprotect"};
    for (int how = 0; how < 3; how++) {
        pid_t pid = fork();
        if (pid == 0) {
            long r = change(how, at, len), m = mono();
            nanosleep(&(ts_t){0, MS}, NULL);
            while (mono() - m < 5 * MS) {}
            line("value %s.%s %ld", name, ways[how], r);
            _exit(0);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        line("value %s.%s.status %d", name, ways[how], status);
    }
}

// Where the kernel's own vDSO is.
static void kernels(void) {
    char text[512];
    unsigned long from, to;
    FILE *f = fopen("/proc/self/maps", "r");
    while (fgets(text, sizeof text, f))
        if (strstr(text, "[vdso]") && sscanf(text, "%lx-%lx", &from, &to) == 2) attempt("kernels_vdso", from, to - from);
    fclose(f);
}

// Arguments: a name, an address and a length, each in its turn.
int main(int argc, char **argv) {
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    line("value mseal %ld", R3(SYS_mseal, page, 4096, 0));
    // A small one: from now on the kernel has one of the frame's.
    stack_t small = {.ss_sp = stack, .ss_size = sizeof stack};
    R2(SYS_sigaltstack, &small, NULL);
    for (int i = 1; i + 2 < argc; i += 3) attempt(argv[i], strtoul(argv[i + 1], NULL, 0), strtoul(argv[i + 2], NULL, 0));
    kernels();
    return 0;
}
