#!/usr/bin/env python3
"""One TCP connection that asks and is answered all the time: its smoothed round trip after each answer."""
import socket, struct, sys, time

if len(sys.argv) == 1:
    listener = socket.create_server(("", 7))
    while True:
        peer, _ = listener.accept()
        while data := peer.recv(100):
            peer.sendall(data)
while True:
    try:
        server = socket.create_connection((sys.argv[1], 7), timeout=5)
        break
    except OSError:
        time.sleep(0.05)
while True:
    server.sendall(b"?" * 100)
    server.recv(100)
    rtt_us = struct.unpack_from("I", server.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 68)[0]
    print("rtt", time.monotonic_ns(), rtt_us, flush=True)
