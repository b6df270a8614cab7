// Every way to start a process or a thread ends in the frame, and a failed one leaves the caller in it.
//
// Covers: execve execveat clone3
#include "guest.h"
#include <dirent.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/stat.h>

extern char **environ;
static char self[512], dir[64];

// Am I in the frame? A sleep against the processor's counter, and work against the CPU clock.
static void pace(const char *name) {
    unsigned long c0 = tsc();
    long m = mono();
    nanosleep(&(ts_t){0, 20 * MS}, NULL);
    long v = mono() - m;
    line("wait %s %ld %ld", name, 20 * MS, v);
    line("rate %s %ld %lu", name, v, tsc() - c0);
    m = mono();
    long p = now(CLOCK_THREAD_CPUTIME_ID);
    while (now(CLOCK_THREAD_CPUTIME_ID) - p < 25 * MS) {}
    line("near %s.busy %ld %ld", name, mono() - m, now(CLOCK_THREAD_CPUTIME_ID) - p);
    same("pace", "%s", name);
}

static int descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static char *file(const char *name, const void *text, size_t len, int mode) {
    char *path = malloc(128);
    snprintf(path, 128, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0700);
    if (write(fd, text, len) != (long)len) _exit(94);
    fchmod(fd, mode);
    close(fd);
    return path;
}

static void done(pid_t pid, const char *name) {
    int status = -1;
    waitpid(pid, &status, 0);
    line("= %s status %x", name, status);
}

static void by_fork(void) {
    pid_t pid = fork();
    if (pid == 0) {
        execl(self, self, "pace", "fork", NULL);
        _exit(127);
    }
    done(pid, "fork");
}
static void by_vfork(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        execl(self, self, "pace", "vfork", NULL);
        _exit(127);
    }
    done(pid, "vfork");
}
static void by_spawn(void) {
    pid_t pid;
    char *argv[] = {self, "pace", "posix_spawn", NULL};
    posix_spawnattr_t a;
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_init(&a);
    posix_spawnattr_setflags(&a, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigdefault(&a, &all);
    posix_spawnattr_setsigmask(&a, &all);
    SAME("posix_spawn", posix_spawn(&pid, self, NULL, &a, argv, environ));
    done(pid, "posix_spawn");
    SAME("posix_spawn.missing", posix_spawn(&pid, "/nowhere", NULL, NULL, argv, environ));
}
static void by_system(void) {
    char text[700];
    snprintf(text, sizeof text, "exec %s pace system", self);
    SAME("system", system(text));
}
static void by_popen(void) {
    char text[700];
    snprintf(text, sizeof text, "%s pace popen", self);
    FILE *f = popen(text, "r");
    while (fgets(text, sizeof text, f))
        if (write(1, text, strlen(text)) < 0) _exit(95);
    SAME("popen", pclose(f));
}
static void by_fexecve(void) {
    pid_t pid = fork();
    if (pid == 0) {
        char *argv[] = {"pace", "pace", "fexecve", NULL};
        fexecve(open(self, O_RDONLY | O_CLOEXEC), argv, environ);
        _exit(127);
    }
    done(pid, "fexecve");
}
static void by_memfd(void) {
    int m = memfd_create("guest", MFD_CLOEXEC), fd = open(self, O_RDONLY);
    char block[65536];
    for (ssize_t n; (n = read(fd, block, sizeof block)) > 0;)
        if (write(m, block, n) != n) _exit(96);
    close(fd);
    pid_t pid = fork();
    if (pid == 0) {
        char *argv[] = {"pace", "pace", "memfd", NULL};
        syscall(SYS_execveat, m, "", argv, environ, 0x1000);
        _exit(127);
    }
    close(m);
    done(pid, "memfd");
}
static void by_execveat(void) {
    pid_t pid = fork();
    if (pid == 0) {
        char *slash = strrchr(self, '/');
        *slash = 0;
        char *argv[] = {"pace", "pace", "execveat", NULL};
        syscall(SYS_execveat, open(self, O_PATH), slash + 1, argv, environ, 0);
        _exit(127);
    }
    done(pid, "execveat");
}
static void by_script(void) {
    char text[700];
    snprintf(text, sizeof text, "#!/bin/sh\nexec %s pace \"$1\"\n", self);
    char *shell = file("shell", text, strlen(text), 0700);
    snprintf(text, sizeof text, "#!%s script\n", self);
    char *direct = file("direct", text, strlen(text), 0700);
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            execl(i ? direct : shell, "x", "by_shell", NULL);
            _exit(127);
        }
        done(pid, i ? "script.direct" : "script.shell");
    }
}
static void *exec_here(void *arg) {
    execl(self, self, "pace", "thread", NULL);
    return arg;
}
static void *sleeps(void *arg) {
    for (;;) nanosleep(&(ts_t){0, MS}, NULL);
    return arg;
}
static void by_thread(void) {
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t t;
        for (int i = 0; i < 3; i++) pthread_create(&t, NULL, sleeps, NULL);
        pthread_create(&t, NULL, exec_here, NULL);
        pthread_join(t, NULL);
        _exit(127);
    }
    done(pid, "thread");
}

static void *spins(void *arg) {
    for (volatile long i = 0;; i++) {}
    return arg;
}
// The first thread, beside others that run and whose meter is due.
static void beside_threads(void) {
    for (int turn = 0; turn < 5; turn++) {
        pid_t pid = fork();
        if (pid == 0) {
            pthread_t t;
            for (int i = 0; i < 3; i++) pthread_create(&t, NULL, i ? spins : sleeps, NULL);
            nanosleep(&(ts_t){0, 5 * MS}, NULL);
            execl(self, self, "pace", "beside_threads", NULL);
            _exit(127);
        }
        done(pid, "beside_threads");
    }
}

static void failures(void) {
    int before = descriptors();
    char *none = file("none", "#!/nowhere/interpreter\n", 23, 0700);
    char *plain = file("plain", "x", 1, 0600);
    char *rubbish = file("rubbish", "\177ELF\2\1\1 and then nothing", 25, 0700);
    char *empty = file("empty", "", 0, 0700);
    char *argv[] = {"x", NULL};
    static char *huge[40000];
    static char word[100] = {[0 ... 98] = 'x'};
    for (int i = 0; i < 39999; i++) huge[i] = word;
    for (int i = 0; i < 3; i++) {
        line("= exec missing %ld interpreter %ld mode %ld rubbish %ld empty %ld folder %ld fault %ld argv %ld long %ld below %ld",
             R3(SYS_execve, "/nowhere", argv, NULL), R3(SYS_execve, none, argv, NULL), R3(SYS_execve, plain, argv, NULL),
             R3(SYS_execve, rubbish, argv, NULL), R3(SYS_execve, empty, argv, NULL), R3(SYS_execve, "/", argv, NULL),
             R3(SYS_execve, BAD, argv, NULL), R3(SYS_execve, self, BAD, NULL), R3(SYS_execve, self, huge, NULL),
             R3(SYS_execve, "/bin/sh/below", argv, NULL));
        line("= execveat fd %ld flags %ld", R5(SYS_execveat, 999, "x", argv, NULL, 0), R5(SYS_execveat, -100, "/bin/sh", argv, NULL, 1 << 30));
    }
    same("exec.descriptors", "%d", descriptors() - before);
    pace("after_failures");
}

// A failed exec meets a signal's handler as natively.
static volatile int hits;
static void handler(int sig) { hits += sig > 0; }
static void failures_and_signals(void) {
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &a, NULL);
    struct itimerval v = {{0, 2000}, {0, 2000}};
    setitimer(ITIMER_REAL, &v, NULL);
    int before = descriptors(), missing = 0;
    char *argv[] = {"x", NULL};
    for (int i = 0; i < 200; i++) missing += R3(SYS_execve, "/nowhere", argv, NULL) == -ENOENT;
    setitimer(ITIMER_REAL, NULL, NULL);
    same("exec.under_signals", "%d descriptors %d", missing, descriptors() - before);
}

static void *in_thread(void *arg) {
    pace(arg);
    return NULL;
}
static void threads(void) {
    pthread_t t[3];
    pthread_create(&t[0], NULL, in_thread, "thread.0");
    pthread_create(&t[1], NULL, sleeps, NULL);
    pthread_join(t[0], NULL);
    // The system call itself, as fork.
    long args[11] = {0, 0, 0, 0, SIGCHLD};
    long pid = R2(435, args, 88);
    if (pid == 0) {
        pace("clone3");
        _exit(5);
    }
    done(pid, "clone3");
}

static void storm(void) {
    int bad = 0, status;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 25; i++)
            if (fork() == 0) {
                pid_t pid = fork();
                if (pid == 0) {
                    long m = mono();
                    nanosleep(&(ts_t){0, 3 * MS}, NULL);
                    _exit(mono() - m >= 3 * MS ? 0 : 1);
                }
                waitpid(pid, &status, 0);
                _exit(status != 0);
            }
        while (wait(&status) > 0) bad += status != 0;
    }
    same("storm", "%d", bad);
}

// Forks twice, leaves its session, and is still at the right pace when its parents are long gone.
static void daemon_(void) {
    int p[2];
    char c;
    if (pipe(p)) _exit(97);
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (fork()) _exit(0);
        close(p[0]);
        nanosleep(&(ts_t){0, 300 * MS}, NULL);
        pace("daemon");
        execl(self, self, "pace", "daemon.exec", NULL);
        _exit(127);
    }
    close(p[1]);
    done(pid, "daemon");
    while (read(p[0], &c, 1) > 0) {}
}

// The kernel's copy of the auxiliary vector names the same vDSO as the stack, and the rest of the memory map is kept.
static void auxv(void) {
    unsigned long kernel[128] = {0}, file[128] = {0}, at = getauxval(AT_SYSINFO_EHDR);
    int fd = open("/proc/self/auxv", O_RDONLY), in_kernel = 0, in_file = 0;
    long got = read(fd, file, sizeof file);
    prctl(0x41555856, kernel, sizeof kernel, 0, 0);
    for (int i = 0; i < 126 && file[i]; i += 2) {
        in_kernel += kernel[i] == AT_SYSINFO_EHDR && kernel[i + 1] == at;
        in_file += file[i] == AT_SYSINFO_EHDR && file[i + 1] == at;
    }
    // Older kernels have no PR_GET_AUXV.
    same("auxv", "%d %d %d", in_file, in_kernel == 1 || kernel[0] == 0, got > 200);
    char command[64] = {0};
    fd = open("/proc/self/cmdline", O_RDONLY);
    same("cmdline", "%d", read(fd, command, sizeof command - 1) > 0 && strstr(command, "processes") != NULL);
    char *before = sbrk(0);
    SAME("brk", before != (char *)-1 && sbrk(65536) == before && memset(before, 1, 65536) == before);
}

static volatile int handled[65];
static void on_each(int sig) { handled[sig]++; }
// What a child of vfork does to its handlers and masks is its own and its next image's: Go's and posix_spawn's children
// set all of them to default.
static void vfork_handlers(void) {
    static const int signals[] = {SIGTRAP, SIGSYS, SIGUSR1, SIGSEGV};
    struct { void *f; unsigned long flags; void *restorer; uint64_t mask; } dfl = {SIG_DFL}, ignore = {SIG_IGN}, seen;
    for (int round = 0; round < 2; round++) {
        struct sigaction a = {.sa_handler = on_each};
        sigaddset(&a.sa_mask, SIGTRAP);
        sigaddset(&a.sa_mask, SIGSYS);
        for (int i = 0; i < 4; i++) sigaction(signals[i], &a, NULL);
        pid_t pid = vfork();
        if (pid == 0) {
            for (int i = 0; i < 4; i++) R4(SYS_rt_sigaction, signals[i], &dfl, NULL, 8);
            if (round == 0) _exit(3);
            R4(SYS_rt_sigaction, SIGTRAP, &ignore, NULL, 8);
            execl(self, self, "dispositions", "x", NULL);
            _exit(127);
        }
        done(pid, "vfork.handlers");
        for (int i = 0; i < 4; i++) {
            R4(SYS_rt_sigaction, signals[i], NULL, &seen, 8);
            kill(getpid(), signals[i]);
            same("vfork.handler", "%d %d %lx %d", signals[i], seen.f == (void *)on_each, (long)seen.mask, handled[signals[i]]);
        }
    }
}
// Nor does a handler that it sets reach its parent, with one on an alternate stack of whatever size; it runs in the child.
static void on_each_in_child(int sig) { handled[0] += sig; }
static void sets_handlers(int flags, long stack_len) {
    static const int signals[] = {SIGTRAP, SIGSYS, SIGUSR1, SIGSEGV};
    struct sigaction a = {.sa_handler = on_each, .sa_flags = flags}, seen;
    stack_t stack = {.ss_sp = malloc(16384), .ss_size = stack_len}, none = {.ss_flags = SS_DISABLE};
    for (int i = 0; i < 4; i++) sigaction(signals[i], &a, NULL);
    handled[0] = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        if (stack_len) R2(SYS_sigaltstack, &stack, NULL);
        struct sigaction own = {.sa_handler = on_each_in_child, .sa_flags = flags}, was = {0}, now = {0};
        sigaddset(&own.sa_mask, SIGSYS);
        sigaction(SIGUSR1, &own, &was);
        sigaction(SIGUSR1, NULL, &now);
        kill(getpid(), SIGUSR1);
        _exit((was.sa_handler == on_each) + 2 * (now.sa_handler == on_each_in_child) + 4 * (handled[0] == SIGUSR1));
    }
    done(pid, "vfork.sets_handlers");
    for (int i = 0; i < 4; i++) {
        sigaction(signals[i], NULL, &seen);
        int before = handled[signals[i]];
        kill(getpid(), signals[i]);
        same("vfork.parents_handler", "%d %d %d %d %d %d", signals[i], flags, seen.sa_handler == on_each,
             sigismember(&seen.sa_mask, SIGSYS), handled[signals[i]] - before, handled[0]);
    }
    R2(SYS_sigaltstack, &none, NULL);
    free(stack.ss_sp);
}
static void vfork_sets_handlers(void) {
    sets_handlers(0, 0);
    sets_handlers(SA_ONSTACK, 8192);
    sets_handlers(SA_ONSTACK, 16384);
    // The parent's own stack is small.
    stack_t small = {.ss_sp = malloc(8192), .ss_size = 8192};
    R2(SYS_sigaltstack, &small, NULL);
    sets_handlers(SA_ONSTACK, 0);
}
// clone3(args) with marks in the other registers; its child ends with 1 where its stack pointer and they are right.
long clone3_at(long *args, void *top);
__asm__("clone3_at:\n push %rbx\n push %r12\n mov %rdi, %rbx\n mov %rsi, %r12\n mov $88, %esi\n mov $77, %edx\n mov $78, %r10d\n"
        "mov $79, %r8d\n mov $80, %r9d\n mov $435, %eax\n syscall\n test %rax, %rax\n jz 1f\n cmp $77, %rdx\n jne 3f\n"
        "pop %r12\n pop %rbx\n ret\n"
        "1: mov $2, %eax\n cmp %rsp, %r12\n jne 2f\n mov $3, %eax\n cmp %rdi, %rbx\n jne 2f\n cmp $88, %rsi\n jne 2f\n"
        "cmp $77, %rdx\n jne 2f\n cmp $78, %r10\n jne 2f\n cmp $79, %r8\n jne 2f\n cmp $80, %r9\n jne 2f\n mov $1, %eax\n"
        "2: mov %eax, %edi\n mov $60, %eax\n syscall\n 3: hlt\n");
// A child of clone3 begins at the end of its stack, however small that is and whatever it shares with its parent.
static void small_clones(void) {
    enum { VM = 0x100, VFORK = 0x4000 };
    static char stack[16384] __attribute__((aligned(16)));
    static const int lens[] = {1, 16, 64, 256, 512, 1024, 1025, 4096}, flags[] = {0, VM, VFORK, VM | VFORK};
    for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++)
        for (int f = 0; f < 8; f++) {
            long args[11] = {flags[f / 2] | (f % 2 ? 1L << 32 : 0), 0, 0, 0, SIGCHLD, (long)stack + 16000 - lens[i], lens[i]};
            int status, right = 0;
            for (int n = 0; n < 20; n++) {
                long pid = clone3_at(args, stack + 16000);
                right += pid > 0 && waitpid(pid, &status, 0) == pid && status == 1 << 8;
            }
            same("clone3.small", "%d %lx %d", lens[i], args[0], right);
        }
    long empty[11] = {0, 0, 0, 0, SIGCHLD, (long)stack, 0};
    SAME("clone3.empty", R2(435, empty, 88));
}
static void dispositions(void) {
    struct { void *f; unsigned long flags; void *restorer; uint64_t mask; } seen;
    for (int sig = 1; sig < 32; sig++) {
        R4(SYS_rt_sigaction, sig, NULL, &seen, 8);
        if (sig == SIGTRAP || sig == SIGSYS || sig == SIGSEGV || sig == SIGUSR1) same("dispositions", "%d %ld", sig, (long)seen.f);
    }
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "dispositions")) {
        dispositions();
        return 0;
    }
    if (argc > 2 && !strcmp(argv[1], "pace")) {
        pace(argv[2]);
        return 0;
    }
    if (argc > 2 && !strcmp(argv[1], "script")) {
        pace("script");
        return 0;
    }
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 98;
    snprintf(dir, sizeof dir, "/tmp/diecast-guest-XXXXXX");
    if (!mkdtemp(dir)) return 99;
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"fork", by_fork}, {"vfork", by_vfork}, {"spawn", by_spawn}, {"system", by_system}, {"popen", by_popen},
        {"fexecve", by_fexecve}, {"memfd", by_memfd}, {"execveat", by_execveat}, {"script", by_script},
        {"thread", by_thread}, {"beside_threads", beside_threads}, {"failures", failures}, {"failures_and_signals", failures_and_signals},
        {"threads", threads}, {"storm", storm}, {"daemon", daemon_}, {"auxv", auxv}, {"vfork_handlers", vfork_handlers},
        {"vfork_sets_handlers", vfork_sets_handlers}, {"small_clones", small_clones}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (argc < 2 || !strcmp(argv[1], parts[i].name)) line("= part.%s status %x", parts[i].name, in_child(parts[i].f));
    static const char *names[] = {"shell", "direct", "none", "plain", "rubbish", "empty"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    return 0;
}
