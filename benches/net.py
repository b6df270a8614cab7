#!/usr/bin/env python3
"""Accuracy and cost of the network: links and a dumbbell as programs in nodes see them, at TDF 1, 10 and 100, and the
emulator alone. Prints a table and writes JSON; exit 1 when a bar is missed, 3 when something does not run.

Usage: benches/net.py [--small] [--part NAME]... [--out DIR]     (make bench-net; about 27 minutes, --small about 1)
"""
import argparse, json, math, os, re, shutil, statistics, struct, subprocess, sys, tempfile, time

import reference

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
BEGAN = time.monotonic()

# examples/net-links.yaml. A rate counts IP bytes plus 14.
LINK_BPS, ACCESS_BPS = 100e6, 1e9
LINK_S, ACCESS_S = 20e-3, 50e-6
PROBE_BITS = (64 + 20 + 8 + 14) * 8
ROUND_TRIP_MS = 2e3 * (PROBE_BITS / LINK_BPS + 2 * PROBE_BITS / ACCESS_BPS + LINK_S + 2 * ACCESS_S)
LOSS = 0.02
# examples/net-dumbbell.yaml. A full segment carries 1448 bytes in a frame of 1514; acknowledgements go the other way.
BOTTLENECK_BPS, FLOWS, WIRE = 40e6, 4, 1514 / 1448
# benches/net-busy.yaml.
BUSY_TDF, LATE_US = 4, 50
# Two-sided 99.9 % of a normal distribution, which the binomial is at these numbers.
Z = 3.29


def say(text):
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def figure(name, unit, value, spread=None, spread_is="", bar="", passes=None, note=""):
    low, high = spread or (value, value)
    return {"name": name, "unit": unit, "value": value, "spread": [low, high], "spread_is": spread_is, "bar": bar,
            "passes": passes, "note": note}


def prepared(name, folder, warm_up, measure):
    """A copy of a catalog, its programs beside it, with these times."""
    text = open(os.path.join(ROOT, name)).read()
    text = re.sub(r"warm_up: \d\S*", f"warm_up: {warm_up}ms", text)
    text = re.sub(r"measure: \d\S*", f"measure: {measure}ms", text)
    for program in set(re.findall(r"\.\./target/release/(\S+?)}", text)):
        shutil.copy(os.path.join(RELEASE, program), folder)
    text = text.replace("../target/release/", "")
    path = os.path.join(folder, os.path.basename(name))
    open(path, "w").write(text)
    return path


def run(name, tdf, warm_up, measure, out, *more):
    """One fresh run; its summary. At TDF 1 the mode is baseline."""
    mode = ["--mode", "baseline"] if tdf == 1 else ["--mode", "diecast", "--tdf", str(tdf)]
    say(f"{name} at TDF {tdf}: {measure / 1000:g} virtual s")
    with tempfile.TemporaryDirectory(prefix="diecast-net-") as folder:
        path = prepared(name, folder, warm_up, measure)
        limit_s = 60 + tdf * (warm_up + measure + 3000) / 1000
        done = subprocess.run([DIECAST, "run", path, *mode, "--out", out, "--json", *more], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=limit_s)
    # 4: the numbers hold, or fail, by the bars here; that the run distrusts itself is printed beside them.
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{name} at TDF {tdf} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


def scalar(summary, name):
    return next(m["data"]["scalar"]["value"] for m in summary["metrics"] if m["name"] == name)


def distrust(summary):
    reasons = summary["verdict"]["reasons"]
    return "; ".join(f"run not trustworthy: {r['what']} {r['measured']}" for r in reasons)


def round_trips_ms(out):
    raw = open(os.path.join(out, "samples", "round_trip.ping.bin"), "rb").read()
    return sorted(ns / 1e6 for (ns,) in struct.iter_unpack("<Q", raw))


def quantile(ordered, share):
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def links(tdf, rounds, out, small):
    """Throughput, round trip and loss over three pipes each."""
    rates, trips, cpu_us, losses, notes, busy = [], [], [], [], [], []
    for i in range(rounds):
        where = os.path.join(out, f"links-{tdf}-{i}")
        # Each round loses other packets.
        s = run("examples/net-links.yaml", tdf, 300, 700 if small else 2000, where, "-p", f"seed={1000 * tdf + i}")
        rates.append(scalar(s, "throughput"))
        # 9000 datagrams a second; CPU clocks of nodes count their machine's time.
        busy.append(scalar(s, "flood_cpu") * 9000 / 1e7)
        got = round_trips_ms(where)
        if len(got) != scalar(s, "probes"):
            notes.append(f"{len(got)} of {scalar(s, 'probes'):g} probes came back")
        trips.append(got)
        cpu_us.append(scalar(s, "round_trip_cpu") / 1e3)
        losses.append((scalar(s, "sent"), scalar(s, "sent") - scalar(s, "received")))
        notes.append(distrust(s))
    note = "; ".join(sorted({n for n in notes if n}))
    errors = [100 * (r / LINK_BPS - 1) for r in rates]
    worst = max(errors, key=abs)
    yield figure(f"TDF {tdf}: UDP throughput of a link of 100 Mbit/s, error", "%", worst, (min(errors), max(errors)),
                 f"range of {rounds}; the worst counts", "within 1 %", abs(worst) <= 1,
                 f"the sender is busy for {max(busy):.0f} % of its machine's time" + (f"; {note}" if note else ""))
    bar = 0.4 if tdf == 1 else 0.2
    middles = [quantile(t, 0.5) - ROUND_TRIP_MS for t in trips]
    worst = max(middles, key=abs)
    pooled = sorted(t for ts in trips for t in ts)
    least, p99 = pooled[0] - ROUND_TRIP_MS, quantile(pooled, 0.99) - ROUND_TRIP_MS
    yield figure(f"TDF {tdf}: round trip of {ROUND_TRIP_MS:.4f} ms, error of the median", "ms", worst, (least, p99),
                 f"least and p99 of {len(pooled)}", f"within {bar} ms", abs(worst) <= bar and least >= -0.001,
                 f"CPU time of both nodes in it: {statistics.median(cpu_us):.0f} us")
    yield figure(f"TDF {tdf}: round trip of {ROUND_TRIP_MS:.4f} ms, error of the p99", "ms", p99, (least, pooled[-1] - ROUND_TRIP_MS),
                 "least and largest", "no bar")
    sent, lost = (sum(column) for column in zip(*losses))
    bound = Z * math.sqrt(sent * LOSS * (1 - LOSS))
    yield figure(f"TDF {tdf}: lost of {sent:.0f} datagrams at {100 * LOSS:g} %, {rounds} seeds", "datagrams", lost,
                 (min(l for _, l in losses), max(l for _, l in losses)), "least and most of a seed",
                 f"{sent * LOSS:.0f} +- {bound:.0f} (99.9 %)", abs(lost - sent * LOSS) <= bound)


def series(out, flow):
    text = open(os.path.join(out, "logs", f"bulk-{flow}.diecast-netprobe.out")).read()
    found = json.loads(text.strip().splitlines()[-1])
    return found["bin_ns"], {int(k): v for k, v in found["bytes"].items()}


def dumbbell(tdf, out, small):
    """Shares of equal TCP flows over one window of virtual time that all receivers share."""
    warm_up, measure = (1000, 3000) if small else (1000, 5000) if tdf == 100 else (2000, 12000)
    where = os.path.join(out, f"dumbbell-{tdf}")
    note = distrust(run("examples/net-dumbbell.yaml", tdf, warm_up, measure, where))
    flows = [series(where, i + 1) for i in range(FLOWS)]
    bin_ns = flows[0][0]
    first = max(min(bins) for _, bins in flows) + warm_up * 1_000_000 // bin_ns
    # The last bins are left out: senders end a little apart.
    window = range(first, first + measure * 1_000_000 // bin_ns - 3)
    seconds = len(window) * bin_ns / 1e9
    mbit = [sum(bins.get(b, 0) for b in window) * 8 * WIRE / seconds / 1e6 for _, bins in flows]
    total, bottleneck = sum(mbit), BOTTLENECK_BPS / 1e6
    jain = total**2 / (FLOWS * sum(m * m for m in mbit))
    shares = ", ".join(f"{m:.2f}" for m in mbit)
    name = f"TDF {tdf}: {FLOWS} TCP flows over {bottleneck:g} Mbit/s, {seconds:.1f} virtual s"
    # What leaves a queue of 50 packets at the end of the window more than came in at its start.
    slack = 50 * 1514 * 8 / 1e6 / seconds
    yield figure(f"{name}: sum", "Mbit/s", total, (min(mbit), max(mbit)), f"flows: {shares}",
                 f"{0.95 * bottleneck:g} to {bottleneck + slack:.2f}", 0.95 * bottleneck <= total <= bottleneck + slack, note)
    yield figure(f"{name}: Jain index", "", jain, (min(mbit) / total, max(mbit) / total), "shares", "at least 0.95", jain >= 0.95)


def drops(tdf, out, small):
    """What reached each pipe of a dumbbell and what its queue dropped, against a second simulation of the same arrivals."""
    where = os.path.join(out, f"drops-{tdf}")
    warm_up, measure = (200, 800) if small or tdf == 100 else (500, 3000)
    note = distrust(run("examples/net-dumbbell.yaml", tdf, warm_up, measure, where, "--record-arrivals"))
    pipes = reference.compare(where)
    packets, dropped = sum(ran[0] for _, ran, _ in pipes), sum(ran[1] for _, ran, _ in pipes)
    differ = sum(abs(ran[0] - here[0]) + abs(ran[1] - here[1]) for _, ran, here in pipes)
    again = subprocess.run([DIECAST, "replay", where, "--json"], capture_output=True, text=True, timeout=300)
    if again.returncode not in (0, 1):
        raise RuntimeError(f"replay ended with {again.returncode}: {again.stderr.strip()}")
    again = json.loads(again.stdout)
    os.remove(os.path.join(where, "arrivals.bin"))
    yield figure(f"TDF {tdf}: packets and drops of all pipes, from a second simulation's", "packets", differ, bar="0",
                 passes=differ == 0 and dropped > 0, note=f"{dropped} dropped of {packets}" + (f"; {note}" if note else ""))
    same = again["parting"]["same"] if again["parting"] else again["deliveries"]
    wrong = sum(p["run"] != p["replay"] for p in again["pipes"])
    yield figure(f"TDF {tdf}: deliveries of the live run that its replay has, same instant, content and order", "", same,
                 bar=f"all {again['deliveries']}", passes=again["parting"] is None and wrong == 0 and same > 0,
                 note=f"{again['records']} frames came in; pipes with other counters: {wrong}")


def busy_nodes(out, small):
    """How late the emulator is beside six nodes on each core that never sleep."""
    where = os.path.join(out, "busy-nodes")
    s = run("benches/net-busy.yaml", BUSY_TDF, 300, 500 if small else 5000, where)
    late = s["fidelity"]["emulator"]
    p50, p99, most = (late[k] * BUSY_TDF / 1e3 for k in ("v_p50_ns", "v_p99_ns", "v_max_ns"))
    yield figure(f"TDF {BUSY_TDF}: lateness p99 beside six busy nodes on each core", "us", p99, (p50, most),
                 f"median and largest of {late['events']}, real", f"at most {LATE_US}", p99 <= LATE_US, distrust(s))


def emulator(part, small):
    say(f"the emulator alone: {part}")
    done = subprocess.run([os.path.join(RELEASE, "net-cost"), part, *(["--small"] if small else [])],
                          capture_output=True, text=True, timeout=400)
    if done.returncode != 0:
        raise RuntimeError(f"net-cost {part} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    for line in done.stdout.splitlines():
        yield {**json.loads(line), "note": ""}


# In the order in which they run; name, in the small form too, what.
PARTS = [
    *((f"emulator-{p}", True, lambda out, small, p=p: emulator(p, small)) for p in ("throughput", "rate", "delay", "idle", "star")),
    ("busy-nodes", True, lambda out, small: busy_nodes(out, small)),
    ("links-1", True, lambda out, small: links(1, 1 if small else 3, out, small)),
    ("links-10", True, lambda out, small: links(10, 1 if small else 2, out, small)),
    ("dumbbell-1", True, lambda out, small: dumbbell(1, out, small)),
    ("dumbbell-10", False, lambda out, small: dumbbell(10, out, small)),
    ("drops-1", True, lambda out, small: drops(1, out, small)),
    ("drops-10", False, lambda out, small: drops(10, out, small)),
    ("drops-100", False, lambda out, small: drops(100, out, small)),
    ("dumbbell-100", False, lambda out, small: dumbbell(100, out, small)),
    ("links-100", False, lambda out, small: links(100, 1, out, small)),
]


def row(f):
    judged = {True: "pass", False: "FAIL", None: ""}[f["passes"]]
    low, high = f["spread"]
    spread = f"{low:.4g} to {high:.4g}, {f['spread_is']}" if f["spread_is"] else ""
    line = f"  {f['name']:<76} {f['value']:>12.6g} {f['unit']:<10} {f['bar']:<26} {judged:<5} {spread}"
    return line.rstrip() + (f"\n      ({f['note']})" if f["note"] else "")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--small", action="store_true", help="a minute, to see that it works; its figures mean little")
    a.add_argument("--part", action="append", choices=[name for name, _, _ in PARTS], help="only this (several times)")
    a.add_argument("--out", default=f"out/bench-net-{int(time.time())}")
    o = a.parse_args()
    os.makedirs(o.out, exist_ok=True)
    figures, broken = [], []
    for name, in_small, part in PARTS:
        if name not in o.part if o.part else o.small and not in_small:
            continue
        try:
            found = list(part(os.path.abspath(o.out), o.small))
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            say(f"{name} did not run: {error}")
            broken.append(name)
            continue
        figures += ({"part": name, **f} for f in found)
        for f in found:
            print(row(f), flush=True)
    machine = open("/proc/cpuinfo").read().split("model name\t: ")[1].splitlines()[0]
    result = {"machine": machine, "kernel": os.uname().release, "small": o.small, "figures": figures, "broken": broken}
    with open(f"{o.out}/bench-net.json", "w") as out:
        json.dump(result, out, indent=1)
    missed = [f["name"] for f in figures if f["passes"] is False]
    judged = sum(f["passes"] is not None for f in figures)
    print("\nAll figures of nodes are in virtual time.")
    print(f"{judged - len(missed)} of {judged} bars met" + "".join(f"\n  missed: {m}" for m in missed))
    say(f"JSON in {o.out}/bench-net.json")
    return 3 if broken else 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
