// So many threads that work for 100 ms of CPU time each, at once: how long do they take on the clock?
#include "guest.h"
#include <pthread.h>
#include <sched.h>

#define EACH_NS 100000000L
#define MOST 8

static pthread_barrier_t begin;

static void *work(void *unused) {
    (void)unused;
    pthread_barrier_wait(&begin);
    long from = now(CLOCK_THREAD_CPUTIME_ID);
    while (now(CLOCK_THREAD_CPUTIME_ID) - from < EACH_NS)
        for (volatile int i = 0; i < 1000; i++)
            ;
    return NULL;
}

static long took(int threads) {
    pthread_t all[MOST];
    pthread_barrier_init(&begin, NULL, threads + 1);
    for (int i = 0; i < threads; i++) pthread_create(&all[i], NULL, work, NULL);
    long from = mono();
    pthread_barrier_wait(&begin);
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
    pthread_barrier_destroy(&begin);
    return mono() - from;
}

int main(void) {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    line("value cores %ld", sysconf(_SC_NPROCESSORS_ONLN));
    line("value may %ld", (long)CPU_COUNT(&set));
    took(1);
    for (int threads = 1; threads <= MOST; threads *= 2) line("value threads-%d %ld", threads, took(threads));
    return 0;
}
