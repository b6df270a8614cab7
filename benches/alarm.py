#!/usr/bin/env python3
"""Is the verdict's alarm alive? Labs of two nodes are disturbed on purpose, in ways that spoil their numbers; each such
run must say so (exit 4, with a reason that fits), and a run that nothing disturbs must not. Prints a table and writes
JSON; exit 1 when a bar is missed, 3 when something does not run. Needs root.

  hog      a real-time thread above the emulator's priority takes half of each core, 10 of 20 ms
  stopped  the emulator's thread, and nothing else, is stopped once for 50 ms
  halved   an ordinary busy program on each core, of the same weight as the whole lab
  quiet    nothing

The host can disturb a run too. One for which a hypervisor kept more of a core, or for which the machine clocked its cores
down for longer, than the verdict allows was not quiet, nor was one in which a core stood still: a thread of the highest
priority on each, which is none of DieCast's, woke up a millisecond late or more. Whatever such a run says, it is counted
apart and repeated, at most as often as there are runs.

Usage: benches/alarm.py [--small] [--tdf T] [--runs N] [--case CASE]... [--out DIR]     (make bench-alarm; 9 minutes)
Runs that --out holds already count, so that it can be done in pieces.
"""
import argparse, ctypes, json, math, mmap, os, random, re, shutil, signal, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
BEGAN = time.monotonic()

CATALOG = """diecast: 1
name: alarm
machine_types:
  half: {{cores: 1, speed: 0.4, memory: 128MiB}}
nodes:
  client: {{type: half}}
  server: {{type: half}}
topology:
  switches: [s]
  links:
    - {{from: [client, server], to: s, bandwidth: 100Mbit/s, delay: 5ms}}
programs:
  - on: server
    run: [cpuserver, --listen, "0.0.0.0:80", --service, 500us]
    files: {{/usr/local/bin/cpuserver: diecast-cpuserver}}
    ready: {{tcp: 80, within: 20s}}
workload:
  parameters: {{rate: 100/s, seed: 3}}
  warm_up: {warm_up}ms
  measure: {measure}ms
  run:
    on: client
    command: [loadgen, "http://server/", "--rate=${{rate}}", "--seed=${{seed}}", "--warm-up=${{warm_up}}", "--measure=${{measure}}"]
    files: {{/usr/local/bin/loadgen: diecast-loadgen}}
metrics:
  latency: {{from: client, samples: latency_ns.bin, unit: ns, show: [p50, p99]}}
"""

STOLEN, SLOWED = "time stolen by a hypervisor", "time at less than a third of its speed"
LATE = ("emulator lateness", "ledger lateness", "waits beyond catch-up")
# What a disturbance may be called; quiet runs have none.
FITS = {"hog": ("cores used by others", *LATE), "stopped": ("emulator lateness",),
        "halved": ("cores used by others", *LATE), "quiet": ()}
STOP_S, HOG_S = 0.050, 0.010
# Above the emulator's 50.
HOG_PRIORITY = 60
WATCH_PRIORITY, WATCH_EVERY_S, PAUSE_MS = 90, 0.004, 1.0
# What the most urgent thread does at each look, and in which part of the looks that takes three times as long as ever where a core
# is slow: half of what the verdict allows.
WATCH_TURNS, SLOW_LOOKS = 400, 0.005


def say(text):
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def child_on(core, priority, work):
    """A child on a core, of a real-time priority or of none, that does this until it is killed; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        # One that outlives this script would be there for good.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        for group in ("cpu", "cpu,cpuacct"):
            # Groups of version 1 have no real-time budget below their root.
            if os.path.exists(f"/sys/fs/cgroup/{group}/cgroup.procs"):
                open(f"/sys/fs/cgroup/{group}/cgroup.procs", "w").write(str(os.getpid()))
        os.sched_setaffinity(0, {core})
        if priority:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        work()
    finally:
        os._exit(1)


def busy(rests):
    """Forever, or half of the time."""
    while True:
        end = time.monotonic() + HOG_S
        while time.monotonic() < end:
            pass
        if rests:
            time.sleep(HOG_S)


class Watch:
    """How long a core stood still at most (how late the most urgent thread on it woke up), and in which part of its looks it was
    slow: nothing of DieCast's tells this."""

    def __init__(self, cores):
        room = mmap.mmap(-1, mmap.PAGESIZE)
        kinds = [(ctypes.c_double * len(cores)).from_buffer(room, kind * 8 * len(cores)) for kind in range(3)]
        self.latest, self.looks, self.slow = kinds
        self.pids = [child_on(core, WATCH_PRIORITY, lambda at=at: self.look(at)) for at, core in enumerate(cores)]

    def look(self, at):
        least = math.inf
        while True:
            due = time.monotonic() + WATCH_EVERY_S
            time.sleep(WATCH_EVERY_S)
            woke = time.monotonic()
            self.latest[at] = max(self.latest[at], woke - due)
            for _ in range(WATCH_TURNS):
                pass
            took = time.monotonic() - woke
            least = min(least, took)
            self.looks[at] += 1
            self.slow[at] += took > 3 * least

    def take(self):
        """Since this was last asked: ms, and the share of slow looks at the slowest core."""
        latest = max(self.latest)
        slow = max((slow / looks for slow, looks in zip(self.slow, self.looks) if looks), default=0.0)
        for kind in (self.latest, self.looks, self.slow):
            for at in range(len(kind)):
                kind[at] = 0.0
        return {"paused_ms": round(1e3 * latest, 3), "slow_looks": round(slow, 4)}

    def end(self):
        end(self.pids)


def end(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def stop_thread(pid, name):
    """Stops one thread of a process for a while, as a debugger does."""
    seize, interrupt, detach, any_thread = 0x4206, 0x4207, 17, 0x40000000
    comm = lambda tid: open(f"/proc/{pid}/task/{tid}/comm").read().strip()
    tid = next(int(tid) for tid in os.listdir(f"/proc/{pid}/task") if comm(tid) == name)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def ptrace(request):
        if libc.ptrace(request, tid, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of the emulator's thread")

    ptrace(seize)
    ptrace(interrupt)
    os.waitpid(tid, any_thread)
    time.sleep(STOP_S)
    ptrace(detach)


def until(lab, out, phase):
    """Waits until the journal tells of a phase. Looks seldom: this is one of the others that the verdict counts."""
    while lab.poll() is None:
        if os.path.exists(f"{out}/journal.jsonl") and f'"phase":"{phase}"' in open(f"{out}/journal.jsonl").read():
            return
        time.sleep(0.1)


def disturb(case, lab, out, at_s, watch):
    """Does it in the measured time; returns when it is over. Of a quiet run: what the watch saw."""
    until(lab, out, "measure")
    nothing = {"paused_ms": None, "slow_looks": None}
    if lab.poll() is not None:
        return nothing
    if case == "quiet":
        # Programs that are loaded and removed stop the cores for some milliseconds too, before and after.
        watch.take()
        until(lab, out, "drain")
        return watch.take()
    if case == "stopped":
        time.sleep(at_s)
        stop_thread(lab.pid, "diecast-net")
        return nothing
    hog = case == "hog"
    hogs = [child_on(core, HOG_PRIORITY if hog else None, lambda: busy(hog)) for core in sorted(os.sched_getaffinity(0))]
    try:
        until(lab, out, "drain")
    finally:
        end(hogs)
    return nothing


def one(case, number, o, folder, watch):
    """One fresh run."""
    out = os.path.join(o.out, f"{case}-{number:02d}")
    shutil.rmtree(out, ignore_errors=True)
    command = [DIECAST, "run", f"{folder}/alarm.yaml", "--mode", "diecast", "--tdf", str(o.tdf), "--out", out]
    # Somewhere in the middle, elsewhere in each run.
    at_s = random.Random(number).uniform(0.2, 0.8) * o.measure / 1000 * o.tdf
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as lab:
        try:
            seen = disturb(case, lab, out, at_s, watch)
            said = lab.communicate(timeout=60 + 70 * o.tdf)[1]
        finally:
            lab.kill()
    if lab.returncode not in (0, 1, 4):
        raise RuntimeError(f"{case} ended with {lab.returncode}: {said.strip()[-1500:]}")
    return {"status": lab.returncode, **seen, **read(out)}


def read(out):
    run = json.load(open(f"{out}/run.json"))
    use = run["fidelity"]["host_use"] or {"stolen": {}, "slow": {}}
    return {"reasons": [f"{r['what']} {r['measured']}" for r in run["verdict"]["reasons"]],
            "stolen": max(use["stolen"].values(), default=None), "slow": max(use["slow"].values(), default=None), "others": use.get("others")}


def wilson(hits, n):
    """95 % interval of a share."""
    if n == 0:
        return 0.0, 1.0
    z, p = 1.96, hits / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def paused(run):
    return "" if run["paused_ms"] is None else f", a core stood still for {run['paused_ms']:.2f} ms at most"


def from_outside(run):
    """The watch saw it, or the kernel counts it as stolen (which the verdict reads off /proc/stat); that the verdict calls cores slow is
    not enough."""
    slow = (run.get("slow_looks") or 0) >= SLOW_LOOKS and any(r.startswith(SLOWED) for r in run["reasons"])
    return (run["paused_ms"] or 0) >= PAUSE_MS or slow or any(r.startswith(STOLEN) for r in run["reasons"])


def judge(case, runs, wanted):
    """What the runs of a case come to. The bars are those of 20 runs: at least 19 flagged, at most 1 quiet one."""
    counted = [r for r in runs if not (case == "quiet" and from_outside(r))]
    if case == "quiet":
        flagged = [r for r in counted if r["status"] != 0]
    else:
        flagged = [r for r in counted if r["status"] == 4 and any(r_.startswith(FITS[case]) for r_ in r["reasons"])]
    n, hits = len(counted), len(flagged)
    allowed = wanted // 20
    met = hits <= allowed if case == "quiet" else n - hits <= allowed
    reasons = {}
    for r in counted:
        for what in {re.sub(r" \(.*| [\d.]+ ?\S*$", "", r_) for r_ in r["reasons"]}:
            reasons[what] = reasons.get(what, 0) + 1
    others = [r["others"] for r in counted if r["others"] is not None]
    return {"case": case, "runs": n, "flagged": hits, "share": hits / max(1, n), "wilson_95": wilson(hits, n),
            "bar": f"at most {allowed}" if case == "quiet" else f"at least {wanted - allowed}", "passes": met if n >= wanted else None,
            "not_quiet": len(runs) - n, "stolen": [r["stolen"] for r in runs if r["stolen"] is not None],
            "slow": [r["slow"] for r in runs if r["slow"] is not None],
            "others_median": statistics.median(others) if others else None,
            "reasons": dict(sorted(reasons.items(), key=lambda kv: -kv[1])), "all": runs}


def row(f):
    low, high = f["wilson_95"]
    judged = {True: "pass", False: "FAIL", None: "too few runs"}[f["passes"]]
    most = ", ".join(f"{what} {n}" for what, n in f["reasons"].items())
    apart = f"; {f['not_quiet']} more not counted, as the host stole, slowed or stopped the cores" if f["not_quiet"] else ""
    steal = f", stolen {100 * min(f['stolen']):.1f} to {100 * max(f['stolen']):.1f} %" if f["stolen"] else ""
    slow = f", slow {100 * min(f['slow']):.1f} to {100 * max(f['slow']):.1f} %" if f["slow"] else ""
    return (f"  {f['case']:<8} {f['flagged']:>3} of {f['runs']:<3} flagged [{100 * low:.0f}, {100 * high:.0f}] %   "
            f"{f['bar']:<12} {judged}{steal}{slow}{apart}\n      reasons: {most or 'none'}")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--small", action="store_true", help="one short run of each, to see that it works")
    a.add_argument("--tdf", type=int, help="of the labs [3; small: 2]")
    a.add_argument("--runs", type=int, help="of each case [20; small: 1]")
    a.add_argument("--case", action="append", choices=list(FITS), help="only this (several times)")
    a.add_argument("--seconds", type=float, default=math.inf, help="start no run after this long; the next call goes on")
    a.add_argument("--out", default=f"out/bench-alarm-{int(time.time())}")
    o = a.parse_args()
    o.tdf, o.runs = o.tdf or (2 if o.small else 3), o.runs or (1 if o.small else 20)
    o.measure, o.warm_up = (800, 200) if o.small else (1000, 300)
    o.out = os.path.abspath(o.out)
    folder = os.path.join(o.out, "catalog")
    os.makedirs(folder, exist_ok=True)
    open(f"{folder}/alarm.yaml", "w").write(CATALOG.format(warm_up=o.warm_up, measure=o.measure))
    for program in ("diecast-cpuserver", "diecast-loadgen"):
        shutil.copy(os.path.join(RELEASE, program), folder)
    kept = f"{o.out}/runs.json"
    runs = json.load(open(kept)) if os.path.exists(kept) else {case: [] for case in FITS}
    cases = o.case or list(FITS)

    def wanting(case):
        # Of quiet ones those count that were quiet; there is an end to that.
        counted = sum(not (case == "quiet" and from_outside(r)) for r in runs[case])
        return counted < o.runs and len(runs[case]) < 2 * o.runs

    watch = Watch(sorted(os.sched_getaffinity(0)))
    try:
        # The cases alternate: the host is the same for all of them.
        while any(map(wanting, cases)) and time.monotonic() - BEGAN < o.seconds:
            for case in filter(wanting, cases):
                runs[case].append(one(case, len(runs[case]), o, folder, watch))
                last = runs[case][-1]
                say(f"{case}: exit {last['status']}{paused(last)}{'; ' + '; '.join(last['reasons']) if last['reasons'] else ''}")
                json.dump(runs, open(kept, "w"), indent=1)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        say(f"did not run: {error}")
        return 3
    finally:
        watch.end()
    figures = [judge(case, runs[case], o.runs) for case in cases]
    print(f"\nThe verdict's alarm: two nodes, TDF {o.tdf}, {o.measure / 1000:g} virtual s")
    for f in figures:
        print(row(f))
    machine = open("/proc/cpuinfo").read().split("model name\t: ")[1].splitlines()[0]
    result = {"machine": machine, "kernel": os.uname().release, "small": o.small, "tdf": o.tdf, "figures": figures}
    json.dump(result, open(f"{o.out}/bench-alarm.json", "w"), indent=1)
    say(f"JSON in {o.out}/bench-alarm.json")
    # Too few runs say nothing, but where this call was told to end before.
    ended = time.monotonic() - BEGAN >= o.seconds
    return 0 if all(f["passes"] or (ended and f["passes"] is None) for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
