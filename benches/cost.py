#!/usr/bin/env python3
"""What a lab costs its host: CPU seconds that envelope, meter, emulator and the supervisor's other threads add to those
of the programs, per node and per request. Pairs of a client and a server that works 500 us of CPU time a request, in
seeded Poisson arrivals: one pair natively and at TDF 2, eight at TDF 10, busy and idle. The BPF programs' own time, and
what of it a context switch costs, come from the kernel's statistics of them (kernel.bpf_stats_enabled), which are on
while a lab is measured. Prints a table, writes JSON and, with --write, the table in docs/performance.md; exit 1 when the
meter costs more than 5 % of what it meters, 3 when something does not run. Needs root and two cores.

Usage: benches/cost.py [--small] [--case CASE]... [--write] [--out DIR]     (make bench-cost; 3 minutes)

The envelope is what is left of the nodes' CPU time per request when the native run's and the meter's are taken off: it
has the cold caches of a node that sleeps longer in it too. Threads that keep cores awake are left out: they run when
nothing else wants the core.
"""
import argparse, collections, json, os, shutil, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
PAGE = os.path.join(ROOT, "docs", "performance.md")
BEGIN, END = "<!-- made by benches/cost.py -->\n", "<!-- end of cost -->\n"
STATS = "/proc/sys/kernel/bpf_stats_enabled"
BEGAN = time.monotonic()
SEED, METER_BAR = 5, 0.05
EMULATOR, AWAKE = "diecast-net", "awake"
# Types of BPF programs as the kernel numbers them: on a NIC's way out, at perf events (cores' clocks), and at tracepoints of
# the scheduler.
BPF_PACKETS, BPF_TICKS, BPF_SWITCHES = 3, 7, 26

# Flags, pairs, requests a virtual second of each, real seconds that are measured.
Case = collections.namedtuple("Case", "name flags pairs tdf rate real_s")
CASES = [Case("native", ["--mode", "native"], 1, 1, 400, 15), Case("tdf-2", ["--mode", "diecast", "--tdf", "2"], 1, 2, 400, 15),
         Case("tdf-10", ["--mode", "diecast", "--tdf", "10"], 8, 10, 400, 30), Case("idle", ["--mode", "diecast", "--tdf", "10"], 8, 10, 1, 20)]

CATALOG = """diecast: 1
name: cost
machine_types:
  whole: {{cores: 1, speed: 1.0, memory: 128MiB}}
nodes:
{nodes}topology:
  switches: [switch]
  links:
    - {{from: [{all}], to: switch, bandwidth: 1Gbit/s, delay: 100us}}
programs:
  - on: [{servers}]
    run: [cpuserver, --listen, "0.0.0.0:80", --service, 500us]
    files: {{/usr/local/bin/cpuserver: diecast-cpuserver}}
    ready: {{tcp: 80, within: 60s}}
workload:
  parameters: {{rate: {rate}/s, seed: {seed}}}
  warm_up: 500ms
  measure: {measure}ms
  run:
    on: [{clients}]
    command:
      - sh
      - -c
      - name=${{node}}; exec loadgen "http://server-$${{name#client-}}/" --rate=${{rate}} --seed=${{seed}} --stream=${{node}} --warm-up=${{warm_up}} --measure=${{measure}}
    files: {{/usr/local/bin/loadgen: diecast-loadgen}}
metrics:
  latency: {{from: [{clients}], samples: latency_ns.bin, unit: ns, show: [p50]}}
"""


def say(text):
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def catalog(case, small):
    clients, servers = ([f"{role}-{i}" for i in range(1, case.pairs + 1)] for role in ("client", "server"))
    nodes = "".join(f"  {c}: {{type: whole}}\n  {s}: {{type: whole}}\n" for c, s in zip(clients, servers))
    return CATALOG.format(nodes=nodes, all=", ".join(clients + servers), clients=", ".join(clients), servers=", ".join(servers),
                          rate=case.rate, seed=SEED, measure=round(1000 * (1.5 if small else case.real_s) / case.tdf))


def threads_ns(pid):
    """CPU time of the threads of `diecast` by their names."""
    found = collections.Counter()
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            name = open(f"/proc/{pid}/task/{tid}/comm").read().strip()
            found[name] += int(open(f"/proc/{pid}/task/{tid}/schedstat").read().split()[0])
        except OSError:
            pass
    return found


def programs(pid):
    """Time and runs of the BPF programs that `diecast` holds, by their type."""
    each = {}
    for fd in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            lines = dict(line.split(":", 1) for line in open(f"/proc/{pid}/fdinfo/{fd}").read().splitlines() if ":" in line)
        except OSError:
            continue
        if "run_time_ns" in lines:
            each[int(lines["prog_id"])] = (int(lines["prog_type"]), int(lines["run_time_ns"]), int(lines["run_cnt"]))
    sums = collections.Counter()
    for kind, ns, runs in each.values():
        sums[kind, "ns"] += ns
        sums[kind, "runs"] += runs
    return sums


def look(pid):
    switches = next(int(line.split()[1]) for line in open("/proc/stat") if line.startswith("ctxt"))
    return {"r_s": time.monotonic(), "threads": threads_ns(pid), "bpf": programs(pid), "switches": switches}


def until(lab, out, phase):
    while lab.poll() is None:
        if os.path.exists(f"{out}/journal.jsonl") and f'"phase":"{phase}"' in open(f"{out}/journal.jsonl").read():
            return look(lab.pid)
        time.sleep(0.05)
    raise RuntimeError(f"the lab ended with {lab.returncode} before it could {phase}: {lab.stderr.read().strip()[-1500:]}")


def run(case, o, folder):
    out, path = os.path.join(o.out, case.name), os.path.join(folder, f"{case.name}.yaml")
    shutil.rmtree(out, ignore_errors=True)
    open(path, "w").write(catalog(case, o.small))
    with subprocess.Popen([DIECAST, "run", path, *case.flags, "--out", out], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as lab:
        try:
            before, after = until(lab, out, "measure"), until(lab, out, "drain")
            said = lab.communicate(timeout=120)[1]
        finally:
            lab.kill()
    if lab.returncode not in (0, 4):
        raise RuntimeError(f"{case.name} ended with {lab.returncode}: {said.strip()[-1500:]}")
    return figures(case, json.load(open(f"{out}/run.json")), before, after)


def figures(case, s, before, after):
    grown = lambda what: {k: v - before[what][k] for k, v in after[what].items()}
    threads, bpf, r_s = grown("threads"), grown("bpf"), after["r_s"] - before["r_s"]
    conservation = s["fidelity"]["conservation"]
    meter, metered = (sum(c[what] for c in conservation) for what in ("meter_cost_ns", "used_ns"))
    # Both of the whole run.
    meter_part = meter / metered if metered else 0.0
    used, received = (sum(n[what] for n in s["nodes"]) for what in ("cpu_used_ns", "cpu_received_ns"))
    use = s["fidelity"]["host_use"] or {"stolen": {}}
    switches = after["switches"] - before["switches"]
    emulator = threads.pop(EMULATOR, 0)
    threads.pop(AWAKE, None)
    return {"case": case.name, "tdf": case.tdf, "nodes": 2 * case.pairs, "real_s": r_s,
            "requests": sum(m["data"]["samples"]["count"] for m in s["metrics"] if m["name"] == "latency"),
            "ns": {"nodes": used, "meter": round(used * meter_part), "emulator": emulator - received, "received": received,
                   "supervisor": sum(threads.values()), "bpf": sum(bpf.get((kind, "ns"), 0) for kind in (BPF_PACKETS, BPF_TICKS, BPF_SWITCHES))},
            # What the meter costs of what it meters: the nodes' CPU time without its own.
            "meter_of_metered": meter_part / (1 - meter_part) if case.tdf > 1 and case.name != "idle" else None, "switches": switches,
            "bpf_ns_per_switch": bpf.get((BPF_SWITCHES, "ns"), 0) / switches if switches else None,
            "bpf_ticks": bpf.get((BPF_TICKS, "runs"), 0), "bpf_ns_per_tick": bpf.get((BPF_TICKS, "ns"), 0) / max(1, bpf.get((BPF_TICKS, "runs"), 0)),
            "bpf_ns_per_packet": bpf.get((BPF_PACKETS, "ns"), 0) / max(1, bpf.get((BPF_PACKETS, "runs"), 0)),
            "threads": dict(threads), "stolen": max(use["stolen"].values(), default=None),
            "host_probe_us": {c["core"]: statistics.median(c["probe_ns"]) / 1e3 for c in s["fidelity"]["host_speed"] if c["probe_ns"]},
            "distrust": [f"{r['what']} {r['measured']}" for r in s["verdict"]["reasons"]]}


def with_envelope(found):
    """Adds what is left of the nodes' CPU time when the native run's, by requests, and the meter's are taken off."""
    native = next((f for f in found if f["case"] == "native"), None)
    for f in found:
        alike = native and f is not native and f["case"] != "idle" and native["requests"] and f["requests"]
        own = native["ns"]["nodes"] * f["requests"] / native["requests"] if alike else None
        f["ns"]["envelope"] = None if own is None else round(f["ns"]["nodes"] - f["ns"]["meter"] - own)


COLUMNS = [("nodes", "the nodes' CPU time"), ("envelope", "of it envelope"), ("meter", "of it meter"), ("bpf", "of it and others BPF"),
           ("received", "receive work"), ("emulator", "emulator, the rest"), ("supervisor", "other threads")]


def table(found):
    yield "| lab | nodes | CPU time | " + " | ".join(words for _, words in COLUMNS) + " |"
    yield "|" + "---|" * (3 + len(COLUMNS))
    for f in found:
        per = [("ms a node and real s", 1e6 * f["nodes"] * f["real_s"], 2)]
        if f["case"] != "idle":
            per.append(("µs a request", 1e3 * f["requests"], 1))
        for words, divisor, digits in per:
            cells = ["" if f["ns"][key] is None else f"{f['ns'][key] / divisor:,.{digits}f}" for key, _ in COLUMNS]
            yield f"| {f['case']} | {f['nodes']} | {words} | " + " | ".join(cells) + " |"
    yield ""
    yield "| lab | meter, of what it meters (at most 5 %) | BPF a context switch | switches/s | BPF a packet | stolen | probes, µs | requests |"
    yield "|" + "---|" * 8
    for f in found:
        meter = "" if f["meter_of_metered"] is None else f"{100 * f['meter_of_metered']:.1f} %"
        probes = "/".join(f"{us:.0f}" for us in f["host_probe_us"].values())
        yield (f"| {f['case']} | {meter} | {f['bpf_ns_per_switch'] or 0:.0f} ns | {f['switches'] / f['real_s']:,.0f} | {f['bpf_ns_per_packet']:.0f} ns "
               f"| {100 * (f['stolen'] or 0):.1f} % | {probes} | {f['requests']} |")


def write_page(text):
    page = open(PAGE).read()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    open(PAGE, "w").write(before + BEGIN + text + END + after)


def main():
    names = [c.name for c in CASES]
    a = argparse.ArgumentParser()
    a.add_argument("--small", action="store_true", help="some seconds of the second, to see that it works")
    a.add_argument("--case", action="append", choices=names, help="only this one; may be repeated")
    a.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    a.add_argument("--out", default=f"out/bench-cost-{int(time.time())}")
    o = a.parse_args()
    folder = os.path.join(o.out, "catalog")
    os.makedirs(folder, exist_ok=True)
    for program in ("diecast-cpuserver", "diecast-loadgen"):
        shutil.copy(os.path.join(RELEASE, program), folder)
    found = []
    was = open(STATS).read() if os.path.exists(STATS) else None
    try:
        if was is not None:
            open(STATS, "w").write("1")
        for case in CASES:
            if case.name in (o.case or (["tdf-2"] if o.small else names)):
                found.append(run(case, o, folder))
                say(f"{case.name}: {'; '.join(found[-1]['distrust']) or 'trustworthy'}")
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        say(f"did not run: {error}")
        return 3
    finally:
        if was is not None:
            open(STATS, "w").write(was)
    with_envelope(found)
    machine = open("/proc/cpuinfo").read().split("model name\t: ")[1].splitlines()[0]
    on = f"{machine}, {os.cpu_count()} CPUs, Linux {os.uname().release}; seed {SEED}."
    text = "\n".join(["", *table(found), "", on, ""]) + "\n"
    print(text)
    json.dump({"machine": on, "small": o.small, "bar": METER_BAR, "figures": found}, open(f"{o.out}/bench-cost.json", "w"), indent=1)
    if o.write:
        write_page(text)
    parts = [f["meter_of_metered"] for f in found if f["meter_of_metered"] is not None]
    met = sum(p <= METER_BAR for p in parts)
    print(f"meter within {100 * METER_BAR:.0f} % of what it meters in {met} of {len(parts)} labs; JSON in {o.out}/bench-cost.json")
    return 0 if met == len(parts) else 1


if __name__ == "__main__":
    sys.exit(main())
