// Which cores there are, which ones threads ask for, real-time policies and nice values.
//
// Covers: sched_setaffinity sched_getaffinity getcpu sched_setscheduler sched_getscheduler sched_setparam
// Covers: sched_getparam sched_setattr sched_getattr sched_rr_get_interval personality
#include "guest.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/personality.h>
#include <sys/resource.h>

typedef struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t times[3]; } attr_t;
static unsigned long set_of(long pid) {
    unsigned long m[128] = {0};
    long r = R3(SYS_sched_getaffinity, pid, sizeof m, m);
    return r < 0 ? (unsigned long)r : m[0];
}
static long pin(long pid, unsigned long mask) { return R3(SYS_sched_setaffinity, pid, 8, &mask); }
static long policy(long pid, int p, int priority) { return R3(SYS_sched_setscheduler, pid, p, &priority); }
static long priority(long pid) {
    int p = -1;
    long r = R2(SYS_sched_getparam, pid, &p);
    return r < 0 ? r : p;
}
static long tid(void) { return R0(SYS_gettid); }

// What a child of this thread has of it, in one line.
static void child(const char *name) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        line("= cores.child.%s %lx %ld %ld", name, set_of(0), R1(SYS_sched_getscheduler, 0), priority(0));
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}

// A file of /proc about a process or thread ("self/task/7").
static FILE *file_of(const char *whose, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/%s", whose, name);
    return fopen(path, "r");
}

// A line of its status.
static void status(const char *whose, const char *key, char word[128]) {
    char row[1024], format[64];
    FILE *f = file_of(whose, "status");
    snprintf(format, sizeof format, "%s:\t%%127s", key);
    *word = 0;
    while (f && fgets(row, sizeof row, f) && sscanf(row, format, word) != 1) {}
    if (f) fclose(f);
}

// The numbers of its stat, as proc(5) counts them: from 4 on.
static void stat_of(const char *whose, long v[53]) {
    char row[1024];
    FILE *f = file_of(whose, "stat");
    char *at = f && fgets(row, sizeof row, f) ? strrchr(row, ')') + 4 : NULL;
    for (int i = 0; i < 53; i++) v[i] = at && i >= 4 ? strtol(at, &at, 10) : -1;
    if (f) fclose(f);
}

// What /proc tells: cores, priority, nice value, whether its core is one of those, policy.
static void told(const char *name, const char *whose) {
    char mask[128], list[128];
    long v[53];
    status(whose, "Cpus_allowed", mask);
    status(whose, "Cpus_allowed_list", list);
    stat_of(whose, v);
    unsigned long cores = 0;
    for (char *group = strtok(mask, ","); group; group = strtok(NULL, ",")) cores = cores << 32 | strtoul(group, NULL, 16);
    long on_one = v[39] >= 0 ? (long)(cores >> v[39] & 1) : -1;
    line("= told.%s %lx %s %ld %ld %ld %ld %ld", name, cores, list, v[18], v[19], on_one, v[40], v[41]);
}
static void told_of_thread(const char *name, long id) {
    char whose[64];
    snprintf(whose, sizeof whose, "self/task/%ld", id);
    told(name, whose);
}

// The same of this process by another.
static void told_by_child(const char *name) {
    char whose[64];
    snprintf(whose, sizeof whose, "%d", getpid());
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        told(name, whose);
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}

static void affinity(unsigned long all) {
    unsigned long m[128] = {0};
    SAME("cores.all", set_of(0));
    SAME("cores.same", pin(0, all));
    told("all", "self");
    SAME("cores.none", pin(0, 0));
    SAME("cores.beyond", pin(0, ~0ul));
    SAME("cores.only_beyond", pin(0, 1ul << 63));
    SAME("cores.short", R3(SYS_sched_getaffinity, 0, 0, m));
    SAME("cores.odd", R3(SYS_sched_getaffinity, 0, 9, m));
    SAME("cores.get.fault", R3(SYS_sched_getaffinity, 0, 8, BAD));
    SAME("cores.set.fault", R3(SYS_sched_setaffinity, 0, 8, BAD));
    SAME("cores.set.empty", R3(SYS_sched_setaffinity, 0, 0, m));
    SAME("cores.get.nobody", R3(SYS_sched_getaffinity, 99999999, 128, m));
    SAME("cores.set.nobody", pin(99999999, 1));
    SAME("cores.set.negative", pin(-1, 1));
    SAME("cores.first", pin(0, 1));
    SAME("cores.first.get", set_of(0));
    SAME("cores.first.by_tid", set_of(tid()));
    SAME("cores.first.len", R3(SYS_sched_getaffinity, 0, 8, m));
    SAME("cores.first.getcpu", sched_getcpu());
    unsigned cpu = 9, memory = 9;
    SAME("getcpu", R3(SYS_getcpu, &cpu, &memory, 0));
    line("= getcpu.says %u %u", cpu, memory);
    SAME("getcpu.null", R3(SYS_getcpu, 0, 0, 0));
    SAME("getcpu.fault", R3(SYS_getcpu, BAD, 0, 0));
    child("pinned");
    told("pinned", "self");
    told_by_child("pinned.other");
}

static int go[2], back[2];
static long other;
static void *thread(void *name) {
    other = tid();
    char c = 0;
    line("= cores.thread.inherits %lx", set_of(0));
    if (write(back[1], &c, 1) != 1 || read(go[0], &c, 1) != 1) _exit(90);
    line("= cores.thread.%s %lx %ld", (char *)name, set_of(0), R1(SYS_sched_getscheduler, 0));
    child("of_thread");
    return NULL;
}

// One thread sets another's.
static void others(unsigned long all) {
    pthread_t t;
    char c = 0;
    if (pipe(go) || pipe(back)) _exit(91);
    pin(0, 1);
    pthread_create(&t, NULL, thread, "set");
    if (read(back[0], &c, 1) != 1) _exit(92);
    SAME("cores.other.set", pin(other, all));
    SAME("cores.other.get", set_of(other));
    SAME("cores.other.policy", policy(other, SCHED_RR, 7));
    SAME("cores.other.get_policy", R1(SYS_sched_getscheduler, other));
    SAME("cores.other.own", set_of(0));
    told_of_thread("thread", other);
    told_of_thread("thread.own", tid());
    if (write(go[1], &c, 1) != 1) _exit(93);
    pthread_join(t, NULL);
    pin(0, all);
}

static void policies(void) {
    attr_t a = {0}, b = {.size = 48, .policy = SCHED_FIFO, .priority = 3, .flags = 1};
    ts_t slice = {9, 9};
    SAME("policy.default", R1(SYS_sched_getscheduler, 0));
    SAME("policy.fifo.0", policy(0, SCHED_FIFO, 0));
    SAME("policy.fifo.100", policy(0, SCHED_FIFO, 100));
    SAME("policy.fifo.null", R3(SYS_sched_setscheduler, 0, SCHED_FIFO, 0));
    SAME("policy.fifo.fault", R3(SYS_sched_setscheduler, 0, SCHED_FIFO, BAD));
    SAME("policy.fifo.nobody", policy(99999999, SCHED_FIFO, 1));
    SAME("policy.fifo.negative", policy(-1, SCHED_FIFO, 1));
    SAME("policy.unknown", policy(0, 77, 1));
    SAME("policy.get.negative", R1(SYS_sched_getscheduler, -1));
    SAME("policy.fifo", policy(0, SCHED_FIFO, 5));
    line("= policy.fifo.get %ld %ld", R1(SYS_sched_getscheduler, 0), priority(0));
    SAME("policy.fifo.slice", R2(SYS_sched_rr_get_interval, 0, &slice));
    line("= policy.fifo.slice.is %ld %ld", slice.tv_sec, slice.tv_nsec);
    child("fifo");
    told("fifo", "self");
    told_by_child("fifo.other");
    SAME("policy.param", R2(SYS_sched_setparam, 0, (&(int){50})));
    SAME("policy.param.0", R2(SYS_sched_setparam, 0, (&(int){0})));
    SAME("policy.param.null", R2(SYS_sched_setparam, 0, 0));
    SAME("policy.param.fault", R2(SYS_sched_setparam, 0, BAD));
    SAME("policy.param.get", priority(0));
    SAME("policy.rr", policy(0, SCHED_RR | 0x40000000, 9));
    SAME("policy.rr.get", R1(SYS_sched_getscheduler, 0));
    SAME("policy.rr.slice", R2(SYS_sched_rr_get_interval, 0, &slice));
    line("= policy.rr.slice.is %ld %ld", slice.tv_sec, slice.tv_nsec);
    SAME("attr.get", R4(SYS_sched_getattr, 0, &a, sizeof a, 0));
    line("= attr.is %u %u %lx %d %u", a.size, a.policy, a.flags, a.nice, a.priority);
    child("reset");
    SAME("attr.set", R3(SYS_sched_setattr, 0, &b, 0));
    line("= attr.set.get %lx %ld", R1(SYS_sched_getscheduler, 0), priority(0));
    b.size = 40;
    SAME("attr.small", R3(SYS_sched_setattr, 0, &b, 0));
    SAME("attr.fault", R3(SYS_sched_setattr, 0, BAD, 0));
    SAME("attr.get.small", R4(SYS_sched_getattr, 0, &a, 40, 0));
    SAME("policy.batch", policy(0, SCHED_BATCH, 0));
    line("= policy.batch.get %ld %ld", R1(SYS_sched_getscheduler, 0), priority(0));
    SAME("policy.param.fair", R2(SYS_sched_setparam, 0, (&(int){3})));
    SAME("policy.other", policy(0, SCHED_OTHER, 0));
}

static void nice_values(void) {
    SAME("nice", R3(SYS_setpriority, PRIO_PROCESS, 0, 5));
    SAME("nice.get", R2(SYS_getpriority, PRIO_PROCESS, 0));
    told("nice", "self");
    SAME("nice.up", R3(SYS_setpriority, PRIO_PROCESS, 0, -3));
    SAME("nice.up.get", R2(SYS_getpriority, PRIO_PROCESS, 0));
    SAME("nice.back", R3(SYS_setpriority, PRIO_PROCESS, 0, 0));
}

// Without privilege; the limit is of real-time priorities.
static void unprivileged(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit l = {10, 10};
        policy(0, SCHED_OTHER, 0);
        if (setresuid(65534, 65534, 65534)) _exit(94);
        SAME("nobody.fifo", policy(0, SCHED_FIFO, 1));
        SAME("nobody.parent", pin(getppid(), 1));
        SAME("nobody.nice", R3(SYS_setpriority, PRIO_PROCESS, 0, -1));
        fflush(stdout);
        _exit(setrlimit(RLIMIT_RTPRIO, &l) == 0);
    }
    waitpid(pid, NULL, 0);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        struct rlimit l = {10, 10};
        // Root without CAP_SYS_RESOURCE can't raise it.
        SAME("limit", setrlimit(RLIMIT_RTPRIO, &l));
        if (setresuid(65534, 65534, 65534)) _exit(95);
        SAME("limited.11", policy(0, SCHED_FIFO, 11));
        SAME("limited.10", policy(0, SCHED_FIFO | 0x40000000, 10));
        SAME("limited.reset", policy(0, SCHED_FIFO, 10));
        SAME("limited.down", policy(0, SCHED_FIFO | 0x40000000, 4));
        SAME("limited.pin", pin(0, 1));
        line("= limited.get %lx %ld %lx", R1(SYS_sched_getscheduler, 0), priority(0), set_of(0));
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}

// How many lines of a file begin so.
static long lines_of(const char *path, const char *start) {
    char row[4096];
    long found = 0;
    FILE *f = fopen(path, "r");
    while (f && fgets(row, sizeof row, f)) found += !strncmp(row, start, strlen(start));
    if (f) fclose(f);
    return found;
}

// What files tell of the cores.
static void shown(void) {
    long directories = 0, number;
    char rest;
    DIR *d = opendir("/sys/devices/system/cpu");
    for (struct dirent *e; d && (e = readdir(d));) directories += sscanf(e->d_name, "cpu%ld%c", &number, &rest) == 1;
    if (d) closedir(d);
    line("value online %ld", sysconf(_SC_NPROCESSORS_ONLN));
    line("value configured %ld", sysconf(_SC_NPROCESSORS_CONF));
    line("value processors %ld", lines_of("/proc/cpuinfo", "processor\t"));
    line("value directories %ld", directories);
}

static int count(void) {
    shown();
    unsigned long all = set_of(0), outside = 0, differ = 0;
    int cores = __builtin_popcountl(all);
    for (int i = 0; i < 200; i++) {
        long v[53], before = sched_getcpu();
        stat_of("self", v);
        differ += before == sched_getcpu() && v[39] != before;
    }
    line("value differ %ld", differ);
    for (int i = 0; i < 10000; i++) outside += !(all >> sched_getcpu() & 1);
    line("value affinity %d", cores);
    line("value outside %ld", outside);
    pin(0, 1ul << (cores - 1));
    line("value last %d", sched_getcpu());
    char list[128];
    status("self", "Cpus_allowed_list", list);
    line("value told %s", list);
    line("value beyond %ld", cores < 64 ? pin(0, 1ul << cores) : pin(0, 0));
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "count")) return count();
    if (argc > 1) {
        line("= exec %lx %ld %ld", set_of(0), R1(SYS_sched_getscheduler, 0), priority(0));
        line("= exec.personality %ld", R1(SYS_personality, 0xffffffff));
        return 0;
    }
    unsigned long all = set_of(0);
    affinity(all);
    others(all);
    policies();
    nice_values();
    unprivileged();
    SAME("personality", R1(SYS_personality, ADDR_NO_RANDOMIZE));
    SAME("personality.get", R1(SYS_personality, 0xffffffff));
    // The next image has what this one had.
    pin(0, 1);
    policy(0, SCHED_FIFO, 2);
    fflush(stdout);
    execl("/proc/self/exe", "cores", "exec", NULL);
    return 96;
}
