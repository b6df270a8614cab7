#!/usr/bin/env python3
"""Load for servers whose packages bring none: one connection, one request after the other, for a while of the clock
that this process sees. Prints one line of JSON: rate, p50_ms, p99_ms, wrong.

Usage: benches/servers_load.py memcached|etcd|stomp PORT SECONDS
"""
import base64, http.client, json, socket, sys, time


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


class Etcd:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def ask(self, path, body):
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())

    def once(self, i):
        key, value = (base64.b64encode(b"%d" % n).decode() for n in (i % 100, i))
        status, _ = self.ask("/v3/kv/put", {"key": key, "value": value})
        read, found = self.ask("/v3/kv/range", {"key": key})
        return status == read == 200 and found["kvs"][0]["value"] == value


class Stomp:
    """A message to a queue and back."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""
        self.send("CONNECT", {"accept-version": "1.2", "host": "/", "login": "guest", "passcode": "guest",
                              "heart-beat": "1000,1000"})
        assert self.frame()[0] == b"CONNECTED"
        self.send("SUBSCRIBE", {"id": "0", "destination": "/queue/load", "ack": "auto"})

    def send(self, command, headers, body=""):
        head = "".join(f"{k}:{v}\n" for k, v in headers.items())
        self.socket.sendall(f"{command}\n{head}\n{body}\0".encode())

    def frame(self):
        while b"\0" not in self.data:
            got = self.socket.recv(65536)
            if not got:
                raise ConnectionError("the server closed the connection")
            self.data += got
        frame, self.data = self.data.split(b"\0", 1)
        head, _, body = frame.lstrip(b"\n").partition(b"\n\n")
        return head.split(b"\n")[0], body

    def once(self, i):
        self.send("SEND", {"destination": "/queue/load", "content-type": "text/plain"}, f"message {i}")
        return self.frame() == (b"MESSAGE", f"message {i}".encode())


def main():
    kind, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    server = {"memcached": Memcached, "etcd": Etcd, "stomp": Stomp}[kind](port)
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
