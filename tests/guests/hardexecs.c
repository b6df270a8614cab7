// Execs that are hard to put in a frame, or fail late, each in a child with five seconds of time: how it ends. Arguments: the
// smallest program, and "full" for the one that a frame may refuse. With "limit": tells the limit of descriptors.
#include "guest.h"
#include <elf.h>
#include <pthread.h>
#include <sys/resource.h>

static const char *tiny, *self;
static char stack[65536] __attribute__((aligned(64)));

static int ends(pid_t pid) {
    int status;
    for (int i = 0; i < 500; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid) return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
        usleep(10000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

static void exec_of(const char *path, char *argument) {
    char *arguments[] = {(char *)path, argument, NULL}, *none[] = {NULL};
    execve(path, arguments, none);
    _exit(errno);
}

static int limited(int which, long limit) {
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit l = {limit, limit};
        setrlimit(which, &l);
        exec_of(tiny, NULL);
    }
    return ends(pid);
}

// A program whose only segment lies where none can: the kernel finds out when the old image is gone.
static char *broken(void) {
    static char path[64];
    struct { Elf64_Ehdr e; Elf64_Phdr p; } f = {
        .e = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT}, .e_type = ET_EXEC, .e_machine = EM_X86_64,
              .e_version = EV_CURRENT, .e_entry = 1UL << 60, .e_phoff = sizeof f.e, .e_ehsize = sizeof f.e,
              .e_phentsize = sizeof f.p, .e_phnum = 1},
        .p = {.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_vaddr = 1UL << 60, .p_filesz = sizeof f, .p_memsz = sizeof f,
              .p_align = 4096},
    };
    int fd = memfd_create("broken", 0);
    if (write(fd, &f, sizeof f) != sizeof f) _exit(98);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    // Once it is open for writing it can't be executed.
    int again = open(path, O_RDONLY | O_CLOEXEC);
    close(fd);
    snprintf(path, sizeof path, "/proc/self/fd/%d", again);
    return path;
}

static void *exec_in_thread(void *path) {
    exec_of(path, NULL);
    return NULL;
}

static int descriptors(void) {
    int n = 0;
    for (int i = 0; i < 256; i++) n += fcntl(i, F_GETFD) >= 0;
    return n;
}

static int child_of_table(void *path) {
    exec_of(path, NULL);
    return 0;
}

static int child_without_program(void *nothing) {
    char *none[] = {NULL};
    execve("/no/such/program", none, none);
    dup(0);
    _exit(0);
}

static int table_of(int (*f)(void *), int n) {
    int before = descriptors();
    for (int i = 0; i < n; i++) ends(clone(f, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, (void *)tiny));
    return descriptors() - before;
}

static int full(long hard) {
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit l = {3, hard};
        setrlimit(RLIMIT_NOFILE, &l);
        for (int i = 3; i < 64; i++) close(i);
        exec_of(self, "limit");
    }
    return ends(pid);
}

int main(int argc, char **argv) {
    if (strcmp(argv[1], "limit") == 0) {
        struct rlimit l;
        getrlimit(RLIMIT_NOFILE, &l);
        same("full.limit", "%ld %ld", (long)l.rlim_cur, (long)l.rlim_max);
        return 0;
    }
    tiny = argv[1], self = argv[0];
    if (argc > 2) {
        line("value full.hard %d", full(3));
        return 0;
    }
    pid_t pid = fork();
    if (pid == 0) exec_of(broken(), NULL);
    SAME("broken", ends(pid));
    pid = fork();
    if (pid == 0) {
        pthread_t t;
        pthread_create(&t, NULL, exec_in_thread, broken());
        pthread_join(t, NULL);
    }
    SAME("broken.thread", ends(pid));
    SAME("stack.12288", limited(RLIMIT_STACK, 12288));
    SAME("stack.65536", limited(RLIMIT_STACK, 65536));
    SAME("memory.8192", limited(RLIMIT_AS, 8192));
    // Whether these end well is a matter of chance, natively too: of where the kernel puts the stack's end.
    int hang = 0;
    for (int i = 0; i < 20; i++) hang += limited(RLIMIT_STACK, i % 2 ? 4096 : 8192) < 0;
    SAME("stack.hang", hang);
    SAME("table", table_of(child_of_table, 20));
    SAME("table.failed", table_of(child_without_program, 3));
    SAME("full", full(64));
    return argc > 99;
}
