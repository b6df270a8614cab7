#!/usr/bin/env python3
"""Load for servers whose packages bring none: one connection, one request after the other, for a while of the clock
that this process sees. Prints one line of JSON: rate, p50_ms, p99_ms, wrong.

Usage: benches/servers_load.py memcached PORT SECONDS
"""
import json, socket, sys, time


class Memcached:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.socket.makefile("rb")

    def once(self, i):
        value = b"%064d" % i
        self.socket.sendall(b"set k%d 0 0 %d\r\n%s\r\nget k%d\r\n" % (i % 100, len(value), value, i % 100))
        stored, head, body, end = (self.lines.readline() for _ in range(4))
        return stored == b"STORED\r\n" and body.rstrip() == value and end == b"END\r\n" and head.startswith(b"VALUE")


def main():
    kind, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    server = {"memcached": Memcached}[kind](port)
    took, wrong = [], 0
    began = now = time.monotonic()
    while now < began + seconds:
        before = now
        wrong += not server.once(len(took))
        now = time.monotonic()
        took.append(now - before)
    took.sort()
    at = lambda share: round(took[min(len(took) - 1, int(len(took) * share))] * 1e3, 4)
    print(json.dumps({"rate": len(took) / (now - began), "p50_ms": at(0.5), "p99_ms": at(0.99), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
