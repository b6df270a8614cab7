"""CPython: clocks, sleeps, threads with timeouts, timers, sockets, subprocesses."""
import os, select, signal, socket, subprocess, sys, threading, time


def say(*words):
    print(*words, flush=True)


def wait(name, asked, f):
    before = time.monotonic_ns()
    result = f()
    say("wait", name, int(asked * 1e9), time.monotonic_ns() - before)
    return result


def late_echo(s):
    time.sleep(0.05)
    s.send(b"x")


def idle(waits):
    """CPU time of the whole process for each wait, the best of rounds."""
    def round():
        before = time.process_time_ns()
        for _ in range(waits):
            time.sleep(0.002)
        return time.process_time_ns() - before
    say("value cpu_ns_per_wait", min(round() for _ in range(4)) // waits)
    sys.exit(0)


if sys.argv[1:2] == ["idle"]:
    idle(int(sys.argv[2]))
say("stamp start", time.monotonic_ns())
wait("sleep", 0.05, lambda: time.sleep(0.05))
wait("event", 0.05, lambda: threading.Event().wait(0.05))
wait("lock", 0.05, lambda: (lambda l: (l.acquire(), l.acquire(timeout=0.05)))(threading.Lock()))
wait("select", 0.05, lambda: select.select([], [], [], 0.05))
fired = threading.Event()
before = time.monotonic_ns()
threading.Timer(0.05, fired.set).start()
say("= timer", fired.wait(5))
say("wait timer", 50000000, time.monotonic_ns() - before)
a, b = socket.socketpair()
a.settimeout(0.05)
try:
    wait("socket", 0.05, lambda: a.recv(1))
except socket.timeout:
    say("= socket timed out")
a.settimeout(5)
say("= echo", wait("echo", 0.05, lambda: (threading.Thread(target=late_echo, args=(b,)).start(), a.recv(1))[1]))


class Alarm(Exception):
    pass


def ring(*_):
    raise Alarm


# Python relies on EINTR to run its handlers: with it lost, the read would go on for ever. So it does natively where the
# alarm comes just before the call, which a time much longer than the way there keeps from happening on a busy machine.
signal.signal(signal.SIGALRM, ring)
r, w = os.pipe()
rung = 0
for i in range(5):
    signal.setitimer(signal.ITIMER_REAL, 0.03)
    try:
        os.read(r, 1)
    except Alarm:
        rung += 1
say("= alarms", rung)
say("= child", subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(0.02); print(time.time() > 1e9)"],
                              capture_output=True, text=True).stdout.strip())
say("= system", os.system("exit 3") >> 8)
try:
    wait("subprocess", 0.05, lambda: subprocess.run(["sleep", "5"], timeout=0.05))
except subprocess.TimeoutExpired:
    say("= subprocess timed out")
before = time.monotonic_ns()
cpu = time.thread_time_ns()
while time.thread_time_ns() - cpu < 30000000:
    pass
say("near busy", time.monotonic_ns() - before, time.thread_time_ns() - cpu)
say("near clocks", time.time_ns(), time.clock_gettime_ns(time.CLOCK_REALTIME))
say("stamp end", time.monotonic_ns())
