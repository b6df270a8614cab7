#!/usr/bin/env python3
"""Accuracy of CPU time at the level of single requests. Open-loop requests with seeded Poisson arrivals to a server
whose service is a given CPU time: native, alone on a core, against diecast with 1 and 8 servers on that core at TDF 10
and 16 at TDF 20, and against a CFS quota of the same share. Prints a table and writes JSON; exit 1 when a bar is
missed, 3 when something does not run. Needs root and two cores.

The rows `cfs` are mode naive at scale 10, where everything that is not CPU is ten times slower by hand (arrivals, links,
times): a frame made of a quota alone. Their samples are divided by ten before they are compared.

All modes get the same arrivals, so each request is compared with the same one in the native run: errors and intervals are
those of a bootstrap that draws blocks of consecutive requests, the same in both.

Native is alone on its cores, but for what the host keeps them for: its run tells when a core was somebody else's or stood still
(records `stalls`). Requests that were under way then, and those that queued behind them, are left out, on both sides; what
becomes of the dilated run is in its figures. The errors with all requests are printed too, and not judged.

Usage: benches/cpu.py [--small] [--cell CELL]... [--handed] [--blocks N] [--seconds S] [--out DIR]    (make bench-cpu; 30 minutes)
Runs that --out holds already count, so that it can be done in pieces.
"""
import argparse, bisect, functools, itertools, json, math, operator, os, random, shutil, statistics, struct, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
BEGAN = time.monotonic()

# Name: service in us, load, bars of mean, median and p99.
CELLS = {"500us-0.3": (500, 0.3, (0.05, 0.05, 0.10)), "500us-0.7": (500, 0.7, (0.05, 0.05, 0.10)),
         "5ms-0.3": (5000, 0.3, (0.05, 0.05, 0.10)), "5ms-0.7": (5000, 0.7, (0.05, 0.05, 0.10)),
         "50us-0.3": (50, 0.3, (0.25, 0.25, 0.25))}
# The same of 500 us, half by one thread or process and half by another: what hands on from the first to the second and back.
HANDED = {f"{by}-0.3": by for by in ("condition", "pipe", "process")}
CELLS |= {cell: CELLS["500us-0.3"] for cell in HANDED}
FIGURES = ("mean", "p50", "p99")
# What was charged of what the kernel counted, in the whole run and in each window of 20 ms of CPU time.
CONSERVATION = 0.01
# Name: pairs of a client and a server, TDF, real seconds measured in a block. In the order of a block. The pairs of a mode
# share the arrivals of one stream, each a window of its own, so that 8 and 16 pairs see those of the native one.
MODES = {"native": (1, 1, 16), "diecast-1": (1, 10, 25), "diecast-8": (8, 10, 20), "diecast-16": (16, 20, 20), "cfs": (1, 10, 10)}
CFS = "cfs"
# One server at a tenth of its requests needs more for a 99th percentile: a stall of the host is met by few of them, but those
# are in it. So do few long requests in long queues.
LONGER_S = {("500us-0.3", "diecast-1"): 45, ("500us-0.7", "diecast-1"): 45, **{(cell, "diecast-1"): 60 for cell in HANDED},
            ("5ms-0.7", "native"): 22.4, ("5ms-0.7", "diecast-1"): 35, ("5ms-0.7", "diecast-8"): 28, ("5ms-0.7", "diecast-16"): 28}
SEED = 11
# A run that calls itself not trustworthy is made again, as its user would, so often at most and while all that this takes stays
# within so many seconds: a native one, which is short and meets a host's stalls at their full length, more often. Each is
# printed, and in the JSON.
AGAIN, AGAIN_NATIVE, AGAIN_S = 1, 5, 100
# Figures with too few samples get further blocks, of their mode and of the native one, until so many seconds have passed.
# Virtual seconds of warming up, and real ones that a run takes beside it and what it measures.
MORE_UNTIL_S, WARM_UP_S, AROUND_S = 1740, 0.5, 5
# A lab that leaves its host room is probed at a quarter of its TDF, for which 30 % of its warm-up have to be a real second.
PROBED_WARM_UP_S = {"diecast-1": 1.4}
TOO_FEW = "too few samples"
# From a client to a server, or back; and what a request and its answer take beside the service, of the core that is fuller natively
# at 50 us: client and emulator have some 115 us of theirs. Too much only leaves more out behind a stall.
LINKS, LINK_US = 2, 100
BESIDE_US = 80
# One that a late timer tells may have begun so much earlier; and so long after one before the first request its queue is gone.
UNSEEN_NS, SETTLES_NS = 4_000_000, 50_000_000
# Requests from which figures are judged.
FEWEST = 20
# Consecutive requests that are drawn together, some ten times as long as a queue lasts; and how often all are drawn.
BLOCK, REPLICATES = 200, 400

PAIR = "  client-{i}: {{type: {client}}}\n  server-{i}: {{type: whole}}\n"
# Clients and servers take turns in the list, so that the plan puts all servers on the core of the native one.
CATALOG = """diecast: 1
name: bench-cpu
machine_types:
  whole: {{cores: 1, speed: 1.0, memory: 128MiB}}
  most:  {{cores: 1, speed: 0.8, memory: 128MiB}}
nodes:
{nodes}topology:
  switches: [switch]
  links:
    - {{from: [{all}], to: switch, bandwidth: {mbit}Mbit/s, delay: {delay}us}}
programs:
  - on: [{servers}]
    run: [cpuserver, --listen, "0.0.0.0:80", --service, {service}us{parts}]
    files: {{/usr/local/bin/cpuserver: diecast-cpuserver}}
    ready: {{tcp: 80, within: 60s}}
workload:
  parameters: {{rate: {rate:.6g}/s}}
  warm_up: {warm_up}ms
  measure: {measure}ms
  run:
    on: [{clients}]
    command:
      - sh
      - -c
      - name=${{node}}; n=$${{name#client-}}; exec loadgen "http://server-$$n/" --rate=${{rate}} --seed={seed} --stream=all --skip=$$(( (n - 1) * {measure} + {lead} ))ms --warm-up=${{warm_up}} --measure=${{measure}} --sent=sent_ns.bin
    files: {{/usr/local/bin/loadgen: diecast-loadgen}}
metrics:
  latency: {{from: [{clients}], samples: latency_ns.bin, unit: ns, show: [mean, p50, p99]}}
  sent:    {{from: [{clients}], samples: sent_ns.bin, unit: ns, show: [min]}}
  errors:  {{from: [{clients}], regex: 'errors=(\\d+)', unit: requests, combine: sum}}
"""


def say(text):
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def how_long(cell, mode):
    """Pairs, TDF and real seconds of a mode in a cell, as in MODES."""
    pairs, tdf, real_s = MODES[mode]
    return pairs, tdf, LONGER_S.get((cell, mode), real_s)


def warm_up_s(mode, small):
    """Virtual seconds. What is measured begins at the same arrival in all modes, however long they warm up."""
    return 0.2 if small else PROBED_WARM_UP_S.get(mode, WARM_UP_S)


def takes_s(cell, mode):
    """Real seconds of a whole run."""
    _, tdf, real_s = how_long(cell, mode)
    return tdf * warm_up_s(mode, False) + real_s + AROUND_S


def catalog(cell, mode, block, small):
    """The text, in original units but for `cfs`."""
    service_us, load, _ = CELLS[cell]
    pairs, tdf, real_s = how_long(cell, mode)
    # What the quota stands for is TDF times slower than it looks.
    slower = tdf if mode == CFS else 1
    # In mode naive a client has no quota, and a plan leaves a part of each core to others.
    client = "most" if mode == CFS else "whole"
    names = lambda role: [f"{role}-{i}" for i in range(1, pairs + 1)]
    virtual_s = (1.0 if small else real_s) / (tdf if mode != CFS else 1)
    return CATALOG.format(
        nodes="".join(PAIR.format(i=i, client=client) for i in range(1, pairs + 1)), all=", ".join(names("client") + names("server")),
        servers=", ".join(names("server")), clients=", ".join(names("client")), mbit=1000 // slower, delay=LINK_US * slower,
        service=service_us, parts=f", --parts, 2, --by, {HANDED[cell]}" if cell in HANDED else "", rate=load / service_us * 1e6 / slower, seed=SEED + block,
        warm_up=round(1000 * slower * warm_up_s(mode, small)), measure=round(1000 * virtual_s),
        lead=round(1000 * slower * (max(PROBED_WARM_UP_S.values()) - warm_up_s(mode, small))))


def run(cell, mode, block, o, folder):
    """One fresh run into its directory; what of it does not come from its samples."""
    out = directory(o, cell, mode, block) + ".new"
    shutil.rmtree(out, ignore_errors=True)
    path = os.path.join(folder, f"{cell}-{mode}.yaml")
    open(path, "w").write(catalog(cell, mode, block, o.small))
    _, tdf, real_s = how_long(cell, mode)
    how = {"native": ["--mode", "native"], CFS: ["--mode", "naive", "--scale", str(tdf)]}
    command = [DIECAST, "run", path, *how.get(mode, ["--mode", "diecast", "--tdf", str(tdf)]), "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120 + 3 * real_s)
    # 4: the figures hold, or miss, by the bars here; that the run distrusts itself is printed beside them.
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{cell} {mode} ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    if mode == CFS:
        in_original_time(out, tdf)
    say(f"{cell} {mode}, block {block + 1}: {' '.join(sorted(distrust(out))) or 'trustworthy'}")
    return out


def run_trusted(cell, mode, block, o, folder):
    """A block: a run that calls itself trustworthy, or the last of those that don't."""
    most = AGAIN_NATIVE if mode == "native" else AGAIN
    for again in range(1 + most):
        began = time.monotonic()
        out = run(cell, mode, block, o, folder)
        took_s = time.monotonic() - began
        if mode == CFS or o.small or not distrust(out) or again == most or o.again_s + took_s > AGAIN_S:
            break
        o.again_s += took_s
        o.distrusted.append({"cell": cell, "mode": mode, "block": block, "why": sorted(distrust(out))})
    # Whole or not at all: what is there counts.
    os.rename(out, out.removesuffix(".new"))


def measure(cell, mode, block, o, folder):
    """A block of a mode, if it is not there yet and there is time."""
    if directory(o, cell, mode, block) in blocks(o, cell, mode) or time.monotonic() - BEGAN > o.seconds:
        return
    try:
        run_trusted(cell, mode, block, o, folder)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        say(f"did not run: {error}")
        o.broken.append(f"{cell} {mode}")


def least_sure(found, o):
    """A cell, mode and block that would bring more samples where there are too few, the mode with the fewest runs first; None
    where nothing lacks any, something does not run or no time is left."""
    lacking = [(f["runs"], f["cell"], f["mode"]) for rows in found.values() for f in rows
               if any(c.get("judged") == TOO_FEW for c in f["figures"].values())]
    for runs, cell, mode in sorted(lacking):
        took_s = takes_s(cell, "native") + takes_s(cell, mode)
        if not o.broken and time.monotonic() - BEGAN + took_s < min(o.seconds, MORE_UNTIL_S):
            return cell, mode, runs
    return None


def directory(o, cell, mode, block):
    return os.path.join(o.out, cell, f"{block}-{mode}")


def in_original_time(out, slower):
    for name in os.listdir(f"{out}/samples"):
        raw = open(f"{out}/samples/{name}", "rb").read()
        divided = (ns // slower for (ns,) in struct.iter_unpack("<Q", raw))
        open(f"{out}/samples/{name}", "wb").write(b"".join(struct.pack("<Q", ns) for ns in divided))


def summary(out):
    return json.load(open(f"{out}/run.json"))


def distrust(out):
    return {f"{r['what']} {r['measured']};" for r in summary(out)["verdict"]["reasons"]}


def blocks(o, cell, mode):
    """The directories of the whole runs that there are, by the number of their block: modes are paired in this order."""
    there = os.listdir(os.path.join(o.out, cell)) if os.path.isdir(os.path.join(o.out, cell)) else []
    found = sorted(int(block) for block, of in (d.split("-", 1) for d in there) if of == mode)
    return [directory(o, cell, mode, block) for block in found]


def errors_of(out):
    return next(m["data"]["scalar"]["value"] for m in summary(out)["metrics"] if m["name"] == "errors")


def facts(directories):
    """What is said of a mode beside its figures: conservation, the host's speed, what a hypervisor took."""
    worst, total, stolen, reasons, errors, speeds = [], [], [], {}, 0, {}
    for d in directories:
        s = summary(d)
        f = s["fidelity"]
        for c in f["conservation"]:
            due = c["used_ns"] - c["meter_cost_ns"] - c["cold_ns"] - c["slow_ns"]
            worst += c["errors"]
            total.append(abs(c["charged_ns"] - due) / max(1, due))
        stolen += (f["host_use"] or {"stolen": {}})["stolen"].values()
        for core in f["host_speed"]:
            speeds.setdefault(core["core"], []).extend(core["probe_ns"])
        for r in s["verdict"]["reasons"]:
            reasons[r["what"]] = reasons.get(r["what"], 0) + 1
        errors += errors_of(d)
    conserved = [max(errors, default=None) for errors in (worst, total)]
    judged = None if None in conserved else "met" if max(conserved) <= CONSERVATION else "MISSED"
    return {"runs": len(directories), "errors": errors, "conservation_worst_window": conserved[0],
            "conservation_whole_run": conserved[1], "conservation_judged": judged, "stolen": max(stolen, default=None),
            "host_probe_us": {core: statistics.median(ns) / 1e3 for core, ns in sorted(speeds.items())}, "distrust": reasons}


def compared(native, directories):
    done = subprocess.run([DIECAST, "compare", *native, *directories, "--json"], capture_output=True, text=True)
    if done.returncode not in (0, 1, 4):
        raise RuntimeError(f"compare ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    found = json.loads(done.stdout)
    # Blocks of one mode are one column: their seeds are no parameter of the catalog.
    if len(found["columns"]) != (2 if directories else 1):
        raise RuntimeError(f"compare has {[c['name'] for c in found['columns']]}")
    return {r["figure"]: r["cells"] for r in found["rows"] if r["metric"] == "latency"}


def numbers(path):
    return [ns for (ns,) in struct.iter_unpack("<Q", open(path, "rb").read())]


def requests(out, pairs):
    """Latencies of a run, a list for each pair, in the order of the stream's arrivals."""
    return [numbers(f"{out}/samples/latency.client-{i}.bin") for i in range(1, pairs + 1)]


def side_of(both, side):
    """All latencies of a side, in their order."""
    return [ns for sides in both for ns in sides[side]]


@functools.cache
def stalls(out):
    """When a core of a run without meters was kept from its nodes, as (from, to) of CLOCK_MONOTONIC in ns, in order and apart from
    each other; None where that was not watched."""
    header, *lines = open(f"{out}/journal.jsonl")
    records = [json.loads(line) for line in lines if line.startswith('{"record":"stalls"')]
    cores = {core for node in json.loads(header)["nodes"] for core in node["host_cores"]}
    found, apart = (s for r in records for s in r["stalls"] if s["core"] in cores), []
    for begin, end in sorted((s["r_from_ns"] - (0 if s["by"] else UNSEEN_NS), s["r_to_ns"]) for s in found):
        if apart and begin <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((begin, end))
    return apart if records else None


def done(begin, work, found, ends):
    """When work is done that begins then and stands still in the stalls that were found, which end then."""
    at = bisect.bisect_right(ends, begin)
    while at < len(found) and found[at][0] < begin + work:
        work -= max(0, found[at][0] - begin)
        begin = found[at][1]
        at += 1
    return begin + work


@functools.cache
def met_stalls(out, service_us):
    """Of each request of a native run whether it met a stall: of a server that takes the same for each, one after the other, it would
    have had its answer later for it. By when requests were to be sent, not by how long they took: those that took long by chance
    would be left out more often."""
    found = stalls(out)
    sent = numbers(f"{out}/samples/sent.client-1.bin")
    if found is None:
        return [False] * len(sent)
    ends, way, work = [end for _, end in found], 1000 * LINKS * LINK_US, 1000 * (service_us + BESIDE_US)
    free, free_alone, marks = 0, 0, []
    before = bisect.bisect_right(ends, sent[0]) if sent else 0
    settled = ends[before - 1] + SETTLES_NS if before else 0
    for begin in sent:
        free = done(max(free, done(begin, way, found, ends)), work, found, ends)
        free_alone = max(free_alone, begin + way) + work
        marks.append(begin < settled or done(free, way, found, ends) > free_alone + way)
    return marks


def statistic(name, values, times, order, reached):
    """Of values that count so many times each: `order` is theirs by size, `reached` how many there are up to each of it."""
    if name == "mean":
        return sum(map(operator.mul, times, values)) / reached[-1]
    # The smallest value that at least this part of all is not above.
    return values[order[bisect.bisect_left(reached, math.ceil(float(name[1:]) / 100 * reached[-1]))]]


def same_requests(native, directories, pairs, service_us):
    """Of each run, for each pair, its latencies, those of the same requests in the native run, and which of these met a stall; None
    where a request is missing on a side."""
    runs = []
    for reference, out in zip(native, directories):
        ours, theirs, met = requests(out, pairs), requests(reference, 1)[0], met_stalls(reference, service_us)
        ends = list(itertools.accumulate(map(len, ours), initial=0))
        if ends[-1] > len(theirs) or errors_of(out) or errors_of(reference):
            return None
        runs.append([(own, theirs[begin:begin + len(own)], met[begin:begin + len(own)]) for own, begin in zip(ours, ends)])
    return runs


def alone(runs):
    """The same without the requests that met a stall natively."""
    kept = lambda values, met: [ns for ns, stalled in zip(values, met) if not stalled]
    return [[(kept(own, met), kept(theirs, met)) for own, theirs, met in run] for run in runs]


def paired(runs, replicates=REPLICATES):
    """Of each figure its value, the native one, the error and, of so many replicates, its 95 % interval, against the same requests of
    the native runs."""
    ours, theirs = (side_of(itertools.chain(*runs), side) for side in (0, 1))
    n = len(ours)
    length = min(BLOCK, n // 20)
    # No block goes from one run into the next.
    lengths = [len(side_of(run, 0)) for run in runs]
    starts = [at for run, end in zip(lengths, itertools.accumulate(lengths)) for at in range(end - run, end - length + 1)]
    draw = random.Random(SEED)
    sides = [(values, sorted(range(n), key=values.__getitem__)) for values in (ours, theirs)]

    def errors(times):
        """Where each request counts so many times: without sorting anew."""
        of = []
        for values, order in sides:
            reached = list(itertools.accumulate(map(times.__getitem__, order)))
            of.append({name: statistic(name, values, times, order, reached) for name in FIGURES})
        return {name: of[0][name] / of[1][name] - 1 for name in FIGURES}

    def drawn():
        marks = [0] * (n + 1)
        for at in draw.choices(starts, k=n // length):
            marks[at] += 1
            marks[at + length] -= 1
        return list(itertools.accumulate(marks[:n]))

    seen = [errors(drawn()) for _ in range(replicates)]
    edge = lambda name, part: sorted(e[name] for e in seen)[round(part * (replicates - 1))]
    found = errors([1] * n)
    whole = lambda side, name: statistic(name, sides[side][0], [1] * n, sides[side][1], range(1, n + 1)) / 1e3
    intervals = {name: {"interval_95": [edge(name, 0.025), edge(name, 0.975)]} for name in FIGURES if seen}
    return {name: {"us": whole(0, name), "native_us": whole(1, name), "error": found[name], **intervals.get(name, {})} for name in FIGURES}


def judged(error, interval, bar):
    """As `diecast compare`: outside, inside, or too few samples to say."""
    low, high = interval
    if low > bar or high < -bar:
        return "MISSED"
    return "met" if abs(error) <= bar and (high - low) / 2 <= bar else TOO_FEW


def count(directories):
    return sum(m["data"]["samples"]["count"] for d in directories for m in summary(d)["metrics"] if m["name"] == "latency")


def figures_of(cell, mode, o):
    """Every figure of a mode in a cell, as one or no row."""
    bars, native, directories = CELLS[cell][2], blocks(o, cell, "native"), blocks(o, cell, mode)
    if not native or not directories:
        return []
    rows = compared(native, [] if mode == "native" else directories)
    same = None if mode == "native" else same_requests(native, directories, MODES[mode][0], CELLS[cell][0])
    kept = alone(same) if same else []
    n_alone = sum(len(own) for run in kept for own, _ in run)
    of_all, of_alone = (paired(same, replicates=0), paired(kept)) if n_alone >= FEWEST else (None, None)
    found = {}
    for figure, bar in zip(FIGURES, bars):
        c = rows[figure][0 if mode == "native" else 1]
        found[figure] = {"us": c["value"] / 1e3, "spread": c["spread"]}
        if mode != "native" and (of_alone or c["interval"]):
            # Where requests failed, or nearly all met stalls, as of runs that have nothing in common.
            apart = c["interval"] and {"error": c["error"], "interval_95": [c["interval"]["low"], c["interval"]["high"]]}
            found[figure] |= (of_alone[figure] | {"all": of_all[figure]} if of_alone else apart) | {"paired": bool(of_alone), "bar": bar}
            error, interval = found[figure]["error"], found[figure]["interval_95"]
            found[figure]["judged"] = None if mode == CFS else judged(error, interval, bar)
    met = [mark for out in native for mark in met_stalls(out, CELLS[cell][0])]
    return [{"cell": cell, "mode": mode, "n": count(directories), "n_alone": n_alone or None, "figures": found, "native_stalls_watched": None not in map(stalls, native),
             "native_met_stalls": sum(met) / max(1, len(met)), **facts(directories)}]


def show(f):
    parts = []
    for name, c in f["figures"].items():
        text = f"{name} {c['us']:.0f} us"
        if "error" in c:
            low, high = c["interval_95"]
            text += f" {100 * c['error']:+.1f} % [{100 * low:+.1f}, {100 * high:+.1f}]"
            text += f" {c['judged']}" if c["judged"] else ""
        elif c["spread"] is not None:
            text += f" (blocks {100 * c['spread']:.1f} % apart)"
        parts.append(text)
    probe = "/".join(f"{us:.0f}" for us in f["host_probe_us"].values())
    more = [f"probe {probe} us", f"stolen {100 * (f['stolen'] or 0):.1f} %"]
    if f["mode"] == "native":
        more.append(f"met stalls {100 * f['native_met_stalls']:.1f} %" if f["native_stalls_watched"] else "stalls not watched")
    elif of_all := {name: c["all"] for name, c in f["figures"].items() if "all" in c}:
        more.append("with those that met stalls natively " + ", ".join(f"{name} {100 * c['error']:+.1f} %" for name, c in of_all.items()) + " (not judged)")
    if f["conservation_worst_window"] is not None:
        more.append(f"conservation: run {100 * f['conservation_whole_run']:.2f} %, worst window {100 * f['conservation_worst_window']:.2f} % "
                    f"(at most {100 * CONSERVATION:g} %) {f['conservation_judged']}")
    if f["errors"]:
        more.append(f"{f['errors']:.0f} requests failed")
    if f["distrust"]:
        more.append("not trustworthy: " + ", ".join(f"{what} ({n} of {f['runs']})" for what, n in f["distrust"].items()))
    return f"  {f['mode']:<11} n {f['n']:<7} {'   '.join(parts)}\n      {'; '.join(more)}"


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--small", action="store_true", help="one short block of one cell, to see that it works")
    a.add_argument("--cell", action="append", choices=list(CELLS), help="only this (several times)")
    a.add_argument("--handed", action="store_true", help="instead of requests that one thread works on those of two threads or processes")
    a.add_argument("--blocks", type=int, help="of each cell, one run in each mode but `cfs`, which has one in all [2; small: 1]; figures with too few samples get more while there is time")
    a.add_argument("--seconds", type=float, default=math.inf, help="start no run after this long; the next call goes on")
    a.add_argument("--out", default=f"out/bench-cpu-{int(time.time())}")
    o = a.parse_args()
    o.out = os.path.abspath(o.out)
    of_kind = [cell for cell in CELLS if (cell in HANDED) == o.handed]
    cells, wanted = o.cell or of_kind[:1 if o.small else None], o.blocks or (1 if o.small else 2)
    folder = os.path.join(o.out, "catalogs")
    os.makedirs(folder, exist_ok=True)
    for program in ("diecast-cpuserver", "diecast-loadgen"):
        shutil.copy(os.path.join(RELEASE, program), folder)
    o.broken, o.again_s, o.distrusted = [], 0.0, []
    for block, cell in ((b, c) for b in range(wanted) for c in cells):
        for mode in MODES:
            if mode != CFS or block == 0:
                measure(cell, mode, block, o, folder)
    found = {(cell, mode): figures_of(cell, mode, o) for cell in cells for mode in MODES}
    while not o.small and (next_block := least_sure(found, o)):
        cell, mode, block = next_block
        measure(cell, "native", block, o, folder)
        measure(cell, mode, block, o, folder)
        found |= {(cell, m): figures_of(cell, m, o) for m in ("native", mode)}
    for cell in cells:
        service_us, load, bars = CELLS[cell]
        by = f", half by each of two (by {HANDED[cell]})" if cell in HANDED else ""
        print(f"\nservice {service_us} us of CPU time{by}, load {load}; errors against native with 95 % intervals, in virtual time; "
              f"bars: mean and median {100 * bars[0]:.0f} %, p99 {100 * bars[2]:.0f} %", flush=True)
        for f in (f for mode in MODES for f in found[cell, mode]):
            print(show(f), flush=True)
    found = [f for rows in found.values() for f in rows]
    machine = open("/proc/cpuinfo").read().split("model name\t: ")[1].splitlines()[0]
    result = {"machine": machine, "kernel": os.uname().release, "small": o.small, "figures": found, "broken": o.broken,
              "modes": {cell: {mode: how_long(cell, mode) for mode in MODES} for cell in cells}, "distrusted": o.distrusted}
    json.dump(result, open(f"{o.out}/bench-cpu.json", "w"), indent=1)
    verdicts = [c["judged"] for f in found for c in f["figures"].values() if c.get("judged")]
    verdicts += [f["conservation_judged"] for f in found if f["conservation_judged"]]
    print(f"\n{verdicts.count('met')} of {len(verdicts)} bars met, {verdicts.count('MISSED')} missed, "
          f"{verdicts.count(TOO_FEW)} need more samples")
    say(f"JSON in {o.out}/bench-cpu.json")
    return 3 if o.broken else 1 if "MISSED" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
