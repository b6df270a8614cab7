// A thread that holds a lock for most of its time and never sleeps, and one that wants it now and then: how long it waits.
// Usage: locks [TIMES [HOLD_US]]
#include "guest.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int over;
static long hold_ns = 300000;

static void spin(long ns) {
    for (long end = now(CLOCK_THREAD_CPUTIME_ID) + ns; now(CLOCK_THREAD_CPUTIME_ID) < end;)
        for (volatile int i = 0; i < 500; i++);
}

static void *keep(void *unused) {
    (void)unused;
    while (!over) {
        pthread_mutex_lock(&lock);
        spin(hold_ns);
        pthread_mutex_unlock(&lock);
        spin(100000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int times = argc > 1 ? atoi(argv[1]) : 40;
    if (argc > 2)
        hold_ns = 1000 * atol(argv[2]);
    long waited = 0;
    pthread_t other;
    pthread_create(&other, NULL, keep, NULL);
    for (int i = 0; i < times; i++) {
        usleep(11000);
        long from = mono();
        pthread_mutex_lock(&lock);
        waited += mono() - from;
        pthread_mutex_unlock(&lock);
    }
    over = 1;
    pthread_join(other, NULL);
    line("value waited %ld", waited / times);
    return 0;
}
