// Socket options that hold times read back as they were set, and what TCP says of a connection is in virtual time.
//
// Covers: setsockopt getsockopt
#include "guest.h"
#include <netinet/in.h>
#include <netinet/tcp.h>

static int a, b;
static void connection(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    a = socket(AF_INET, SOCK_STREAM, 0);
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
    } parts[] = {{"options", options}, {"info", info}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
