// A request that passes through several threads or processes of its node takes as long as all of them work, one after another.
//
//   handed              asks itself over the loopback device: how long requests of each kind take, median and lower decile
//   handed serve        answers requests on UDP port 7
//   handed ask HOST     asks there
//
// Each kind of request is STAGES pieces of work: by one thread; from thread to thread through pipes, by a condition variable or
// through connections of the loopback device; or by a child each, that the server waits for.
#include "guest.h"
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>

enum { STAGES = 6, ROUNDS = 60 };
#define WORK (100 * 1000L)
static const char *const kinds[] = {"alone", "pipes", "condition", "loopback", "children"};
enum { ALONE, PIPES, CONDITION, LOOPBACK, CHILDREN, KINDS };

static long turns;
static volatile unsigned long sink;
static int pipes[STAGES + 1][2], sockets[STAGES + 1][2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn = -1;

static void spin(long n) {
    unsigned long x = sink;
    for (long i = 0; i < n; i++) x = x * 6364136223846793005ul + 1442695040888963407ul;
    sink = x;
}

static void work(void) { spin(turns); }

// Turns of the loop in WORK: the fastest of some.
static void calibrate(void) {
    enum { MANY = 1000000 };
    long least = SEC;
    for (int i = 0; i < 10; i++) {
        long began = now(CLOCK_THREAD_CPUTIME_ID);
        spin(MANY);
        long took = now(CLOCK_THREAD_CPUTIME_ID) - began;
        if (took < least) least = took;
    }
    turns = MANY * WORK / least;
}

static void pass(int from, int to) {
    char c;
    while (read(from, &c, 1) == 1) {
        work();
        if (write(to, &c, 1) != 1) _exit(91);
    }
}
static void *of_pipes(void *stage) {
    pass(pipes[(long)stage][0], pipes[(long)stage + 1][1]);
    return NULL;
}
static void *of_sockets(void *stage) {
    pass(sockets[(long)stage][0], sockets[(long)stage + 1][1]);
    return NULL;
}
static void *of_turns(void *stage) {
    for (;;) {
        pthread_mutex_lock(&lock);
        while (turn != (long)stage) pthread_cond_wait(&turned, &lock);
        pthread_mutex_unlock(&lock);
        work();
        pthread_mutex_lock(&lock);
        turn++;
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

// A connection of the loopback device: what is written to the second end comes out of the first.
static void connection(int ends[2]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 1) || getsockname(listener, (void *)&a, &length) ||
        connect(ends[1], (void *)&a, sizeof a) || (ends[0] = accept(listener, NULL, NULL)) < 0)
        _exit(92);
    close(listener);
}

static void serve_kind(int kind) {
    char c = 0;
    switch (kind) {
    case ALONE:
        for (int i = 0; i < STAGES; i++) work();
        break;
    case PIPES:
        if (write(pipes[0][1], &c, 1) != 1 || read(pipes[STAGES][0], &c, 1) != 1) _exit(93);
        break;
    case LOOPBACK:
        if (write(sockets[0][1], &c, 1) != 1 || read(sockets[STAGES][0], &c, 1) != 1) _exit(94);
        break;
    case CONDITION:
        pthread_mutex_lock(&lock);
        turn = 0;
        pthread_cond_broadcast(&turned);
        while (turn != STAGES) pthread_cond_wait(&turned, &lock);
        pthread_mutex_unlock(&lock);
        break;
    default:
        for (int i = 0; i < STAGES; i++) {
            pid_t child = fork();
            if (child == 0) {
                work();
                _exit(0);
            }
            waitpid(child, NULL, 0);
        }
    }
}

static int bound(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(7)};
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    if (bind(s, (void *)&a, sizeof a)) _exit(95);
    return s;
}

static void *serve(void *s) {
    pthread_t thread;
    struct sockaddr_in from;
    char kind;
    calibrate();
    for (int i = 0; i <= STAGES; i++)
        if (pipe(pipes[i])) _exit(96);
        else connection(sockets[i]);
    for (long i = 0; i < STAGES; i++) {
        pthread_create(&thread, NULL, of_pipes, (void *)i);
        pthread_create(&thread, NULL, of_sockets, (void *)i);
        pthread_create(&thread, NULL, of_turns, (void *)i);
    }
    for (;;) {
        socklen_t length = sizeof from;
        if (recvfrom((int)(long)s, &kind, 1, 0, (void *)&from, &length) != 1) _exit(97);
        serve_kind(kind);
        sendto((int)(long)s, &kind, 1, 0, (void *)&from, length);
    }
}

static void ask(const char *host) {
    struct addrinfo *to, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM};
    if (getaddrinfo(host, "7", &hints, &to)) _exit(98);
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    struct timeval limit = {5, 0};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(s, to->ai_addr, to->ai_addrlen)) _exit(99);
    for (char kind = 0; kind < KINDS; kind++) {
        // The first are to be forgotten: a server that is not there yet, and code that is cold.
        long took[ROUNDS] = {0};
        for (int round = -20; round < ROUNDS; round++) {
            char answer;
            ts_t pause = ts_of(2 * MS);
            nanosleep(&pause, NULL);
            long began = mono();
            send(s, &kind, 1, 0);
            if (recv(s, &answer, 1, 0) == 1 && round >= 0) took[round] = mono() - began;
        }
        qsort(took, ROUNDS, sizeof(long), ascending);
        printf("value %s %ld\nvalue %s-p10 %ld\n", kinds[(int)kind], took[ROUNDS / 2], kinds[(int)kind], took[ROUNDS / 10]);
    }
}

int main(int count, char **args) {
    pthread_t thread;
    if (count == 2) serve((void *)(long)bound());
    if (count == 1) pthread_create(&thread, NULL, serve, (void *)(long)bound());
    ask(count == 3 ? args[2] : "127.0.0.1");
    return 0;
}
