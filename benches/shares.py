#!/usr/bin/env python3
"""Does a node get its share of CPU time, whatever its threads do? Six parts, each with its bar:

  share         1 to 16 busy threads on 1, 2 and 4 virtual cores at TDF 2, 10 and 100: CPU time against speed/TDF (0.5 %),
                wherever the shares come to at most 80 % of the host
  mutex         throughput of two and four threads on two cores, of whose work a third is under one mutex, against the same
                without, natively and at TDF 4: the ratio is native's (5 %)
  independent   a fixed loop takes as long at TDF 10 with a twentieth of a core as at TDF 1 with half of one: `--speed 0.5`
                in both, CPU scaling that doesn't depend on the TDF (3 %)
  futures       a server whose requests are fixed work, on a machine of speed 0.5: at TDF 10, a twentieth of a core, it
                answers as many as at TDF 1 (3 %) and as fast (median at load 0.7, 5 %); `--speed 2` and `--speed 0.5` give
                twice and half as many (3 %)
  conservation  a fork storm, a sender of packets and one of files, which work in the kernel, 500 threads and 2000, side by
                side: what was charged is what the kernel counted (1 %)
  receive       a node that gets more datagrams than it has CPU time for, each fixed work: at TDF 10 it takes as many a second
                as natively (5 %), where its own kernel receives them

Prints a table and writes JSON; exit 1 when a bar is missed, 3 when something does not run. Needs root.

Usage: benches/shares.py [--small] [--part PART]... [--out DIR]     (make bench-shares; 44 minutes)
"""
import argparse, json, os, shutil, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
SERVER, LOADGEN, NETPROBE = (os.path.join(RELEASE, f"diecast-{name}") for name in ("cpuserver", "loadgen", "netprobe"))
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
SPIN = os.path.join(RELEASE, "diecast-spin")
BEGAN = time.monotonic()
THREADS, CORES, OF_HOST = (1, 2, 4, 8, 16), (1, 2, 4), 0.8
# Real seconds by TDF: many grains of each thread.
TDFS = {2: 3, 10: 5, 100: 20}
ROUNDS = 4
# Of a share, whose median counts: a host that lets a core stand still for 20 ms takes 0.7 % of 3 s, and at TDF 100 a tenth of
# what a thread works in 20.
SHARE_ROUNDS = 3
# Of the labs with a server.
FUTURE_ROUNDS = 5
SINK_ROUNDS = 3

CATALOG = """diecast: 1
name: conservation
machine_types:
  node: {{cores: 1, speed: 0.6, memory: 512MiB}}
nodes:
  forks: {{type: node}}
  sender: {{type: node}}
  files: {{type: node}}
  threads: {{type: node}}
  crowd: {{type: node}}
  sink: {{type: node}}
topology:
  switches: [switch]
  links:
    - {{from: [forks, sender, files, threads, crowd, sink], to: switch, bandwidth: 1Gbit/s, delay: 100us}}
programs:
  - on: forks
    run: [sh, -c, "while :; do /bin/true; (:); done"]
  - on: files
    run: [python3, /drain.py]
    files: {{/drain.py: drain.py}}
    ready: {{tcp: 80, within: 20s}}
  - on: sender
    run: [python3, /send.py]
    files: {{/send.py: send.py}}
  - on: files
    run: [python3, /sendfile.py]
    files: {{/sendfile.py: sendfile.py}}
  - on: threads
    run: [spin, --last, "10000", --threads, "500"]
    files: {{/usr/local/bin/spin: diecast-spin}}
  - on: crowd
    run: [spin, --last, "10000", --threads, "2000"]
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
SENDFILE = """import os, socket, tempfile
file = tempfile.TemporaryFile()
file.write(bytes(1 << 20))
file.flush()
s = socket.create_connection(("localhost", 80))
while True:
    os.sendfile(s.fileno(), file.fileno(), 0, 1 << 20)
"""
DRAIN = """import socket
listener = socket.create_server(("", 80))
while True:
    s, _ = listener.accept()
    while s.recv(1 << 20):
        pass
"""
# Twice as much as a server of this speed can do, or seven tenths of it.
SPEED, OVERLOAD, LOAD = 0.5, 2.0, 0.7
FUTURES = """diecast: 1
name: futures
machine_types:
  half: {{cores: 1, speed: {speed}, memory: 128MiB}}
nodes:
  client: {{type: half}}
  server: {{type: half}}
topology:
  switches: [switch]
  links:
    - {{from: [client, server], to: switch, bandwidth: 1Gbit/s, delay: 100us}}
programs:
  - on: server
    run: [cpuserver, --listen, "0.0.0.0:80", --turns, "{turns}"]
    files: {{/usr/local/bin/cpuserver: diecast-cpuserver}}
    ready: {{tcp: 80, within: 20s}}
workload:
  parameters: {{rate: 1/s, seed: 11}}
  warm_up: {warm_up}ms
  measure: {measure}ms
  run:
    on: client
    command: [loadgen, "http://server/", "--rate=${{rate}}", "--seed=${{seed}}", "--warm-up=${{warm_up}}", "--measure=${{measure}}", --connections=64, --timeout=60s, --drain=60s]
    files: {{/usr/local/bin/loadgen: diecast-loadgen}}
metrics:
  throughput: {{from: client, json: $.rate, unit: 1/s}}
  median:     {{from: client, json: $.p50_ns, unit: ns}}
"""
# A sink that gets more than it can do: us of work for each datagram, and datagrams a second.
RECEIVE = {100: 12000, 60: 20000}
SINK = """diecast: 1
name: receive
machine_types:
  whole: {{cores: 1, speed: 1.0, memory: 128MiB}}
nodes:
  sender: {{type: whole}}
  sink: {{type: whole}}
topology:
  switches: [switch]
  links:
    - {{from: [sender, sink], to: switch, bandwidth: 1Gbit/s, delay: 100us}}
programs:
  - on: sink
    run: [netprobe, serve, --turns, "{turns}"]
    files: {{/usr/local/bin/netprobe: diecast-netprobe}}
    ready: {{tcp: 7000, within: 20s}}
workload:
  warm_up: 300ms
  measure: {measure}ms
  run:
    on: sender
    command: [netprobe, even, --to, sink, --rate, "{rate}", "--warm-up=${{warm_up}}", "--measure=${{measure}}"]
    files: {{/usr/local/bin/netprobe: diecast-netprobe}}
metrics:
  taken: {{from: sender, json: $.rate, unit: 1/s}}
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
    cells = [(2, 2, 4), (2, 4, 4)] if small else [(tdf, cores, threads) for tdf in TDFS for cores in CORES for threads in THREADS]
    for tdf, cores, threads in cells:
        # As fast as the host has room for, with a margin for the supervisor.
        speed = min(1.0, round(OF_HOST * 0.95 * os.cpu_count() * tdf / cores, 2))
        last_s = (1.0 if small else TDFS[tdf]) / tdf
        found, by_work = [], []
        # What the programs' own CPU clock says is what the ledger paces: the work that was done tells by itself, as well as two
        # runs of the host's cores agree.
        native = spin(["--last", "0.1s" if small else "0.3s", "--threads", str(min(threads, os.cpu_count()))])
        for _ in range(1 if small else SHARE_ROUNDS):
            # The grain is the frame's own.
            s = spin(["--last", f"{last_s:.3f}s", "--threads", str(threads)],
                     ["--tdf", str(tdf), "--cores", str(cores), "--speed", str(speed)])
            found.append(s["cpu_ns"] / (s["wall_ns"] * min(cores, threads)) - 1)
            due_ns = s["wall_ns"] * min(cores, threads) * speed
            by_work.append(s["rounds"] / (due_ns * native["rounds"] / native["cpu_ns"]) - 1)
        each = f" ({', '.join(f'{100 * off:+.2f}' for off in found)} %)" if len(found) > 1 else ""
        work = statistics.median(by_work)
        yield (f"TDF {tdf}, {cores} cores of speed {speed:g}, {threads} threads{each}; by the work done {100 * work:+.1f} %",
               statistics.median(found), 0.005, {"by_work": work})


def mutex(small):
    # Real seconds of each, for the TDF's sake more in the frame.
    last_s, tdf = (0.3 if small else 2.0), 4
    for threads in ("4",) if small else ("2", "4"):
        # A frame's grain of its own, and a lab's.
        grains = ("100us", "500us")
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


def lab(folder, name, factors):
    """The results of one run of this catalog in the folder, with these flags of `diecast run`."""
    out = f"{folder}/{name}"
    shutil.rmtree(out, ignore_errors=True)
    command = [DIECAST, "run", f"{folder}/{name}.yaml", *factors, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    return json.load(open(f"{out}/run.json"))


def metrics(run):
    return {m["name"]: m["data"]["scalar"]["value"] for m in run["metrics"]}


def futures(small, folder):
    measure_ms, tdf, service_us = (400, 2, 500) if small else (2000, 10, 500)
    turns = spin(["--size-for", f"{service_us}us"])
    open(f"{folder}/futures.yaml", "w").write(FUTURES.format(speed=SPEED, turns=turns, warm_up=measure_ms // 4, measure=measure_ms))
    for program in (SERVER, LOADGEN):
        shutil.copy(program, folder)

    def served(load, times, factors):
        """Requests a second and their median in ms, with machines of so many times the speed."""
        rate = load * times * SPEED * 1e6 / service_us
        run = lab(folder, "futures", [*factors, "--speed", str(times), "-p", f"rate={rate:.6g}/s"])
        found, probes = metrics(run), [ns for core in run["fidelity"]["host_speed"] for ns in core["probe_ns"]]
        return found["median"] / 1e6 if load == LOAD else found["throughput"], statistics.median(probes) / 1e3

    one, dilated = ["--mode", "baseline"], ["--tdf", str(tdf)]
    # What is measured, and how: load, times the speed, flags. In turns: the host's own speed changes by several per cent
    # within minutes.
    labs = {"one": (OVERLOAD, 1, one), "ours": (OVERLOAD, 1, dilated), "2": (OVERLOAD, 2, dilated), "0.5": (OVERLOAD, 0.5, dilated),
            "one at load": (LOAD, 1, one), "ours at load": (LOAD, 1, dilated)}
    found, runs = {name: [] for name in labs}, []
    for _ in range(1 if small else FUTURE_ROUNDS):
        for name, lab_of in labs.items():
            value, probe_us = served(*lab_of)
            found[name].append(value)
            runs.append({"lab": name, "value": value, "host_probe_us": probe_us})
            say(f"futures      {name}: {value:.4g} {'ms' if lab_of[0] == LOAD else '/s'}, host probe {probe_us:.2f} us")
    mid = {name: statistics.median(values) for name, values in found.items()}
    spread = {name: f"{min(values):.4g} to {max(values):.4g}" for name, values in found.items()}

    yield (f"most requests at speed {SPEED}: TDF 1 {mid['one']:.0f}/s ({spread['one']}), TDF {tdf} {mid['ours']:.0f}/s ({spread['ours']})",
           mid["ours"] / mid["one"] - 1, 0.03, {"runs": runs})
    yield (f"median at load {LOAD}: TDF 1 {mid['one at load']:.3f} ms ({spread['one at load']}), TDF {tdf} {mid['ours at load']:.3f} ms "
           f"({spread['ours at load']})", mid["ours at load"] / mid["one at load"] - 1, 0.05)
    for times in ("2", "0.5"):
        yield (f"most requests with --speed {times}: {mid[times]:.0f}/s ({spread[times]}), without {mid['ours']:.0f}/s",
               mid[times] / mid["ours"] / float(times) - 1, 0.03)


def conservation(small, folder):
    seconds = 0.3 if small else 4.0
    open(f"{folder}/conservation.yaml", "w").write(CATALOG.format(measure=round(1000 * seconds), seconds=seconds + 0.5))
    for name, text in (("send", SEND), ("sendfile", SENDFILE), ("drain", DRAIN)):
        open(f"{folder}/{name}.py", "w").write(text)
    shutil.copy(SPIN, folder)
    for c in lab(folder, "conservation", ["--tdf", "4"])["fidelity"]["conservation"]:
        if c["node"] != "sink":
            due = c["used_ns"] - c["meter_cost_ns"] - c["cold_ns"] - c["slow_ns"]
            yield f"{c['node']}: {c['used_ns'] / 1e6:.0f} ms used", c["charged_ns"] / max(1, due) - 1, 0.01, {"used_ns": c["used_ns"]}
            yield f"{c['node']}: worst of {len(c['errors'])} windows", max(c["errors"]), 0.01


def receive(small, folder):
    shutil.copy(NETPROBE, folder)
    for work_us, rate in RECEIVE.items():
        turns = spin(["--size-for", f"{work_us}us"])
        open(f"{folder}/receive.yaml", "w").write(SINK.format(turns=turns, rate=rate, measure=300 if small else 1500))
        taken = {"native": [], "ours": []}
        for _ in range(1 if small else SINK_ROUNDS):
            for name, factors in (("native", ["--mode", "native"]), ("ours", ["--tdf", "10"])):
                taken[name].append(metrics(lab(folder, "receive", factors))["taken"])
        native, ours = (statistics.median(taken[name]) for name in ("native", "ours"))
        if not 0 < native < 0.95 * rate:
            raise RuntimeError(f"a sink that takes {native:.0f} of {rate} datagrams/s natively is not overloaded")
        spread = {name: f"{min(values):.0f} to {max(values):.0f}" for name, values in taken.items()}
        yield (f"of {rate}/s with {work_us} us of work each a sink takes {native:.0f} natively ({spread['native']}), {ours:.0f} at TDF 10 "
               f"({spread['ours']})", ours / native - 1, 0.05)


def main():
    parts = {"share": share, "mutex": mutex, "independent": independent, "futures": lambda small: futures(small, o.out),
             "conservation": lambda small: conservation(small, o.out), "receive": lambda small: receive(small, o.out)}
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
