// Many execs of the smallest program, by vfork: how many end well, and how the others end. With "bare" as third argument
// without an environment and with 0 to 63 arguments, so that its stack is about as small as one can be.
#include "guest.h"

int main(int argc, char **argv) {
    int n = atoi(argv[2]), bare = argc > 3, good = 0, killed = 0, other = 0;
    for (int i = 0; i < n; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            char *few[65] = {"tiny"}, *none[] = {NULL};
            for (int k = 1; bare && k <= i % 64; k++) few[k] = "a";
            execve(argv[1], few, bare ? none : environ);
            _exit(127);
        }
        int status = -1;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        if (status == 0) good++;
        else if (WIFSIGNALED(status)) killed++;
        else other++;
    }
    line("value good %d", good);
    line("value killed %d", killed);
    line("value other %d", other);
    return argc > 99;
}
