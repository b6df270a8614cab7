#!/usr/bin/env python3
"""Does a node get its share of CPU time, whatever its threads do? Four parts, each with its bar:

  share         1 to 16 busy threads on 1, 2 and 4 virtual cores at TDF 2, 10 and 100: CPU time against speed/TDF (0.5 %),
                wherever the shares come to at most 80 % of the host
  mutex         throughput of two and four threads on two cores, of whose work a third is under one mutex, against the same
                without, natively and at TDF 4: the ratio is native's (5 %)
  independent   a fixed loop takes as long at TDF 10 with a twentieth of a core as at TDF 1 with half of one: `--speed 0.5`
                in both, CPU scaling that doesn't depend on the TDF (3 %)
  conservation  a fork storm, a sender that works in the kernel and 500 threads, side by side: what was charged is what
                the kernel counted (1 %)

Prints a table and writes JSON; exit 1 when a bar is missed, 3 when something does not run. Needs root.

Usage: benches/shares.py [--small] [--part PART]... [--out DIR]     (make bench-shares; 10 minutes)
"""
import argparse, json, os, shutil, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
SPIN = os.path.join(RELEASE, "diecast-spin")
BEGAN = time.monotonic()
THREADS, CORES, OF_HOST = (1, 2, 4, 8, 16), (1, 2, 4), 0.8
# Real seconds by TDF: many grains of each thread.
TDFS = {2: 3, 10: 5, 100: 20}
ROUNDS = 4

CATALOG = """diecast: 1
name: conservation
machine_types:
  node: {{cores: 1, speed: 0.6, memory: 512MiB}}
nodes:
  forks: {{type: node}}
  sender: {{type: node}}
  threads: {{type: node}}
  sink: {{type: node}}
topology:
  switches: [switch]
  links:
    - {{from: [forks, sender, threads, sink], to: switch, bandwidth: 1Gbit/s, delay: 100us}}
programs:
  - on: forks
    run: [sh, -c, "while :; do /bin/true; (:); done"]
  - on: sender
    run: [python3, /send.py]
    files: {{/send.py: send.py}}
  - on: threads
    run: [spin, --last, "10000", --threads, "500"]
    files: {{/usr/local/bin/spin: diecast-spin}}
workload:
  warm_up: 300ms
  measure: {measure}ms
  run:
    on: sink
    command: [sh, -c, "sleep {seconds}; echo slept={seconds}"]
metrics:
  slept: {{from: sink, regex: 'slept=([0-9.]+)', unit: s}}
"""
SEND = """import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("sink", 9))
data = bytes(1400)
while True:
    try:
        s.send(data)
    except OSError:
        pass
"""


def say(text):
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def spin(arguments, frame=None):
    """One run of the program, natively or with these flags of `diecast frame`; what it said."""
    command = [DIECAST, "frame", *frame, "--", SPIN, *arguments] if frame else [SPIN, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return json.loads(done.stdout)


def host():
    """Share of the cores' time that a hypervisor took since the last call, and how long a fixed loop takes."""
    ticks = [int(n) for n in open("/proc/stat").readline().split()[1:9]]
    before, host.ticks = getattr(host, "ticks", [0] * 8), ticks
    grown = [b - a for a, b in zip(before, ticks)]
    return {"stolen": grown[7] / max(1, sum(grown)), "probe_us": spin(["--turns", "1000000"])["wall_ns"] / 1e3}


def share(small):
    cells = [(2, 2, 4)] if small else [(tdf, cores, threads) for tdf in TDFS for cores in CORES for threads in THREADS]
    for tdf, cores, threads in cells:
        # As fast as the host has room for, with a margin for the supervisor.
        speed = min(1.0, round(OF_HOST * 0.95 * os.cpu_count() * tdf / cores, 2))
        last_s = (1.0 if small else TDFS[tdf]) / tdf
        # A frame's own grain is 100 us, at which hits cost up to a third of what they meter: more than a host that is to
        # be used by 80 % has left. A lab's is 500 us.
        for grain in ("100us", "500us") if speed < 1 else ("100us",):
            s = spin(["--last", f"{last_s:.3f}s", "--threads", str(threads)],
                     ["--tdf", str(tdf), "--cores", str(cores), "--speed", str(speed), "--grain", grain])
            got = s["cpu_ns"] / (s["wall_ns"] * min(cores, threads))
            yield f"TDF {tdf}, {cores} cores of speed {speed:g}, {threads} threads, grain {grain}", got - 1, 0.005


def mutex(small):
    # Real seconds of each, for the TDF's sake more in the frame.
    last_s, tdf = (0.3 if small else 2.0), 4
    for threads in ("4",) if small else ("2", "4"):
        # A frame's grain of its own, and a lab's.
        grains = ("500us",) if small else ("100us", "500us")
        frames = {grain: ["--tdf", str(tdf), "--cores", "2", "--grain", grain] for grain in grains}
        ratios = {world: [] for world in ("native", *grains)}
        for _ in range(1 if small else ROUNDS):
            for world, frame in [("native", None), *frames.items()]:
                arguments = ["--last", f"{last_s:.3f}s", "--threads", threads]
                free, locked = spin(arguments, frame), spin([*arguments, "--locked"], frame)
                ratios[world].append(locked["rounds"] / locked["wall_ns"] / (free["rounds"] / free["wall_ns"]))
        native = statistics.median(ratios["native"])
        for grain in grains:
            ours = statistics.median(ratios[grain])
            what = f"{threads} threads, grain {grain}, locked against free: native {native:.3f}, TDF {tdf} {ours:.3f}"
            yield what, ours / native - 1, 0.05


def independent(small):
    turns = spin(["--size-for", "30ms" if small else "200ms"])
    walls = {1: [], 10: []}
    for _ in range(1 if small else ROUNDS):
        for tdf, wall in walls.items():
            s = spin(["--turns", str(turns)], ["--tdf", str(tdf), "--speed", "0.5", "--cores", "1"])
            wall.append(s["wall_ns"] / 1e6)
    one, ten = (statistics.median(walls[tdf]) for tdf in (1, 10))
    yield f"a loop at speed 0.5: TDF 1 {one:.1f} ms, TDF 10 {ten:.1f} ms", ten / one - 1, 0.03


def conservation(small, folder):
    seconds = 0.3 if small else 4.0
    open(f"{folder}/conservation.yaml", "w").write(CATALOG.format(measure=round(1000 * seconds), seconds=seconds + 0.5))
    open(f"{folder}/send.py", "w").write(SEND)
    shutil.copy(SPIN, folder)
    out = f"{folder}/conservation"
    shutil.rmtree(out, ignore_errors=True)
    command = [DIECAST, "run", f"{folder}/conservation.yaml", "--tdf", "4", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    if done.returncode not in (0, 4):
        raise RuntimeError(f"conservation ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    for c in json.load(open(f"{out}/run.json"))["fidelity"]["conservation"]:
        if c["node"] != "sink":
            due = c["used_ns"] - c["meter_cost_ns"] - c["cold_ns"] - c["slow_ns"]
            what = f"{c['node']}: {c['used_ns'] / 1e6:.0f} ms used, worst window {100 * max(c['errors'], default=0):.2f} %"
            yield what, c["charged_ns"] / max(1, due) - 1, 0.01, {"used_ns": c["used_ns"]}


def main():
    parts = {"share": share, "mutex": mutex, "independent": independent,
             "conservation": lambda small: conservation(small, o.out)}
    a = argparse.ArgumentParser()
    a.add_argument("--small", action="store_true", help="seconds, to see that it works; its figures mean little")
    a.add_argument("--part", action="append", choices=parts, help="only this one; may be repeated")
    a.add_argument("--out", default=f"out/bench-shares-{int(time.time())}")
    o = a.parse_args()
    os.makedirs(o.out, exist_ok=True)
    rows = []
    host()
    try:
        for part in o.part or parts:
            for what, error, bar, *more in parts[part](o.small):
                met = {"error": error, "bar": bar, "met": abs(error) <= bar}
                rows.append({"part": part, "what": what, **met, **host(), **(more[0] if more else {})})
                r = rows[-1]
                say(f"{part:<12} {what}: {100 * error:+.2f} % (at most {100 * bar:g} %) {'met' if r['met'] else 'MISSED'}; "
                    f"stolen {100 * r['stolen']:.1f} %, probe {r['probe_us']:.0f} us")
    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
        say(f"did not run: {error}")
        return 3
    machine = open("/proc/cpuinfo").read().split("model name\t: ")[1].splitlines()[0]
    result = {"machine": machine, "kernel": os.uname().release, "small": o.small, "figures": rows}
    json.dump(result, open(f"{o.out}/bench-shares.json", "w"), indent=1)
    print(f"{sum(r['met'] for r in rows)} of {len(rows)} bars met; JSON in {o.out}/bench-shares.json")
    return 0 if all(r["met"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
