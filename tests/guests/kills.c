// Children that are killed at every instant of their exec. Prints how many ended by the signal.
#include "guest.h"

int main(int argc, char **argv) {
    if (argc > 1) {
        pause();
        return 0;
    }
    int killed = 0, status;
    char self[512] = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 98;
    for (int i = 0; i < 600; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            execl(self, self, "child", NULL);
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
    return 0;
}
