// A thread that is not the first takes its process into the next image, again and again. The first has used more CPU time
// than it, so that the process seems to have less than before.
#include "guest.h"
#include <pthread.h>

static char *self;

static void use(long ns) {
    long from = now(CLOCK_THREAD_CPUTIME_ID);
    while (now(CLOCK_THREAD_CPUTIME_ID) - from < ns) {}
}

static void *goes_on(void *left) {
    execl(self, self, left, NULL);
    return NULL;
}

int main(int argc, char **argv) {
    static char left[16];
    int n = argc > 1 ? atoi(argv[1]) : 0;
    self = argv[0];
    use(MS);
    if (n > 0) {
        snprintf(left, sizeof left, "%d", n - 1);
        pthread_t t;
        pthread_create(&t, NULL, goes_on, left);
        pthread_join(t, NULL);
    }
    same("images", "%d", n);
    return 0;
}
