// Children that are killed at every instant of their exec, or stopped, or continued. Prints how many ended by the signal,
// how many stopped and went on to their end, and how many just ended.
#include "guest.h"

int main(int argc, char **argv) {
    if (argc > 1) {
        if (argv[1][0] == 'w') pause();
        return 0;
    }
    int killed = 0, status;
    char self[512] = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 98;
    for (int i = 0; i < 600; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            execl(self, self, "waits", NULL);
            _exit(127);
        }
        // About 600 us of exec, in steps of a microsecond.
        unsigned long until = tsc() + (unsigned long)i * 2200;
        while (tsc() < until) {}
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    }
    same("killed", "%d", killed);
    int stopped = 0, ended = 0;
    for (int i = 0; i < 200; i++) {
        int sig = i % 2 ? SIGCONT : SIGSTOP;
        pid_t pid = fork();
        if (pid == 0) {
            execl(self, self, "ends", NULL);
            _exit(127);
        }
        unsigned long until = tsc() + (unsigned long)i * 6600;
        while (tsc() < until) {}
        kill(pid, sig);
        waitpid(pid, &status, WUNTRACED);
        if (WIFSTOPPED(status)) {
            kill(pid, SIGCONT);
            waitpid(pid, &status, 0);
            stopped += status == 0 && sig == SIGSTOP;
        } else {
            // It was over before, or went on.
            ended += status == 0;
        }
    }
    same("stopped", "%d others %d", stopped > 0, stopped + ended);
    return 0;
}
