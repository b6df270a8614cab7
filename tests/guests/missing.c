// Execs of files that are not there, may not be seen or are no programs: the error of each, and how long a search takes.
//
// Covers: execve
#include "guest.h"
#include <sys/stat.h>
#include <sys/wait.h>

static char folder[] = "/tmp/diecast-missing-XXXXXX";

static void fails(const char *who, const char *end) {
    char path[5200], *args[] = {"x", NULL};
    snprintf(path, sizeof path, "%s%s", *end == '+' ? folder : "", end + (*end == '+'));
    int r = execve(path, args, environ);
    same(who, "%.20s %d %d", end, r, errno);
}

int main(void) {
    static char longer[300], deeper[5100];
    if (!mkdtemp(folder)) return 1;
    chmod(folder, 0755);
    char file[64], inner[64], plain[64], link_[64];
    snprintf(file, sizeof file, "%s/file", folder), snprintf(inner, sizeof inner, "%s/inner", folder);
    snprintf(plain, sizeof plain, "%s/inner/plain", folder), snprintf(link_, sizeof link_, "%s/link", folder);
    mkdir(inner, 0700), close(creat(file, 0644)), close(creat(plain, 0644));
    if (symlink("/nowhere", link_)) return 2;
    memset(longer, 'a', sizeof longer - 1), longer[0] = '/';
    for (unsigned i = 0; i + 2 < sizeof deeper; i += 2) memcpy(deeper + i, "/a", 2);
    const char *paths[] = {"/nonexistent/x", "/usr/bin/none-such", "+/file/x", "+/file", "+/inner/none", "+/inner/plain", "+/link", "+/link/y", "+/none/",
                           "/usr/bin/", "/", "/proc/self/fd/99", "/proc/none", "/dev/none", "/bin/none-such", "none-such", "./none-such",
                           "../none-such", "/usr/../none-such", "", longer, deeper};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) fails("root", paths[i]);
    fflush(stdout);
    if (fork() == 0) {
        if (setgid(65534) || setuid(65534)) _exit(3);
        for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) fails("nobody", paths[i]);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    // A search of PATH asks for several that are not there before the one that is.
    enum { TIMES = 200 };
    char *args[] = {"x", NULL};
    long m = mono();
    for (int i = 0; i < TIMES; i++) execve("/usr/bin/none-such", args, environ);
    line("range missing.took 0 %ld %d", (mono() - m) / TIMES, 150000);
    unlink(plain), rmdir(inner), unlink(file), unlink(link_), rmdir(folder);
    return 0;
}
