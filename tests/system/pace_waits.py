#!/usr/bin/env python3
"""Waits of 0.9 s in every way at once, again and again, and timers with periods: what was asked for and what was got."""
import ctypes, os, queue, select, signal, socket, struct, threading, time

libc = ctypes.CDLL(None, use_errno=True)
ASKED, EVERY, SIG = 0.9, 0.13, signal.SIGRTMIN + 3


class Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


class Setting(ctypes.Structure):
    _fields_ = [("every", Timespec), ("value", Timespec)]


def span(s):
    return Timespec(int(s), round(s % 1 * 1e9))


def setting(every, value):
    return ctypes.byref(Setting(span(every), span(value)))


def make_timer(signo):
    timer, event = ctypes.c_int(), struct.pack("qii48x", 0, signo, 0)
    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
    return timer.value


def make_timerfd(every, value):
    fd = libc.timerfd_create(1, 0)
    assert libc.timerfd_settime(fd, 0, setting(every, value), None) == 0
    return fd


def ends_with(expected, result):
    assert result == -1 and ctypes.get_errno() == expected, (result, ctypes.get_errno())


def nanosleep():
    time.sleep(ASKED)


def clock_nanosleep_realtime():
    libc.clock_nanosleep(0, 1, ctypes.byref(span(time.time() + ASKED)), None)


def select_():
    select.select([quiet], [], [], ASKED)


def poll():
    p = select.poll()
    p.register(quiet)
    p.poll(ASKED * 1000)


def epoll():
    e = select.epoll()
    e.register(quiet, select.EPOLLIN)
    e.poll(ASKED)
    e.close()


def epoll_forever():
    fd, e = make_timerfd(0, ASKED), select.epoll()
    e.register(fd, select.EPOLLIN)
    # Where a pause ends it, it is early.
    libc.epoll_wait(e.fileno(), ctypes.create_string_buffer(12), 1, -1)
    e.close()
    os.close(fd)


def futex():
    threading.Event().wait(ASKED)


def semaphore():
    try:
        queue.Queue().get(timeout=ASKED)
    except queue.Empty:
        pass


def sigtimedwait():
    # SIGTRAP is how the blob is told of a change: it must not come out here.
    assert signal.sigtimedwait([signal.SIGUSR2, signal.SIGTRAP], ASKED) is None


def socket_timeout():
    a, _b = socket.socketpair()
    a.settimeout(ASKED)
    try:
        a.recv(1)
    except TimeoutError:
        pass


def semtimedop():
    ends_with(11, libc.semtimedop(semaphores, struct.pack("hhh", 0, -1, 0), 1, ctypes.byref(span(ASKED))))


def mq_timedreceive():
    room, end = ctypes.create_string_buffer(8192), span(time.time() + ASKED)
    ends_with(110, libc.mq_timedreceive(messages, room, 8192, None, ctypes.byref(end)))


def timerfd():
    fd = make_timerfd(0, ASKED)
    assert struct.unpack("Q", os.read(fd, 8)) == (1,)
    os.close(fd)


def itimer():
    signal.setitimer(signal.ITIMER_REAL, ASKED)
    signal.sigwait([signal.SIGALRM])


def posix_timer():
    assert libc.timer_settime(one_shot, 0, setting(0, ASKED), None) == 0
    signal.sigwait([SIG])


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def again(wait):
    while True:
        began = time.monotonic_ns()
        wait()
        say("wait", wait.__name__, int(ASKED * 1e9), time.monotonic_ns() - began)


def periods(name, began, more, kind="period", every=EVERY):
    seen = 0
    while True:
        seen += more()
        say(kind, name, round(seen * every * 1e9), time.monotonic_ns() - began)


def timerfd_periods():
    began, fd = time.monotonic_ns(), make_timerfd(EVERY, EVERY)
    periods("timerfd_periods", began, lambda: struct.unpack("Q", os.read(fd, 8))[0])


def posix_periods():
    began = time.monotonic_ns()
    assert libc.timer_settime(periodic, 0, setting(EVERY, EVERY), None) == 0

    def more():
        signal.sigwait([SIG + 1])
        return 1 + libc.timer_getoverrun(periodic)

    periods("posix_periods", began, more)


def posix_periods_unread():
    """Whose signal waits at a pause, with expirations that nobody has read, and which is due while the lab is stopped."""
    every, began = 0.001, time.monotonic_ns()
    assert libc.timer_settime(unread, 0, setting(every, every), None) == 0

    def more():
        time.sleep(4 * EVERY)
        signal.sigwait([SIG + 2])
        return 1 + libc.timer_getoverrun(unread)

    periods("posix_periods_unread", began, more, "unread", every)


def coarse():
    """A clock that is a tick behind, and so may be behind a change of the rate: it does not go back."""
    reads = back = last = 0
    while True:
        now = time.clock_gettime_ns(6)
        reads, back, last = reads + 1, back + (now < last), now
        if reads % 100 == 0:
            say("coarse", reads, back)
        time.sleep(0.001)


quiet, _end = os.pipe()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGALRM, SIG, SIG + 1, SIG + 2])
one_shot, periodic, unread = make_timer(SIG), make_timer(SIG + 1), make_timer(SIG + 2)
semaphores = libc.semget(0, 1, 0o1600)
messages = libc.mq_open(b"/quiet", os.O_RDWR | os.O_CREAT, 0o600, None)
assert semaphores >= 0 and messages >= 0
waits = [nanosleep, clock_nanosleep_realtime, select_, poll, epoll, epoll_forever, futex, semaphore]
waits += [sigtimedwait, socket_timeout, semtimedop, mq_timedreceive, timerfd, itimer, posix_timer]
for wait in waits:
    threading.Thread(target=again, args=[wait]).start()
for each in [timerfd_periods, posix_periods, posix_periods_unread, coarse]:
    threading.Thread(target=each).start()
