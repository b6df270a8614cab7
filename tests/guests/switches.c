// Two programs on one core that ask and answer each other: CPU time of a question, ns.
#include "guest.h"

static void answer(int from, int to) {
    char b;
    while (read(from, &b, 1) == 1) (void)!write(to, &b, 1);
    exit(0);
}

int main(int argc, char **argv) {
    if (argc > 3) answer(atoi(argv[2]), atoi(argv[3]));
    int turns = argc > 1 ? atoi(argv[1]) : 10000, ask[2], told[2];
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    if (pipe(ask) || pipe(told)) return 1;
    pid_t pid = fork();
    if (!pid) {
        char from[12], to[12];
        close(ask[1]);
        sprintf(from, "%d", ask[0]);
        sprintf(to, "%d", told[1]);
        execl(argv[0], argv[0], "0", from, to, NULL);
        _exit(127);
    }
    char b = 0;
    long before = 0;
    for (int i = 0; i < turns + 100; i++) {
        if (i == 100) before = now(CLOCK_PROCESS_CPUTIME_ID);
        if (write(ask[1], &b, 1) != 1 || read(told[0], &b, 1) != 1) return 1;
    }
    line("value each %ld", (now(CLOCK_PROCESS_CPUTIME_ID) - before) / turns);
    close(ask[1]);
    waitpid(pid, NULL, 0);
    return 0;
}
