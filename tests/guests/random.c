// The vDSO's getrandom, under both of its names: random bytes without a system call.
#include "guest.h"
#include <elf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/auxv.h>

typedef ssize_t (*getrandom_t)(void *, size_t, unsigned, void *, size_t);
// `struct vgetrandom_opaque_params`.
typedef struct { uint32_t size, prot, flags, reserved[13]; } params_t;

// A function of the vDSO, as C libraries find it: of the version LINUX_2.6.
static getrandom_t find(const char *name) {
    char *base = (char *)getauxval(AT_SYSINFO_EHDR);
    Elf64_Ehdr *e = (Elf64_Ehdr *)base;
    Elf64_Phdr *p = (Elf64_Phdr *)(base + e->e_phoff);
    Elf64_Dyn *d = NULL;
    for (int i = 0; i < e->e_phnum; i++)
        if (p[i].p_type == PT_DYNAMIC) d = (Elf64_Dyn *)(base + p[i].p_offset);
    Elf64_Sym *symbols = NULL;
    const char *strings = NULL;
    uint32_t *hash = NULL;
    uint16_t *versions = NULL;
    Elf64_Verdef *defined = NULL;
    for (; d && d->d_tag; d++) {
        void *at = base + d->d_un.d_ptr;
        if (d->d_tag == DT_SYMTAB) symbols = at;
        if (d->d_tag == DT_STRTAB) strings = at;
        if (d->d_tag == DT_HASH) hash = at;
        if (d->d_tag == DT_VERSYM) versions = at;
        if (d->d_tag == DT_VERDEF) defined = at;
    }
    for (uint32_t i = 0; hash && i < hash[1]; i++) {
        if (strcmp(strings + symbols[i].st_name, name)) continue;
        Elf64_Verdef *v = defined;
        while (v->vd_ndx != (versions[i] & 0x7fff) && v->vd_next) v = (Elf64_Verdef *)((char *)v + v->vd_next);
        Elf64_Verdaux *aux = (Elf64_Verdaux *)((char *)v + v->vd_aux);
        return strcmp(strings + aux->vda_name, "LINUX_2.6") ? NULL : (getrandom_t)(base + symbols[i].st_value);
    }
    return NULL;
}

// From now on the call itself fails.
static void forbid(void) {
    struct sock_filter code[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0}, {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_getrandom},
                                 {BPF_RET, 0, 0, SECCOMP_RET_ERRNO | EDOM}, {BPF_RET, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static const char *name;
static void draw(void) {
    getrandom_t f = find(name);
    // A kernel without it has no symbol; a frame has one that says so. What passes for a state must not cross a page.
    static params_t asked __attribute__((aligned(256)));
    if (!f || f(NULL, 0, 0, &asked, ~0UL) == -ENOSYS) {
        static char bytes[16];
        same("vdso.none", "%s %ld", name, f ? f(bytes, 16, 0, NULL, 0) : -ENOSYS);
        return;
    }
    same("vdso.params", "%s %u %x %x", name, asked.size, asked.prot, asked.flags);
    same("vdso.misused", "%ld %ld", (long)f(&(char){0}, 1, 0, &asked, ~0UL), (long)f(NULL, 0, 0xff00, NULL, 0));
    char *state = mmap(NULL, 4096, asked.prot, asked.flags, -1, 0);
    unsigned char a[2048] = {0}, b[2048] = {0};
    SAME("vdso.first", f(a, 32, 0, state, asked.size));
    forbid();
    SAME("vdso.forbidden", R3(SYS_getrandom, a, 1, 0));
    // The kernel's own generator may have a new seed just now: then this is the call.
    int good = 0;
    for (int i = 0; i < 50; i++) good += f(i % 2 ? b : a, sizeof a, 0, state, asked.size) == sizeof a;
    int sets = 0;
    for (int i = 0; i < (int)sizeof a; i++) sets += __builtin_popcount(a[i]);
    same("vdso.drawn", "%d %d %d", good > 40, memcmp(a, b, sizeof a) != 0, sets > 7500 && sets < 8900);
    SAME("vdso.flags", f(a, 16, 0xff00, state, asked.size));
}

int main(void) {
    static const char *names[] = {"__vdso_getrandom", "getrandom"};
    for (int i = 0; i < 2; i++) {
        name = names[i];
        SAME("part", in_child(draw));
    }
    return 0;
}
