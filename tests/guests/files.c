// Times of files: what was just written is not later than now, what was set reads back, and errors are the kernel's own.
// With "exact" what is set reads back to the nanosecond, which a frame that is faster than the host can't do.
//
// Covers: stat fstat lstat newfstatat statx utime utimes futimesat utimensat
#include "guest.h"
#include <sys/stat.h>
#include <utime.h>

// The kernel stamps by its last tick, which comes late where a hypervisor keeps the core; untranslated stamps are off by 300 ms.
#define COARSE (60 * MS)
static int exact;
static long wall(void) { return now(CLOCK_REALTIME); }
static void later(long ms) { nanosleep(&(ts_t){0, ms * MS}, NULL); }

// All ways to ask give one answer; its three times.
static void times_of(const char *name, const char *path, ts_t t[3]) {
    struct stat s[4];
    struct statx x;
    int fd = open(path, O_RDONLY);
    SAME(name, R2(SYS_stat, path, &s[0]));
    SAME(name, R2(SYS_lstat, path, &s[1]));
    SAME(name, R2(SYS_fstat, fd, &s[2]));
    SAME(name, R4(SYS_newfstatat, AT_FDCWD, path, &s[3], 0));
    SAME(name, R5(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &x));
    close(fd);
    int agree = 1;
    for (int i = 1; i < 4; i++) {
        agree &= !memcmp(&s[0].st_mtim, &s[i].st_mtim, sizeof(ts_t)) && !memcmp(&s[0].st_ctim, &s[i].st_ctim, sizeof(ts_t)) &&
                 !memcmp(&s[0].st_atim, &s[i].st_atim, sizeof(ts_t)) && s[0].st_size == s[i].st_size && s[0].st_ino == s[i].st_ino;
    }
    agree &= x.stx_mtime.tv_sec == s[0].st_mtim.tv_sec && x.stx_mtime.tv_nsec == (unsigned)s[0].st_mtim.tv_nsec;
    agree &= x.stx_atime.tv_sec == s[0].st_atim.tv_sec && x.stx_atime.tv_nsec == (unsigned)s[0].st_atim.tv_nsec;
    agree &= x.stx_ctime.tv_sec == s[0].st_ctim.tv_sec && x.stx_ctime.tv_nsec == (unsigned)s[0].st_ctim.tv_nsec;
    same(name, "agree %d size %ld", agree, (long)s[0].st_size);
    t[0] = s[0].st_atim;
    t[1] = s[0].st_mtim;
    t[2] = s[0].st_ctim;
    if (x.stx_mask & STATX_BTIME) {
        long born = x.stx_btime.tv_sec * SEC + x.stx_btime.tv_nsec;
        line("range %s.birth %ld %ld %ld", name, 0L, born, wall());
    }
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) _exit(80);
    close(fd);
}

static void written(void) {
    ts_t t[3], u[3];
    later(300);
    long before = wall();
    put("one", "x");
    times_of("written", "one", t);
    for (int i = 0; i < 3; i++) line("range written.%d %ld %ld %ld", i, before - COARSE, ns_of(t[i]), wall());
    later(100);
    put("two", "y");
    times_of("later", "two", u);
    same("order", "%d", ns_of(u[1]) > ns_of(t[1]));
    // As far apart as the clock says.
    later(500);
    put("one", "z");
    times_of("again", "one", t);
    line("near apart %ld %ld", ns_of(t[1]) - ns_of(u[1]), 500 * MS);
    struct stat s;
    int p[2];
    if (pipe(p)) _exit(81);
    SAME("pipe", R2(SYS_fstat, p[0], &s));
    line("range pipe %ld %ld %ld", before, ns_of(s.st_ctim), wall() + COARSE);
    // Long before the frame.
    SAME("root", R2(SYS_stat, "/", &s));
    same("root.changed", "%ld %ld %ld", s.st_mtim.tv_sec, s.st_mtim.tv_nsec, s.st_ctim.tv_sec);
    mkdir("folder", 0755);
    times_of("folder", "folder", t);
    line("range folder %ld %ld %ld", before - COARSE, ns_of(t[1]), wall());
}

static void is(const char *name, ts_t got, ts_t set) {
    long off = (got.tv_sec - set.tv_sec) * SEC + got.tv_nsec - set.tv_nsec;
    same(name, "%d", exact ? off == 0 : off >= 0 && off <= 100);
}

static void check(const char *name, ts_t access, ts_t change) {
    ts_t t[3];
    times_of(name, "set", t);
    is(name, t[0], access);
    is(name, t[1], change);
    line("range %s.changed %ld %ld %ld", name, wall() - SEC, ns_of(t[2]), wall());
}

static void set(void) {
    put("set", "s");
    int fd = open("set", O_RDWR), folder = open(".", O_RDONLY | O_DIRECTORY);
    long n = wall();
    const ts_t cases[][2] = {
        {{0, 0}, {1, 1}},
        {{-5, 500000000}, {1000000000, 123456789}},
        {ts_of(n - 3600 * SEC), ts_of(n - 1)},
        {ts_of(n), ts_of(n + 1)},
        {ts_of(n + 17), ts_of(n + 3600 * SEC + 12345677)},
        {ts_of(n + 86400 * SEC * 30), {4102444800, 999999999}},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "set.%u", i);
        SAME(name, R4(SYS_utimensat, AT_FDCWD, "set", cases[i], 0));
        check(name, cases[i][0], cases[i][1]);
        SAME(name, R4(SYS_utimensat, fd, NULL, cases[i], 0));
        check(name, cases[i][0], cases[i][1]);
    }
    // One stays, the other is now.
    ts_t t[3], mixed[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    SAME("now", R4(SYS_utimensat, AT_FDCWD, "set", mixed, 0));
    times_of("now", "set", t);
    is("now.omitted", t[0], cases[5][0]);
    line("range now.now %ld %ld %ld", n - COARSE, ns_of(t[1]), wall());
    SAME("null", R4(SYS_utimensat, AT_FDCWD, "set", NULL, 0));
    times_of("null", "set", t);
    line("range null %ld %ld %ld", n - COARSE, ns_of(t[0]), wall());
    // Microseconds and seconds.
    long u = (n + 7 * SEC) / 1000;
    struct timeval tv[2] = {{u / 1000000, u % 1000000}, {u / 1000000 + 9, 999999}};
    ts_t asked[2] = {{tv[0].tv_sec, tv[0].tv_usec * 1000}, {tv[1].tv_sec, tv[1].tv_usec * 1000}};
    SAME("utimes", R2(SYS_utimes, "set", tv));
    check("utimes", asked[0], asked[1]);
    tv[0].tv_sec += 60;
    asked[0].tv_sec += 60;
    SAME("futimesat", R3(SYS_futimesat, folder, "set", tv));
    check("futimesat", asked[0], asked[1]);
    tv[0].tv_sec += 60;
    asked[0].tv_sec += 60;
    SAME("futimesat.null", R3(SYS_futimesat, fd, NULL, tv));
    check("futimesat.null", asked[0], asked[1]);
    struct utimbuf b = {n / SEC + 5, n / SEC + 500};
    SAME("utime", R2(SYS_utime, "set", &b));
    check("utime", (ts_t){b.actime, 0}, (ts_t){b.modtime, 0});
    // A link's own.
    if (symlink("set", "link")) _exit(82);
    ts_t link[2] = {ts_of(n + 5 * SEC), ts_of(n + 6 * SEC)};
    struct stat s;
    SAME("link", R4(SYS_utimensat, AT_FDCWD, "link", link, AT_SYMLINK_NOFOLLOW));
    SAME("link", R2(SYS_lstat, "link", &s));
    is("link", s.st_mtim, link[1]);
    SAME("link.target", R2(SYS_stat, "link", &s));
    is("link.target", s.st_mtim, (ts_t){b.modtime, 0});
    close(fd);
    close(folder);
}

static void errors(void) {
    struct stat s;
    SAME("gone", R2(SYS_stat, "gone", &s));
    SAME("fault.out", R2(SYS_stat, "set", BAD));
    SAME("fault.path", R2(SYS_stat, BAD, &s));
    SAME("lstat.gone", R2(SYS_lstat, "gone", BAD));
    SAME("fstat.bad", R2(SYS_fstat, 999, &s));
    SAME("fstat.fault", R2(SYS_fstat, 1, BAD));
    SAME("at.flags", R4(SYS_newfstatat, AT_FDCWD, "set", &s, 0x40000000));
    SAME("at.fault", R4(SYS_newfstatat, AT_FDCWD, "set", BAD, 0));
    SAME("statx.flags", R5(SYS_statx, AT_FDCWD, "set", 0x40000000, 0, &s));
    SAME("statx.mask", R5(SYS_statx, AT_FDCWD, "set", 0, 0x80000000, BAD));
    SAME("statx.fault", R5(SYS_statx, AT_FDCWD, "set", 0, 0, BAD));
    ts_t bad[2] = {{0, 1000000000}, {0, 0}}, omit[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}}, fine[2] = {{1, 1}, {2, 2}};
    SAME("set.nsec", R4(SYS_utimensat, AT_FDCWD, "set", bad, 0));
    bad[0].tv_nsec = -1;
    SAME("set.negative", R4(SYS_utimensat, AT_FDCWD, "set", bad, 0));
    SAME("set.both", R4(SYS_utimensat, AT_FDCWD, "gone", omit, 0));
    SAME("set.gone", R4(SYS_utimensat, AT_FDCWD, "gone", fine, 0));
    SAME("set.fault", R4(SYS_utimensat, AT_FDCWD, "gone", BAD, 0));
    SAME("set.flags", R4(SYS_utimensat, AT_FDCWD, "set", fine, 0x40000000));
    SAME("set.fd", R4(SYS_utimensat, 999, NULL, fine, 0));
    struct timeval tv[2] = {{1, 1000000}, {1, 0}};
    SAME("utimes.usec", R2(SYS_utimes, "gone", tv));
    tv[0].tv_usec = -1;
    SAME("utimes.negative", R2(SYS_utimes, "set", tv));
    SAME("utimes.fault", R2(SYS_utimes, "set", BAD));
    SAME("utimes.null", R2(SYS_utimes, "set", NULL));
    SAME("utime.fault", R2(SYS_utime, "set", BAD));
    SAME("utime.gone", R2(SYS_utime, "gone", NULL));
    SAME("futimesat.fd", R3(SYS_futimesat, 999, "set", tv + 1));
    tv[0].tv_usec = 5;
    SAME("utimes.path", R2(SYS_utimes, BAD, tv));
}

int main(int argc, char **argv) {
    exact = argc > 1 && !strcmp(argv[1], "exact");
    char folder[] = "/tmp/diecast-files-XXXXXX";
    if (!mkdtemp(folder) || chdir(folder)) return 83;
    written();
    set();
    errors();
    char remove[80];
    snprintf(remove, sizeof remove, "rm -r %s", folder);
    return system(remove);
}
