#!/usr/bin/env python3
"""Times of sockets: what a program reads back, and receives that end by them; what the kernel has for the node."""
import socket, struct, threading, time

ASKED, TCP_LINGER2, TCP_USER_TIMEOUT = 0.3, 8, 18
timeval = struct.pack("ll", 0, int(ASKED * 1e6))


def receives():
    a, _b = socket.socketpair()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    while True:
        began = time.monotonic_ns()
        try:
            a.recv(1)
        except BlockingIOError:
            print("receive", time.monotonic_ns() - began, flush=True)


threading.Thread(target=receives).start()
tcp = socket.create_server(("", 9))
tcp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3))
numbers = [(socket.TCP_KEEPIDLE, 5000), (TCP_LINGER2, 20), (TCP_USER_TIMEOUT, 3500)]
for option, value in numbers:
    tcp.setsockopt(socket.IPPROTO_TCP, option, value)
names = ["tcp_rto_min_us", "tcp_keepalive_time", "neigh/eth0/retrans_time_ms"]
while True:
    times = struct.unpack("ll", tcp.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16))
    linger = struct.unpack("ii", tcp.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
    read = [tcp.getsockopt(socket.IPPROTO_TCP, option) for option, _ in numbers + [(socket.TCP_KEEPINTVL, 0)]]
    print("options", *times, *linger, *read, flush=True)
    print("kernel", *(open("/proc/sys/net/ipv4/" + name).read().strip() for name in names), flush=True)
    time.sleep(0.02)
