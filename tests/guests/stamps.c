// Instants that the kernel notes with its own clock lie between the guest's readings before and after.
//
// Covers: msgctl semctl shmctl ioctl
#include "guest.h"
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

static long wall(void) {
    ts_t t;
    clock_gettime(CLOCK_REALTIME, &t);
    return ns_of(t);
}
static long before;
static void start(void) { before = wall(); }
// Seconds: rounded down in real time, which a frame below TDF 1 stretches.
static void second(const char *name, long s) { line("range %s %ld %ld %ld", name, before / SEC - 2, s, wall() / SEC); }
static void instant(const char *name, long ns) { line("range %s %ld %ld %ld", name, before - 2 * MS, ns, wall() + 2 * MS); }
// What is stamped is far from the frame's start.
static void later(long ms) { nanosleep(&(ts_t){0, ms * MS}, NULL); }

static void objects(void) {
    later(400);
    start();
    int q = msgget(IPC_PRIVATE, 0600);
    struct {
        long type;
        char text[8];
    } m = {1, "x"};
    struct msqid_ds ds;
    SAME("msg.stat", R3(SYS_msgctl, q, IPC_STAT, &ds));
    same("msg.none", "%ld %ld", (long)ds.msg_stime, (long)ds.msg_rtime);
    second("msg.ctime", ds.msg_ctime);
    msgsnd(q, &m, 8, 0);
    SAME("msg.stat2", R3(SYS_msgctl, q, IPC_STAT, &ds));
    second("msg.stime", ds.msg_stime);
    same("msg.rtime", "%ld %ld", (long)ds.msg_rtime, (long)ds.msg_qnum);
    msgrcv(q, &m, 8, 0, 0);
    msgctl(q, IPC_STAT, &ds);
    second("msg.rtime", ds.msg_rtime);
    SAME("msg.fault", R3(SYS_msgctl, q, IPC_STAT, BAD));
    msgctl(q, IPC_RMID, NULL);
    SAME("msg.gone", R3(SYS_msgctl, q, IPC_STAT, &ds));
    int s = semget(IPC_PRIVATE, 1, 0600);
    struct semid_ds sd;
    SAME("sem.stat", R4(SYS_semctl, s, 0, IPC_STAT, &sd));
    same("sem.otime", "%ld %lu", (long)sd.sem_otime, (unsigned long)sd.sem_nsems);
    second("sem.ctime", sd.sem_ctime);
    semop(s, &(struct sembuf){0, 1, 0}, 1);
    semctl(s, 0, IPC_STAT, &sd);
    second("sem.otime", sd.sem_otime);
    SAME("sem.fault", R4(SYS_semctl, s, 0, IPC_STAT, BAD));
    semctl(s, 0, IPC_RMID);
    int h = shmget(IPC_PRIVATE, 5000, 0600);
    struct shmid_ds hd;
    void *at = shmat(h, NULL, 0);
    SAME("shm.stat", R3(SYS_shmctl, h, IPC_STAT, &hd));
    same("shm.size", "%lu %lu %ld", (unsigned long)hd.shm_segsz, (unsigned long)hd.shm_nattch, (long)hd.shm_dtime);
    second("shm.atime", hd.shm_atime);
    second("shm.ctime", hd.shm_ctime);
    shmdt(at);
    shmctl(h, IPC_STAT, &hd);
    second("shm.dtime", hd.shm_dtime);
    shmctl(h, IPC_RMID, NULL);
}

static int from, to;
static void sockets(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    to = socket(AF_INET, SOCK_DGRAM, 0);
    from = socket(AF_INET, SOCK_DGRAM, 0);
    if (bind(to, (void *)&at, len) || getsockname(to, (void *)&at, &len) || connect(from, (void *)&at, len)) _exit(90);
}

// Says what stamps a message carries.
static void tell(const char *name, struct msghdr *m) {
    char text[80];
    int n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        n++;
        if (c->cmsg_level != SOL_SOCKET) continue;
        snprintf(text, sizeof text, "%s.%d", name, c->cmsg_type);
        ts_t *t = (void *)CMSG_DATA(c);
        if (c->cmsg_type == SO_TIMESTAMP) {
            instant(text, t->tv_sec * SEC + t->tv_nsec * 1000);
        } else {
            instant(text, ns_of(*t));
        }
        if (c->cmsg_type == SO_TIMESTAMPING) same(text, "hardware %ld", ns_of(t[2]));
    }
    same(name, "%d messages", n);
}

static void receive(const char *name) {
    char data[8], room[256];
    struct iovec v = {data, sizeof data};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    start();
    if (write(from, "hi", 3) != 3) _exit(91);
    SAME(name, R3(SYS_recvmsg, to, &m, 0));
    tell(name, &m);
}

static void option(int o, int value) { SAME("option", R5(SYS_setsockopt, to, SOL_SOCKET, o, &value, sizeof value)); }

static void packets(void) {
    sockets();
    later(100);
    receive("plain");
    option(SO_TIMESTAMP, 1);
    receive("timestamp");
    option(SO_TIMESTAMPNS, 1);
    receive("timestampns");
    option(SO_TIMESTAMPNS, 0);
    receive("off");
    option(SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE);
    later(100);
    receive("timestamping");
    SAME("option.fault", R5(SYS_setsockopt, to, SOL_SOCKET, SO_TIMESTAMP, BAD, 4));
    struct msghdr m = {0};
    SAME("fault", R3(SYS_recvmsg, to, BAD, MSG_DONTWAIT));
    SAME("again", R3(SYS_recvmsg, to, &m, MSG_DONTWAIT));
    // A child goes on with it.
    if (!fork()) {
        receive("child");
        exit(0);
    }
    wait(NULL);
}

static void many(void) {
    sockets();
    later(100);
    option(SO_TIMESTAMPNS, 1);
    char data[2][8], room[2][128];
    struct iovec v[2] = {{data[0], 8}, {data[1], 8}};
    struct mmsghdr m[2] = {{{.msg_iov = &v[0], .msg_iovlen = 1, .msg_control = room[0], .msg_controllen = 128}},
                           {{.msg_iov = &v[1], .msg_iovlen = 1, .msg_control = room[1], .msg_controllen = 128}}};
    start();
    if (write(from, "a", 2) != 2 || write(from, "b", 2) != 2) _exit(92);
    SAME("mmsg", R5(SYS_recvmmsg, to, m, 2, 0, NULL));
    tell("mmsg.0", &m[0].msg_hdr);
    tell("mmsg.1", &m[1].msg_hdr);
}

static void *waiter(void *name) {
    receive(name);
    return NULL;
}

// A thread that is there before the option is set, and one that comes later.
static int gate[2];
static void *early(void *name) {
    char c;
    if (read(gate[0], &c, 1) != 1) _exit(93);
    return waiter(name);
}
static void threads(void) {
    sockets();
    later(100);
    pthread_t a, b;
    if (pipe(gate)) _exit(94);
    pthread_create(&a, NULL, early, "early");
    option(SO_TIMESTAMPNS, 1);
    if (write(gate[1], "x", 1) != 1) _exit(95);
    pthread_join(a, NULL);
    pthread_create(&b, NULL, waiter, "late");
    pthread_join(b, NULL);
}

static void last(void) {
    sockets();
    later(100);
    ts_t t;
    char c[8];
    SAME("none", R3(SYS_ioctl, to, SIOCGSTAMPNS, &t));
    start();
    if (write(from, "a", 2) != 2 || read(to, c, 8) != 2) _exit(96);
    SAME("ns", R3(SYS_ioctl, to, SIOCGSTAMPNS, &t));
    instant("ns", ns_of(t));
    SAME("us", R3(SYS_ioctl, to, SIOCGSTAMP, &t));
    instant("us", t.tv_sec * SEC + t.tv_nsec * 1000);
    SAME("stamp.fault", R3(SYS_ioctl, to, SIOCGSTAMPNS, BAD));
}

int main(void) {
    static const struct {
        const char *name;
        void (*f)(void);
    } parts[] = {{"objects", objects}, {"packets", packets}, {"many", many}, {"threads", threads}, {"last", last}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) line("= part.%s status %x", parts[i].name, in_child(parts[i].f) & 0x7f7f);
    return 0;
}
