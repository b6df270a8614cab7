#!/usr/bin/env python3
"""A second simulation of a recorded run's network, from nothing but its arrivals and the plan: pipes with a rate, a delay
and a queue of so many packets, exact fractions, one sorted list of happenings. Prints what reached each pipe and what its
queue dropped, in the run and here; exit 1 when they differ, 3 when the network has more than that.

Usage: benches/reference.py RUN     (a directory of `diecast run --record-arrivals`)
"""
import heapq, json, os, struct, sys
from collections import deque

# What a pipe must not have: the simulation knows nothing of it.
UNKNOWN = ["jitter", "loss", "loss_every", "loss_burst", "duplicate", "corrupt", "queue_bytes", "queue_delay_ns"]
FRAME, DELIVERY, LOOK, END, REACH = 1, 3, 4, 0, 1
# What comes together goes in the order of the pipes that it comes out of, what nodes send last: ARCHITECTURE.md, "One order
# for one instant". It decides whose packet finds the last room of a queue.
OUTSIDE = float("inf")


def arrivals(path, end):
    """(instant, node, debt, frame) of each frame that came in before somebody looked at `end`, in the order of the file."""
    data, at = open(path, "rb").read(), 0
    while at < len(data):
        if data[at] == DELIVERY:
            at += 25
            continue
        if data[at] == LOOK:
            if struct.unpack_from("<Q", data, at + 1)[0] == end:
                return
            at += 9
            continue
        if data[at] != FRAME:
            raise ValueError("the network changes while it runs")
        instant, node, debt, length = struct.unpack_from("<QIQI", data, at + 1)
        at += 25
        yield instant, node, debt, data[at:at + length]
        at += length


def paths(net):
    """The only way between each two nodes, as pipes."""
    out = {}
    for ix, p in enumerate(net["pipes"]):
        out.setdefault(p["from"], []).append((p["to"], ix))
    ways = {}
    for a, node in enumerate(net["nodes"]):
        seen, todo = {node["vertex"]: []}, deque([node["vertex"]])
        while todo:
            v = todo.popleft()
            for to, ix in out.get(v, []):
                if to not in seen:
                    seen[to] = seen[v] + [ix]
                    todo.append(to)
                elif seen[v] and net["pipes"][seen[v][-1]]["from"] != to:
                    raise ValueError("there is more than one way")
        for b, other in enumerate(net["nodes"]):
            ways[a, b] = seen[other["vertex"]]
    return ways


def simulate(net, records, end):
    """Packets that reached each pipe up to `end`, and those that its queue had no room for."""
    if bad := {k for p in net["pipes"] for k in UNKNOWN if p[k]} or {p["discipline"] for p in net["pipes"]} - {"drop_tail"}:
        raise ValueError(f"pipes have {', '.join(map(str, bad))}")
    if framings := {p["framing"] for p in net["pipes"]} - {"frame"}:
        raise ValueError(f"framing is {', '.join(framings)}")
    ways, by_mac = paths(net), {bytes.fromhex(n["mac"].replace(":", "")): i for i, n in enumerate(net["nodes"])}
    agenda, order, released = [], 0, {}
    for at, node, debt, frame in records:
        to = by_mac.get(frame[:6])
        # Questions for neighbours never enter a pipe.
        if to is None or to == node or frame[12:14] != b"\x08\x00":
            continue
        ports = 14 + 4 * (frame[14] & 15)
        flow = (node, frame[:12], frame[23], frame[26:34], frame[ports:ports + 4])
        at = max(at + debt, released.get(flow, 0))
        released[flow] = at
        order += 1
        agenda.append((at, REACH, (OUTSIDE, order), len(frame), ways[node, to], 0))
    heapq.heapify(agenda)
    pipes = net["pipes"]
    # When each pipe will have sent what it sends, exactly: in units of a nanosecond over its rate.
    busy, sending, waiting = [0] * len(pipes), [False] * len(pipes), [deque() for _ in pipes]
    reached, dropped = [0] * len(pipes), [0] * len(pipes)

    def send(ix, size, way, hop):
        nonlocal order
        sending[ix] = True
        busy[ix] += size * 8 * 10**9
        over = -(-busy[ix] // pipes[ix]["bandwidth_bps"])
        order += 2
        heapq.heappush(agenda, (over, END, (ix, order - 1), ix, None, 0))
        heapq.heappush(agenda, (over + pipes[ix]["delay_ns"], REACH, (ix, order), size, way, hop + 1))

    while agenda and agenda[0][0] <= end:
        now, what, _, value, way, hop = heapq.heappop(agenda)
        if what == END:
            sending[value] = False
            if waiting[value]:
                send(value, *waiting[value].popleft())
            continue
        if hop == len(way):
            continue
        ix = way[hop]
        reached[ix] += 1
        if pipes[ix]["bandwidth_bps"] is None:
            order += 1
            heapq.heappush(agenda, (now + pipes[ix]["delay_ns"], REACH, (ix, order), value, way, hop + 1))
        elif not sending[ix]:
            busy[ix] = now * pipes[ix]["bandwidth_bps"]
            send(ix, value, way, hop)
        elif len(waiting[ix]) >= pipes[ix]["queue_packets"]:
            dropped[ix] += 1
        else:
            waiting[ix].append((value, way, hop))
    return list(zip(reached, dropped))


def compare(run):
    """(pipe, what the run counted, what is counted here) of each pipe, as of the run's last look."""
    net = json.load(open(os.path.join(run, "plan.json")))["net"]
    looks = [r for r in map(json.loads, open(os.path.join(run, "journal.jsonl"))) if r["record"] == "pipes"]
    counted = {p["pipe"]: (p["packets_in"], sum(p["dropped"].values())) for look in looks for p in look["pipes"]}
    end = looks[-1]["v_ns"]
    here = simulate(net, arrivals(os.path.join(run, "arrivals.bin"), end), end)
    name = lambda ix: " to ".join(net["vertices"][net["pipes"][ix][end]]["name"] for end in ("from", "to"))
    return [(name(ix), counted.get(ix, (0, 0)), found) for ix, found in enumerate(here)]


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        found = compare(sys.argv[1])
    except (OSError, ValueError) as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        return 3
    for name, run, here in found:
        print(f"{name}: {run[0]} packets, {run[1]} dropped; here {here[0]} and {here[1]}{'' if run == here else '  DIFFERS'}")
    return 0 if all(run == here for _, run, here in found) else 1


if __name__ == "__main__":
    sys.exit(main())
