// Threads that want one core, each with a nice value or a policy: what part of the time each has it.
//
//   weights SPEC...   SPEC: a nice value; f for SCHED_FIFO; i for SCHED_IDLE; a % after it: in bursts, as a server works;
//                     @ and a number: pinned to that core
#include "guest.h"
#include <pthread.h>
#include <sys/resource.h>

#define THREADS_MAX 8
#define LAST (600 * MS)

static volatile int begun, over;
static long used[THREADS_MAX];
static const char *specs[THREADS_MAX];

static void *work(void *number) {
    long n = (long)number, from, had, bursts = 0;
    const char *spec = specs[n];
    struct sched_param fifo = {.sched_priority = 1}, idle = {0};
    int failed = *spec == 'f'   ? sched_setscheduler(0, SCHED_FIFO, &fifo)
                 : *spec == 'i' ? sched_setscheduler(0, SCHED_IDLE, &idle)
                                : setpriority(PRIO_PROCESS, syscall(SYS_gettid), atoi(spec));
    if (failed) {
        perror(spec);
        exit(1);
    }
    const char *at = strchr(spec, '@');
    if (at) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(atoi(at + 1), &one);
        if (sched_setaffinity(0, sizeof one, &one)) {
            perror(spec);
            exit(1);
        }
    }
    while (!begun)
        usleep(1000);
    from = now(CLOCK_THREAD_CPUTIME_ID);
    while (!over) {
        for (volatile int i = 0; i < 2000; i++);
        had = now(CLOCK_THREAD_CPUTIME_ID) - from;
        // A millisecond of work, then two of sleep.
        if (strchr(spec, '%') && had > (bursts + 1) * MS) {
            bursts = had / MS;
            usleep(2000);
        }
    }
    used[n] = now(CLOCK_THREAD_CPUTIME_ID) - from;
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS_MAX];
    int count = argc - 1 > THREADS_MAX ? THREADS_MAX : argc - 1;
    for (long n = 0; n < count; n++) {
        specs[n] = argv[n + 1];
        pthread_create(&threads[n], NULL, work, (void *)n);
    }
    usleep(50000);
    long from = mono();
    begun = 1;
    for (long left; (left = LAST - (mono() - from)) > 0;)
        usleep(left / 1000 + 1);
    over = 1;
    for (int n = 0; n < count; n++)
        pthread_join(threads[n], NULL);
    long took = mono() - from;
    for (int n = 0; n < count; n++)
        line("value part%d %ld", n, used[n] * 1000 / took);
    return 0;
}
