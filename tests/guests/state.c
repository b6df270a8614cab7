// Registers that a system call and an interruption keep, trapped calls and a meter's hits keep too: AVX-512 and AMX.
//
// Covers: nanosleep
#include "guest.h"
#include <pthread.h>

#define WORDS 8
static unsigned long given[32][WORDS] __attribute__((aligned(64))), out[32][WORDS] __attribute__((aligned(64)));

#define EACH(what)                                                                                                  \
    what(0) what(1) what(2) what(3) what(4) what(5) what(6) what(7) what(8) what(9) what(10) what(11) what(12)      \
    what(13) what(14) what(15) what(16) what(17) what(18) what(19) what(20) what(21) what(22) what(23) what(24)     \
    what(25) what(26) what(27) what(28) what(29) what(30) what(31)
#define GET(n) "vmovdqu64 " #n "*64(%[in]), %%zmm" #n "\n"
#define PUT(n) "vmovdqu64 %%zmm" #n ", " #n "*64(%[out])\n"
#define ALL_VECTORS                                                                                                 \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",      \
        "xmm13", "xmm14", "xmm15"

static void fill(void) {
    for (int r = 0; r < 32; r++)
        for (int w = 0; w < WORDS; w++) given[r][w] = 0x1234567890abcdefUL * (r * WORDS + w + 1);
    memset(out, 0, sizeof out);
}

// All vector registers and masks across one call, then across work.
__attribute__((target("avx512f,avx512bw"))) static void vectors_across(const char *name, long nr, void *a, long turns) {
    unsigned long mask = 0xf0f0a5a5deadbeefUL, mask_out = 0;
    long ret = nr;
    fill();
    __asm__ volatile(EACH(GET) "kmovq %[mask], %%k5\n"
                               "test %%rax, %%rax\n js 1f\n"
                               "syscall\n"
                               "1: test %[turns], %[turns]\n jz 3f\n"
                               "2: dec %[turns]\n jnz 2b\n"
                               "3: kmovq %%k5, %[mask_out]\n" EACH(PUT)
                     : "+a"(ret), [mask_out] "=&r"(mask_out), [turns] "+r"(turns)
                     : "D"(a), "S"(0L), [in] "r"(given), [out] "r"(out), [mask] "r"(mask)
                     : "rcx", "r11", "memory", "k5", ALL_VECTORS);
    same(name, "%d %d %ld", memcmp(given, out, sizeof given), mask == mask_out, nr < 0 ? 0 : ret);
}

static void vectors(void) {
    if (!__builtin_cpu_supports("avx512bw")) {
        line("= vectors none");
        return;
    }
    ts_t t = {0, 5 * MS};
    for (int i = 0; i < 5; i++) vectors_across("vectors.nanosleep", SYS_nanosleep, &t, 0);
    vectors_across("vectors.gettimeofday", SYS_gettimeofday, &t, 0);
    // Under a meter some hundred hits.
    vectors_across("vectors.work", -1, &t, 60000000);
}

struct tiles {
    unsigned char palette, start, reserved[14];
    unsigned short columns[16];
    unsigned char rows[16];
} __attribute__((packed));
static unsigned char tile[16][64], tile_out[16][64];

__attribute__((target("amx-tile"))) static void tiles_across(const char *name, long nr, void *a, long turns) {
    struct tiles config = {.palette = 1, .columns = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    long ret = nr;
    for (int i = 0; i < 1024; i++) ((unsigned char *)tile)[i] = i * 7 + 1;
    memset(tile_out, 0, sizeof tile_out);
    __asm__ volatile("ldtilecfg (%[config])\n"
                     "tileloadd (%[in], %[stride], 1), %%tmm7\n"
                     "test %%rax, %%rax\n js 1f\n"
                     "syscall\n"
                     "1: test %[turns], %[turns]\n jz 3f\n"
                     "2: dec %[turns]\n jnz 2b\n"
                     "3: tilestored %%tmm7, (%[out], %[stride], 1)\n"
                     "tilerelease\n"
                     : "+a"(ret), [turns] "+r"(turns)
                     : "D"(a), "S"(0L), [config] "r"(&config), [in] "r"(tile), [out] "r"(tile_out), [stride] "r"(64L)
                     : "rcx", "r11", "memory");
    same(name, "%d %ld", memcmp(tile, tile_out, sizeof tile), nr < 0 ? 0 : ret);
}

static void *in_thread(void *t) {
    tiles_across("tiles.thread", SYS_nanosleep, t, 20000000);
    return NULL;
}

static void tiles(void) {
    // ARCH_REQ_XCOMP_PERM of the tiles' data.
    if (R2(SYS_arch_prctl, 0x1023, 18) != 0) {
        line("= tiles none");
        return;
    }
    ts_t t = {0, 5 * MS};
    for (int i = 0; i < 5; i++) tiles_across("tiles.nanosleep", SYS_nanosleep, &t, 0);
    tiles_across("tiles.work", -1, &t, 60000000);
    pthread_t other;
    pthread_create(&other, NULL, in_thread, &t);
    pthread_join(other, NULL);
}

// Rounding and exceptions of the old units are the program's too.
static void control(void) {
    unsigned csr = 0x3f80, got = 0;
    unsigned short word = 0x0f7f, got_word = 0;
    ts_t t = {0, 5 * MS};
    long ret = SYS_nanosleep;
    __asm__ volatile("ldmxcsr %[csr]\n fldcw %[word]\n fldpi\n syscall\n stmxcsr %[got]\n fnstcw %[got_word]\n fstp %%st(0)\n"
                     : "+a"(ret), [got] "=m"(got), [got_word] "=m"(got_word)
                     : "D"(&t), "S"(0L), [csr] "m"(csr), [word] "m"(word)
                     : "rcx", "r11", "memory");
    __asm__ volatile("fninit");
    same("control", "%x %x %ld", got, got_word, ret);
}

int main(void) {
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"vectors", vectors}, {"tiles", tiles}, {"control", control}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
