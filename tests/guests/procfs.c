// Files of /proc that tell time: they agree with the clocks, and descriptors of them behave as natively.
//
// Covers: open openat openat2 lseek
#include "guest.h"
#include <sys/auxv.h>
#include <sys/resource.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define TICK (10 * MS)

static char text[1 << 16];

// A whole file; its length, or minus errno.
static long slurp(const char *path) {
    long fd = R3(SYS_open, path, O_RDONLY, 0), len = 0, n;
    if (fd < 0) return fd;
    while ((n = read(fd, text + len, sizeof text - 1 - len)) > 0) len += n;
    text[len] = 0;
    close(fd);
    return n < 0 ? -errno : len;
}

static long uptime_in(const char *s) {
    long whole = 0, part = 0;
    sscanf(s, "%ld.%ld", &whole, &part);
    return whole * SEC + part * TICK;
}

static long btime(void) {
    slurp("/proc/stat");
    char *at = strstr(text, "\nbtime ");
    return at ? atol(at + 7) : -1;
}

// A field of /proc/PID/stat, counted from 1.
static long field(const char *path, int number) {
    if (slurp(path) <= 0) return -1;
    char *at = strrchr(text, ')') + 2;
    for (int i = 3; i < number; i++) at = strchr(at, ' ') + 1;
    return atol(at);
}

static void clocks(void) {
    long before = now(CLOCK_BOOTTIME);
    slurp("/proc/uptime");
    line("range uptime %ld %ld %ld", before - TICK, uptime_in(text), now(CLOCK_BOOTTIME));
    long boot = (now(CLOCK_REALTIME) - now(CLOCK_BOOTTIME)) / SEC;
    line("range btime %ld %ld %ld", boot - 1, btime(), boot + 1);
    before = now(CLOCK_BOOTTIME);
    int gate[2];
    if (pipe(gate)) _exit(97);
    pid_t pid = fork();
    if (pid == 0) {
        char c;
        close(gate[1]);
        _exit(read(gate[0], &c, 1) < 0);
    }
    long after = now(CLOCK_BOOTTIME);
    char path[64];
    sprintf(path, "/proc/%d/stat", pid);
    // The kernel's tick is real: two of the frame's at TDF 0.5.
    line("range started %ld %ld %ld", before - 4 * TICK, field(path, 22) * TICK, after);
    close(gate[1]);
    close(gate[0]);
    waitpid(pid, NULL, 0);
    slurp("/proc/loadavg");
    float a, b, c;
    int running, total, last;
    SAME("loadavg.fields", sscanf(text, "%f %f %f %d/%d %d", &a, &b, &c, &running, &total, &last));
}

static void burn(long ns) {
    long from = now(CLOCK_PROCESS_CPUTIME_ID);
    while (now(CLOCK_PROCESS_CPUTIME_ID) - from < ns) {}
}

static long cpu_of(const char *path) { return (field(path, 14) + field(path, 15)) * TICK; }

static void total_cpu(long *busy, long *all) {
    unsigned long f[8] = {0};
    slurp("/proc/stat");
    sscanf(text, "cpu %lu %lu %lu %lu %lu %lu %lu %lu", f, f + 1, f + 2, f + 3, f + 4, f + 5, f + 6, f + 7);
    *busy = (f[0] + f[1] + f[2]) * TICK;
    *all = 0;
    for (int i = 0; i < 8; i++) *all += f[i] * TICK;
}

static void cpu(void) {
    long busy, all, busy_then, all_then, at = now(CLOCK_BOOTTIME);
    total_cpu(&busy, &all);
    burn(120 * MS);
    // Both parts are rounded down.
    long low = now(CLOCK_PROCESS_CPUTIME_ID) - 3 * TICK, shown = cpu_of("/proc/self/stat");
    line("range cpu.self %ld %ld %ld", low, shown, now(CLOCK_PROCESS_CPUTIME_ID) + 2 * TICK);
    nanosleep(&(ts_t){0, 100 * MS}, NULL);
    total_cpu(&busy_then, &all_then);
    long passed = (now(CLOCK_BOOTTIME) - at) * sysconf(_SC_NPROCESSORS_ONLN);
    line("range cpu.busy %ld %ld %ld", 60 * MS, busy_then - busy, passed * 2);
    line("range cpu.all %ld %ld %ld", passed / 3, all_then - all, passed * 2);
    pid_t pid = fork();
    if (pid == 0) {
        burn(120 * MS);
        _exit(0);
    }
    siginfo_t info;
    waitid(P_PID, pid, &info, WEXITED | WNOWAIT);
    char path[64];
    sprintf(path, "/proc/%d/stat", pid);
    line("range cpu.child %ld %ld %ld", 80 * MS, cpu_of(path), 250 * MS);
    waitpid(pid, NULL, 0);
    long children = (field("/proc/self/stat", 16) + field("/proc/self/stat", 17)) * TICK;
    line("range cpu.children %ld %ld %ld", 80 * MS, children, 250 * MS);
}

// Descriptors: numbers, flags, positions, as of any file of /proc.
static void descriptors(void) {
    long fd = R3(SYS_openat, AT_FDCWD, "/proc/uptime", O_RDONLY | O_CLOEXEC), next = R3(SYS_open, "/proc/stat", O_RDONLY, 0);
    same("fd.next", "%ld %d %d", next - fd, fcntl(fd, F_GETFD), fcntl(next, F_GETFD));
    same("fd.mode", "%d %ld", fcntl(fd, F_GETFL) & O_ACCMODE, R3(SYS_write, fd, "x", 1));
    char one[2] = {0}, all[64] = {0};
    int n = 0;
    while (read(fd, one, 1) == 1 && n < 60) all[n++] = one[0];
    long first = uptime_in(all);
    SAME("fd.whole", n > 0 && all[n - 1] == '\n');
    nanosleep(&(ts_t){0, 200 * MS}, NULL);
    SAME("fd.rewind", R3(SYS_lseek, fd, 0, SEEK_SET));
    n = read(fd, all, sizeof all - 1);
    all[n > 0 ? n : 0] = 0;
    SAME("fd.anew", uptime_in(all) >= first + 190 * MS);
    // In a child that has it from us, too.
    nanosleep(&(ts_t){0, 50 * MS}, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        lseek(fd, 0, SEEK_SET);
        n = read(fd, all, sizeof all - 1);
        _exit(uptime_in(all) < first + 230 * MS);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    SAME("fd.child", status);
    close(next);
    close(fd);
    struct rlimit old, few = {fd + 1, 0};
    getrlimit(RLIMIT_NOFILE, &old);
    few.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_NOFILE, &few);
    SAME("fd.last", R3(SYS_open, "/proc/uptime", O_RDONLY, 0) == fd);
    SAME("fd.none", R3(SYS_open, "/proc/uptime", O_RDONLY, 0));
    setrlimit(RLIMIT_NOFILE, &old);
    close(fd);
}

static long tells(long fd) {
    char all[64] = {0};
    long before = now(CLOCK_BOOTTIME);
    if (fd < 0) return fd;
    long n = read(fd, all, sizeof all - 1), shown = uptime_in(all);
    close(fd);
    return n > 0 && shown >= before - SEC && shown <= now(CLOCK_BOOTTIME);
}

static void ways(void) {
    char dir[] = "/tmp/procfs.XXXXXX", link[64];
    if (!mkdtemp(dir)) _exit(98);
    sprintf(link, "%s/u", dir);
    SAME("way.link", symlink("/proc/uptime", link) == 0 && tells(open(link, O_RDONLY)) == 1);
    unlink(link);
    rmdir(dir);
    int proc = open("/proc", O_RDONLY | O_DIRECTORY);
    SAME("way.openat", tells(R3(SYS_openat, proc, "uptime", O_RDONLY)));
    struct {
        unsigned long flags, mode, resolve;
    } how = {O_RDONLY, 0, 0};
    SAME("way.openat2", tells(R4(SYS_openat2, proc, "uptime", &how, sizeof how)));
    SAME("way.openat2.short", R4(SYS_openat2, proc, "uptime", &how, 4));
    close(proc);
    if (chdir("/proc")) _exit(96);
    SAME("way.relative", tells(R3(SYS_open, "uptime", O_RDONLY, 0)));
    SAME("way.path", R3(SYS_open, "uptime", O_PATH, 0) > 0);
    SAME("none", R3(SYS_open, "/proc/uptim", O_RDONLY, 0));
    SAME("fault", R3(SYS_open, BAD, O_RDONLY, 0));
    SAME("directory", R3(SYS_open, "/proc/uptime", O_RDONLY | O_DIRECTORY, 0));
    SAME("gone", slurp("/proc/4194303/stat"));
    SAME("other", slurp("/proc/self/comm"));
    SAME("seek.bad", R3(SYS_lseek, 99, 0, SEEK_SET));
}

static unsigned long set_in(const char *path, const char *key) {
    slurp(path);
    char *at = strstr(text, key);
    // A runtime's own signals, 32 and 33, may be ignored by whoever runs this.
    return at ? strtoul(at + strlen(key), NULL, 16) & ~0x180000000UL : -1UL;
}

static void nothing(int sig) { (void)sig; }

// What the program did with the frame's own signals, and nothing else, stands in its status.
static void signals(void) {
    static const char *KEYS[] = {"\nShdPnd:\t", "\nSigBlk:\t", "\nSigIgn:\t", "\nSigCgt:\t", "\nSeccomp:\t", "\nSeccomp_filters:\t"};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 6; i++) same("status", "%d %s %lx", round, KEYS[i] + 1, set_in("/proc/self/status", KEYS[i]));
        same("stat.sets", "%d %ld %ld %ld", round, field("/proc/self/stat", 32), field("/proc/self/stat", 33), field("/proc/self/stat", 34));
        same("seccomp", "%d %d", round, prctl(PR_GET_SECCOMP));
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGTRAP);
        if (round == 0) {
            on_signal(SIGSYS, 0, nothing);
            sigprocmask(SIG_BLOCK, &set, NULL);
            kill(getpid(), SIGTRAP);
        } else {
            on_signal(SIGTRAP, 0, SIG_IGN);
            sigprocmask(SIG_UNBLOCK, &set, NULL);
        }
    }
    on_signal(SIGTRAP, 0, SIG_DFL);
    on_signal(SIGSYS, 0, nothing);
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    char path[64];
    sprintf(path, "/proc/%d/status", pid);
    same("status.child", "%lx %lx", set_in(path, "\nSigIgn:\t"), set_in(path, "\nSigCgt:\t"));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

// The kernel's copy of the auxiliary vector is what the program was given: debuggers and profilers find the vDSO by it.
static void auxiliary(void) {
    unsigned long *pair = (unsigned long *)text;
    long len = slurp("/proc/self/auxv");
    SAME("auxv", len > 0 && len % 16 == 0);
    for (long i = 0; i < len / 16 && pair[2 * i] != AT_NULL; i++) {
        char name[32];
        sprintf(name, "auxv.%lu", pair[2 * i]);
        SAME(name, pair[2 * i + 1] == getauxval(pair[2 * i]));
    }
}

int main(void) {
    auxiliary();
    clocks();
    cpu();
    descriptors();
    ways();
    signals();
    return 0;
}
