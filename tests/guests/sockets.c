// Socket options that hold times read back as they were set, and what TCP says of a connection is in virtual time.
//
// Covers: setsockopt getsockopt
#include "guest.h"
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

static int a, b;
static void connection(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    a = socket(AF_INET, SOCK_STREAM, 0);
    // Loopback's own segments are too large to pace.
    setsockopt(a, SOL_TCP, TCP_MAXSEG, &(int){1448}, sizeof(int));
    if (bind(l, (void *)&at, len) || listen(l, 5) || getsockname(l, (void *)&at, &len) || connect(a, (void *)&at, len)) _exit(90);
    b = accept(l, NULL, NULL);
}

static void number(const char *name, int level, int option, int value) {
    int got = -77;
    socklen_t len = sizeof got;
    long r = R5(SYS_setsockopt, a, level, option, &value, sizeof value);
    long g = R5(SYS_getsockopt, a, level, option, &got, &len);
    same(name, "%d: %ld, %ld %d len %d", value, r, g, got, (int)len);
}

static int wide(const char *name, int socket, int level, int option, const void *value, int size) {
    long got[2] = {-77, -77};
    socklen_t len = size;
    long r = R5(SYS_setsockopt, socket, level, option, value, size), g = R5(SYS_getsockopt, socket, level, option, got, &len);
    same(name, "%ld, %ld %ld %ld len %d", r, g, size == 4 ? (int)got[0] : got[0], size == 16 ? got[1] : 0, (int)len);
    return r == 0;
}

// Times whose range the kernel keeps in real time, in ticks of its own: 16 ms are whole ones at every rate here.
static void ranges(void) {
    connection();
    static const struct {
        const char *name;
        int option, fine, refused[4];
    } all[] = {{"rto_min", 45, 16000, {200001, 1000, -1, 0}}, {"delack_max", 46, 16000, {200001, 1000, -1, 0}},
               {"rto_max", 44, 4000, {120001, 999, -1, 0}}, {"tx_delay", 37, 5000, {-1, -1, -1, -1}}};
    for (int i = 0; i < 4; i++) {
        int got = -77;
        socklen_t len = sizeof got;
        same(all[i].name, "%ld", R5(SYS_setsockopt, a, SOL_TCP, all[i].option, &all[i].fine, 4));
        R5(SYS_getsockopt, a, SOL_TCP, all[i].option, &got, &len);
        line("range %s.get %d %d %d", all[i].name, all[i].fine, got, all[i].fine * 5 / 4);
        for (int j = 0; j < 4; j++)
            same(all[i].name, "%d: %ld", all[i].refused[j], R5(SYS_setsockopt, a, SOL_TCP, all[i].option, &all[i].refused[j], 4));
        same(all[i].name, "fault %ld short %ld", R5(SYS_setsockopt, a, SOL_TCP, all[i].option, BAD, 4),
             R5(SYS_setsockopt, a, SOL_TCP, all[i].option, &got, 2));
    }
    // The longest that the kernel takes is more than it can hold at a TDF above 1: what it holds then is the nearest.
    int most = 200000;
    same("rto_min.most", "%ld", R5(SYS_setsockopt, a, SOL_TCP, 45, &most, 4));
    // What is set last is what holds: the shortest timeout, once there are samples of the round trip.
    R5(SYS_setsockopt, a, SOL_TCP, 45, &all[0].fine, 4);
    for (int i = 0; i < 60; i++) {
        char c = 1;
        if (write(a, &c, 1) != 1 || read(b, &c, 1) != 1 || write(b, &c, 1) != 1 || read(a, &c, 1) != 1) _exit(92);
    }
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    R5(SYS_getsockopt, a, SOL_TCP, TCP_INFO, &info, &len);
    line("range rto_min.rto 15900 %u 30000", info.tcpi_rto);
}

// How long a connect on a vsock waits for an answer: where there is a machine to ask, but not this one.
static void vsock(void) {
    for (int i = 6; i <= 8; i += 2) {
        int v = socket(AF_VSOCK, SOCK_STREAM, 0);
        struct timeval t = {0, 400000}, negative = {-1, 0}, carry = {0, 1000000}, got = {-1, -1};
        socklen_t len = sizeof got;
        struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_port = 9999, .svm_cid = 77};
        same("vsock", "%ld %ld %ld", R5(SYS_setsockopt, v, AF_VSOCK, i, &t, 16), R5(SYS_setsockopt, v, AF_VSOCK, i, &negative, 16),
             R5(SYS_setsockopt, v, AF_VSOCK, i, &carry, 16));
        same("vsock.get", "%ld len %d", R5(SYS_getsockopt, v, AF_VSOCK, i, &got, &len), (int)len);
        // In ticks of the kernel's, rounded up.
        if (v >= 0) line("range vsock.value 400000 %ld 421000", got.tv_sec * 1000000 + got.tv_usec);
        long m = mono(), r = R3(SYS_connect, v, &at, sizeof at);
        same("vsock.connect", "%ld", r);
        if (r == -ETIMEDOUT) line("range vsock.took 396000000 %ld 480000000", mono() - m);
    }
}

// A rate reads back as it was set, and 300 kB at 1 MB/s take as long as they should.
static void pacing(void) {
    connection();
    wide("pacing.none", a, SOL_SOCKET, 47, &(long){-1}, 8);
    wide("pacing.narrow.none", a, SOL_SOCKET, 47, &(int){-1}, 4);
    wide("pacing.narrow", a, SOL_SOCKET, 47, &(int){2000000000}, 4);
    wide("pacing.huge", a, SOL_SOCKET, 47, &(long){500000000000}, 8);
    int as_int = -77;
    socklen_t len = 4;
    SAME("pacing.huge.narrow", R5(SYS_getsockopt, a, SOL_SOCKET, 47, &as_int, &len) * 10 + as_int);
    SAME("pacing.short", R5(SYS_setsockopt, a, SOL_SOCKET, 47, &as_int, 2));
    SAME("pacing.fault", R5(SYS_setsockopt, a, SOL_SOCKET, 47, BAD, 8));
    wide("pacing", a, SOL_SOCKET, 47, &(long){1000000}, 8);
    static char bytes[300000];
    long m = mono();
    if (fork() == 0) {
        for (long n = 0; n < (long)sizeof bytes;) n += write(a, bytes, sizeof bytes - n);
        _exit(0);
    }
    for (long n = 0; n < (long)sizeof bytes;) n += read(b, bytes, sizeof bytes);
    line("range pacing.took 150000000 %ld 450000000", mono() - m);
}

// What BBR says agrees with what TCP says: rates with the rate, round trips with the round trip.
static void congestion(void) {
    connection();
    if (setsockopt(a, SOL_TCP, TCP_CONGESTION, "bbr", 3)) return;
    static char bytes[1 << 16];
    for (int i = 0; i < 400; i++) {
        if (write(a, bytes, sizeof bytes) != sizeof bytes) _exit(91);
        for (long n = 0; n < (long)sizeof bytes;) n += read(b, bytes, sizeof bytes - n);
    }
    // tcpi_pacing_rate is the 14th of these words, tcpi_min_rtt in the upper half of the 19th.
    uint64_t i[20] = {0};
    uint32_t bbr[5] = {0}, part[5] = {0};
    socklen_t len = sizeof i, cc = sizeof bbr, few = 10;
    SAME("bbr.info", R5(SYS_getsockopt, a, SOL_TCP, TCP_INFO, i, &len));
    SAME("bbr", R5(SYS_getsockopt, a, SOL_TCP, TCP_CC_INFO, bbr, &cc));
    same("bbr.len", "%d", (int)cc);
    long rate = (bbr[0] | (long)bbr[1] << 32) * bbr[3] / 256;
    line("range bbr.rate %ld %ld %ld", i[13] / 4, rate, i[13] * 4);
    line("range bbr.round_trip %ld %u %ld", (i[18] >> 32) / 3, bbr[2], (i[18] >> 32) * 3 + 1);
    SAME("bbr.short", R5(SYS_getsockopt, a, SOL_TCP, TCP_CC_INFO, part, &few));
    same("bbr.short.len", "%d %u", (int)few, part[2] >> 16);
    SAME("bbr.fault", R5(SYS_getsockopt, a, SOL_TCP, TCP_CC_INFO, BAD, &cc));
    setsockopt(a, SOL_TCP, TCP_CONGESTION, "reno", 4);
    cc = sizeof bbr;
    same("reno", "%ld len %d", R5(SYS_getsockopt, a, SOL_TCP, TCP_CC_INFO, bbr, &cc), (int)cc);
}

static void options(void) {
    connection();
    static const int seconds[] = {1, 5, 60, 600, 0, -1, 32768};
    for (int i = 0; i < 7; i++) {
        // Of an odd number of seconds a frame below TDF 1 keeps only whole real ones.
        number("keepidle", SOL_TCP, TCP_KEEPIDLE, seconds[i] == 1 || seconds[i] == 5 ? seconds[i] + 1 : seconds[i]);
        number("keepintvl", SOL_TCP, TCP_KEEPINTVL, seconds[i] == 1 || seconds[i] == 5 ? seconds[i] * 2 : seconds[i]);
    }
    for (int i = 0; i < 3; i++) number("linger2", SOL_TCP, TCP_LINGER2, (int[]){2, 10, -1}[i]);
    for (int i = 0; i < 4; i++) number("user_timeout", SOL_TCP, TCP_USER_TIMEOUT, (int[]){0, 10, 30000, -1}[i]);
    number("nodelay", SOL_TCP, TCP_NODELAY, 1);
    number("keepcnt", SOL_TCP, TCP_KEEPCNT, 5);
    struct linger l = {1, 6}, got = {0, 0};
    socklen_t len = sizeof got;
    SAME("linger.set", R5(SYS_setsockopt, a, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    SAME("linger.get", R5(SYS_getsockopt, a, SOL_SOCKET, SO_LINGER, &got, &len));
    same("linger", "%d %d %d", got.l_onoff, got.l_linger, (int)len);
    SAME("linger.short", R5(SYS_setsockopt, a, SOL_SOCKET, SO_LINGER, &l, 4));
    SAME("linger.fault", R5(SYS_setsockopt, a, SOL_SOCKET, SO_LINGER, BAD, sizeof l));
    SAME("keepidle.fault", R5(SYS_setsockopt, a, SOL_TCP, TCP_KEEPIDLE, BAD, 4));
    SAME("keepidle.short", R5(SYS_setsockopt, a, SOL_TCP, TCP_KEEPIDLE, &l, 2));
    SAME("keepidle.len", R5(SYS_getsockopt, a, SOL_TCP, TCP_KEEPIDLE, &l, BAD));
    SAME("info.fault", R5(SYS_getsockopt, a, SOL_TCP, TCP_INFO, BAD, &len));
}

// Silence since the last segment, in ms.
static void info(void) {
    connection();
    char c = 1;
    if (write(a, &c, 1) != 1 || read(b, &c, 1) != 1) _exit(91);
    long m = mono();
    nanosleep(&(ts_t){0, 120 * MS}, NULL);
    struct tcp_info i = {0};
    socklen_t len = sizeof i;
    SAME("info", R5(SYS_getsockopt, a, SOL_TCP, TCP_INFO, &i, &len));
    line("near info.last_data_sent %ld %ld", mono() - m, i.tcpi_last_data_sent * MS);
    same("info.mss", "%d %d %d", i.tcpi_snd_mss > 500, i.tcpi_snd_cwnd, i.tcpi_state);
    line("range info.rtt 0 %u 100000", i.tcpi_rtt);
    uint32_t head[3] = {0, 0, 77};
    len = 8;
    SAME("info.short", R5(SYS_getsockopt, a, SOL_TCP, TCP_INFO, head, &len));
    same("info.rest", "%u len %d", head[2], (int)len);
}

int main(void) {
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"options", options}, {"ranges", ranges}, {"info", info}, {"vsock", vsock}, {"pacing", pacing}, {"congestion", congestion}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
