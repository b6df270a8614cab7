// Threads, children and cancellation by the C library's own functions, whichever it is.
//
// Covers: clone rt_sigprocmask rt_sigaction execve
#include "guest.h"
#include <mqueue.h>
#include <pthread.h>
#include <semaphore.h>
#include <spawn.h>
#include <sys/stat.h>

extern char **environ;
static volatile int done;

static void *ends(void *busy) {
    volatile char buffer[60000];
    for (unsigned i = 0; i < sizeof buffer; i += 4096) buffer[i] = 1;
    for (volatile long i = 0; i < (long)busy; i++) {}
    __sync_fetch_and_add(&done, 1);
    return NULL;
}

static void detached(void) {
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&a, 131072);
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        pthread_create(&thread, &a, ends, (void *)(i * 7919L % 30000));
        while (done <= i) usleep(200);
    }
    usleep(10000);
    SAME("detached", done);
}

static void nothing(int sig) { (void)sig; }

static void spawned(const char *program) {
    for (int sig = 1; sig < 32; sig++)
        if (sig != SIGKILL && sig != SIGSTOP && sig != SIGCHLD) on_signal(sig, 0, nothing);
    posix_spawnattr_t a;
    posix_spawnattr_init(&a);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&a, &all);
    posix_spawnattr_setflags(&a, POSIX_SPAWN_SETSIGDEF);
    int good = 0;
    for (int i = 0; i < 60; i++) {
        posix_spawn_file_actions_t f;
        posix_spawn_file_actions_init(&f);
        for (int k = 0; k < 20; k++) posix_spawn_file_actions_addopen(&f, 10 + k, "/dev/null", O_RDONLY, 0);
        char *argv[] = {"true", NULL};
        pid_t pid;
        int status = -1;
        if (posix_spawn(&pid, program, &f, &a, argv, environ) == 0)
            while (waitpid(pid, &status, 0) < 0) {}
        good += status == 0;
        posix_spawn_file_actions_destroy(&f);
    }
    SAME("spawned", good);
}

static int kind, pair[2];
static char fifo[64], buffer[8192];
static mqd_t queue;
static sem_t semaphore;
static volatile int ready, cleaned;

static void cleans(void *unused) {
    (void)unused;
    cleaned++;
}

static void *waits(void *unused) {
    ts_t ten = {10, 0}, then = in(CLOCK_REALTIME, 10 * SEC);
    sigset_t none;
    sigemptyset(&none);
    struct iovec part = {buffer, 10};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    int on = 1;
    pthread_cleanup_push(cleans, NULL);
    ready = 1;
    switch (kind) {
    case 0: nanosleep(&ten, NULL); break;
    case 1: poll(NULL, 0, 10000); break;
    case 2: sem_timedwait(&semaphore, &then); break;
    case 3: mq_timedreceive(queue, buffer, sizeof buffer, NULL, &then); break;
    case 4: recvmmsg(pair[0], &message, 1, 0, &ten); break;
    case 5: open(fifo, O_RDONLY); break;
    case 6: sigsuspend(&none); break;
    case 7: ppoll(NULL, 0, &ten, &none); break;
    case 8: pselect(0, NULL, NULL, NULL, &ten, &none); break;
    case 9: clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &then, NULL); break;
    case 10:
        setsockopt(pair[0], SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on);
        recvmsg(pair[0], &message.msg_hdr, 0);
        break;
    case 11: read(pair[0], buffer, 1); break;
    }
    pthread_cleanup_pop(0);
    return unused;
}

static void cancelled(void) {
    snprintf(fifo, sizeof fifo, "/tmp/diecast-library-%d", getpid());
    mkfifo(fifo, 0600);
    struct mq_attr sizes = {.mq_maxmsg = 1, .mq_msgsize = sizeof buffer};
    char name[64];
    snprintf(name, sizeof name, "/diecast-library-%d", getpid());
    queue = mq_open(name, O_CREAT | O_RDWR, 0600, &sizes);
    mq_unlink(name);
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    sem_init(&semaphore, 0, 0);
    for (kind = 0; kind < 12; kind++) {
        pthread_t thread;
        void *result = NULL;
        ready = cleaned = 0;
        pthread_create(&thread, NULL, waits, NULL);
        while (!ready) sched_yield();
        usleep(30000);
        long begin = mono();
        pthread_cancel(thread);
        pthread_join(thread, &result);
        same("cancelled", "%d %d cleaned %d soon %d", kind, result == PTHREAD_CANCELED, cleaned, mono() - begin < 5 * SEC);
    }
    unlink(fifo);
}

int main(int argc, char **argv) {
    detached();
    spawned(argc > 1 ? argv[1] : "/bin/true");
    cancelled();
    return 0;
}
