// C++: exceptions thrown out of handlers and through frames that were interrupted in a trapped call; destructors of a
// cancelled thread. Prints what must be the same in every world.
#include <csignal>
#include <cstdio>
#include <ctime>
#include <cerrno>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/time.h>
#include <thread>
#include <chrono>
#include <future>
#include <unistd.h>

static int destroyed;
struct Guard {
    ~Guard() { destroyed++; }
};

static void thrower(int sig) { throw std::runtime_error("signal " + std::to_string(sig)); }

static void interrupted(const char *name, int flags, void (*wait)()) {
    struct sigaction a {};
    a.sa_handler = thrower;
    a.sa_flags = flags;
    sigaction(SIGALRM, &a, nullptr);
    for (int i = 0; i < 5; i++) {
        itimerval v{{0, 0}, {0, 10000}};
        try {
            Guard g;
            setitimer(ITIMER_REAL, &v, nullptr);
            wait();
            std::printf("= %s ended\n", name);
        } catch (const std::exception &e) {
            std::printf("= %s %s\n", name, e.what());
        }
        // The handler did not return: its signal is still blocked.
        sigset_t s;
        sigemptyset(&s);
        sigaddset(&s, SIGALRM);
        sigprocmask(SIG_UNBLOCK, &s, nullptr);
    }
}

static void sleeps() {
    timespec t{3, 0};
    nanosleep(&t, nullptr);
}
static void spins() {
    for (volatile long i = 0; i < 4000000000L; i++) {}
}

static void *cancelled(void *) {
    Guard g;
    for (;;) sleeps();
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    interrupted("sleep", 0, sleeps);
    interrupted("sleep.nodefer", SA_NODEFER, sleeps);
    interrupted("spin", 0, spins);
    std::printf("= destroyed %d\n", destroyed);
    for (int i = 0; i < 5; i++) {
        pthread_t t;
        void *result;
        pthread_create(&t, nullptr, cancelled, nullptr);
        usleep(5000);
        pthread_cancel(t);
        pthread_join(t, &result);
        std::printf("= cancelled %d\n", result == PTHREAD_CANCELED);
    }
    std::printf("= destroyed %d\n", destroyed);
    auto f = std::async(std::launch::async, [] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        throw std::logic_error("from a thread");
        return 1;
    });
    try {
        f.get();
    } catch (const std::exception &e) {
        std::printf("= async %s\n", e.what());
    }
}
