// A parent that traces its child: what it sees of it, but for the SIGSYS of each trapped call in a frame.
//
// Covers: ptrace
#include "guest.h"
#include <sys/ptrace.h>

// The next stop that is none of a frame's, or the end.
static int next_stop(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSYS)
        ptrace(PTRACE_CONT, pid, NULL, (void *)SIGSYS);
    return status;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        nanosleep(&(ts_t){0, 1000000}, NULL);
        return 3;
    }
    for (int execs = 0; execs < 3; execs++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(90);
            R3(SYS_tgkill, getpid(), getpid(), SIGSTOP);
            if (execs == 2) execl("/no/such/program", "none", NULL);
            if (execs) execl("/proc/self/exe", argv[0], "child", NULL);
            _exit(7);
        }
        same("stop", "%d: %x", execs, next_stop(pid));
        ptrace(PTRACE_CONT, pid, NULL, NULL);
        int status = next_stop(pid);
        same("then", "%d: %x", execs, status);
        if (WIFSTOPPED(status)) {
            ptrace(PTRACE_CONT, pid, NULL, NULL);
            same("end", "%d: %x", execs, next_stop(pid));
        }
    }
    same("again", "%ld", ptrace(PTRACE_CONT, getpid(), NULL, NULL));
    return 0;
}
