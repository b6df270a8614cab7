#!/usr/bin/env python3
"""Do equal nodes on one core get equal shares? The fairness study of a paper that found Xen unfair for mixed loads:
POV-Ray on 5 and 10 nodes, iperf3 on 5 pairs, scp of a large file on 3, 5 and 10 pairs at once, an MPI benchmark (hpcc
under Open MPI) on 4 nodes; and a plain loop on 3. All nodes of a case do the same work and begin at the same virtual instant, give or take
20 ms by a seed; the other ends of pairs are on the other core. Each case runs in mode diecast, there also with one node
alone, and in mode naive, which is what plain containers with a CPU quota get. Figures: the time that each node's work took, and its CPU time while all worked, as the largest distance of a node
from the mean of all; how much of its share it used; how much longer than one alone the nodes took. Time at equal work is a
node's time less what its own work took above the mean of all, by the kernel's count and at the node's speed. One scp takes
longer than the next by itself (standard deviation 3 %, one node alone): so scp runs three times in mode diecast, and nodes
are compared by their means. The largest distance of a single run is printed too.
Prints a table and writes JSON; exit 1 when a distance in mode diecast is above the bar, 3 when nothing ran. Needs root.

Usage: benches/fairness.py [--small] [--case CASE]... [--mode MODE]... [--seed N] [--rounds N] [--out DIR]     (make bench-fairness; 45 minutes)

A case whose programs are missing is skipped: apt-get install povray iperf3 openssh-server openmpi-bin hpcc
"""
import argparse, collections, json, os, shutil, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
os.environ["PATH"] += os.pathsep + "/usr/sbin:/sbin"
BEGAN = time.monotonic()
BAR = 0.02
# The file that scp copies, again and again until the size of the case. A virtual machine's host backs memory when it is
# first used, and first reads of larger files cost one sshd 20 % more CPU time than another, natively too: it is in memory.
SCP_MB = 40
# glibc's allocator gives the top of the heap back and takes it anew while ssh and scp pass on what they read, or does not: by
# chance, 1,800 to 48,000 page faults in one scp, natively too, and up to a fifth of its CPU time. In every mode it keeps what
# it has.
KEEP_HEAP = "export MALLOC_TRIM_THRESHOLD_=33554432 MALLOC_MMAP_THRESHOLD_=33554432\n"
# Real seconds that a run may take.
LIMIT_S = 240
# Of what a case takes until all runs evenly, in the small form.
RAMP = 0.2
# And of the time for which all work, at most: in mode naive that can be short.
RAMP_MAX = 0.3

Sample = collections.namedtuple("Sample", "v_ns given_ns counted_ns")
# Of a case: nodes, their speed, the size of the work; virtual seconds from the begin until all of it runs evenly, and that
# are measured then.
Case = collections.namedtuple("Case", "kind nodes speed tdf size warm_up_s measure_s")
CASES = {"loop-3": Case("loop", 3, 0.4, 2, 12, 0.6, 1.4), "povray-5": Case("povray", 5, 1.0, 10, 1400, 0.5, 2.3), "povray-10": Case("povray", 10, 1.0, 20, 1300, 0.5, 2.1),
         "iperf3-5": Case("iperf3", 5, 0.4, 16, 600, 0.4, 2.0), "scp-3": Case("scp", 3, 0.4, 12, 360, 1.5, 5.5),
         "scp-5": Case("scp", 5, 0.4, 14, 280, 1.5, 5.0), "scp-10": Case("scp", 10, 0.4, 28, 200, 1.5, 3.5),
         "mpi-4": Case("mpi", 4, 0.4, 4, 200, 1.5, 12.0)}
SMALL = ["loop-3"]
# Runs of mode diecast, by kind; elsewhere one.
ROUNDS = {"scp": 3}
NEEDS = {"loop": ["python3"], "povray": ["povray"], "iperf3": ["iperf3"], "scp": ["sshd", "scp", "ssh-keygen"],
         "mpi": ["mpirun", "hpcc", "sshd", "ssh-keygen"]}
# Of a mode: its flags and what is slower than in original time by hand, both by the TDF.
MODES = {"diecast": lambda tdf: (["--mode", "diecast", "--tdf", str(tdf)], 1),
         "alone": lambda tdf: (["--mode", "diecast", "--tdf", str(tdf)], 1),
         "naive": lambda tdf: (["--mode", "naive", "--scale", str(tdf)], tdf)}

CATALOG = """diecast: 1
name: fairness
machine_types:
  node: {{cores: 1, speed: {speed}, memory: 512MiB}}
  # What generates load keeps its CPU in mode naive, and this one does nothing but wait.
  bystander: {{cores: 1, speed: 0.05, memory: 512MiB}}
nodes:
  judge: {{type: bystander}}
{nodes}topology:
  switches: [switch]
  links:
    - {{from: [{all}, judge], to: switch, bandwidth: 10Gbit/s, delay: 100us}}
programs:
  - on: [{peers}]
    run: [bash, /srv/peer.sh]
    files: {{/srv/peer.sh: peer.sh, /srv/key: key, /srv/key.pub: key.pub, /srv/sshd_config: sshd_config}}
  - on: [{names}]
    run: [bash, /srv/work.sh]
    env: {{SIZE: "{size}", NODES: "{names}"}}
    files: {{/srv/work.sh: work.sh, /srv/work.py: work.py, /srv/job.sh: job.sh, /srv/scene.pov: scene.pov, /srv/hpccinf.txt: hpccinf.txt, /srv/key: key, /srv/key.pub: key.pub, /srv/sshd_config: sshd_config}}
    ready: {{log: prepared, within: 120s}}
workload:
  parameters: {{seed: {seed}}}
  warm_up: {warm_up}ms
  measure: {measure}ms
  run:
    on: judge
    command: [python3, /srv/judge.py, "${{seed}}", {workers}]
    files: {{/srv/judge.py: judge.py}}
metrics:
  begun: {{from: [{workers}], regex: 'begun=([0-9]+)', unit: ns, combine: mean}}
  ended: {{from: [{workers}], regex: 'ended=([0-9]+)', unit: ns, combine: mean}}
"""
# What a node does: prepare, work when the judge says, tell how long it took. POV-Ray's work is its trace, by its own clock:
# before and after it waits for its own threads in steps of a tenth of a second, natively too (0.6 of 1.7 s).
WORK = ". /srv/job.sh\nprepare\nexport -f job reach\nexport me peer\nexec python3 /srv/work.py\n"
WORK_PY = """import os, socket, subprocess, time
gate = socket.create_server(("", 8))
print("prepared", flush=True)
judge = gate.accept()[0]
time.sleep(max(0, float(judge.recv(64)) - time.time()))
begun_ns = time.monotonic_ns()
print(f"begun={begun_ns}", flush=True)
status = subprocess.run(["bash", "-c", "job"]).returncode
if status == 0:
    ended_ns = time.monotonic_ns()
    if os.path.exists("/tmp/took"):
        ended_ns = begun_ns + int(1e9 * float(open("/tmp/took").read()))
    print(f"ended={ended_ns}", flush=True)
judge.send(b"0" if status == 0 else b"1")
time.sleep(1e6)
"""
JUDGE = """import random, socket, sys, time
random.seed(int(sys.argv[1]))
gates = [socket.create_connection((name, 8)) for name in sys.argv[2:]]
begin = time.time() + 0.1
for gate in gates:
    gate.send(str(begin + random.uniform(0, 0.02)).encode())
sys.exit(any(gate.recv(1) != b"0" for gate in gates))
"""
REACH = 'me=$(hostname); peer=peer-${me#node-}\nreach() { until (exec 3<>/dev/tcp/$1/$2) 2>/dev/null; do sleep 0.2; done; }\n'
SSHD = "mkdir -p /run/sshd /root/.ssh; cp /srv/key.pub /srv/authorized; chmod 600 /srv/key /srv/authorized\n"
SSHD_CONFIG = """Port 22
HostKey /srv/key
AuthorizedKeysFile /srv/authorized
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
UseDNS no
Subsystem sftp internal-sftp
PidFile none
"""
SSH = "-o LogLevel=ERROR -i /srv/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
SERVE = SSHD + "exec $(command -v sshd || echo /usr/sbin/sshd) -D -e -f /srv/sshd_config\n"
IDLE = "exec sleep 1000000\n"
# Kind: what its peers run, and the two functions of its nodes.
JOBS = {
    "loop": (IDLE, "prepare() { true; }\n"
                   "job() { python3 -c 'import sys; [sum(range(1000)) for _ in range(int(sys.argv[1]) * 10000)]' $SIZE; }\n"),
    "povray": (IDLE, "prepare() { cd /tmp; }\n"
                     "job() { povray +I/srv/scene.pov +O/tmp/o.png -D +WT1 +W$SIZE +H$SIZE >/tmp/log 2>&1 || return 1\n"
                     "  sed -n 's/.*Trace Time:.*(\\(.*\\) seconds).*/\\1/p' /tmp/log >/tmp/took; }\n"),
    "iperf3": ("exec iperf3 -s\n", "prepare() { reach $peer 5201; }\njob() { iperf3 -c $peer -n ${SIZE}M; }\n"),
    "scp": (KEEP_HEAP + SERVE,
            KEEP_HEAP + "prepare() { " + SSHD.strip() + "; reach $peer 22; ssh " + SSH + " root@$peer \"truncate -s " + f"{SCP_MB}" + "M /srv/large; cat /srv/large >/dev/null\"; }\n"
            "job() { for i in $(seq $((SIZE / " + f"{SCP_MB}" + "))); do scp " + SSH + " root@$peer:/srv/large /dev/null || return 1; done; }\n"),
    # Every node waits for the first, which starts the ranks; what is judged is each node's share of the CPU time.
    "mpi": (IDLE, "prepare() { " + SSHD.strip() + "; $(command -v sshd || echo /usr/sbin/sshd) -f /srv/sshd_config; cd /srv; "
                  "for n in $(echo $NODES | tr -d ,); do reach $n 22; done; }\n"
                  "job() { [ $me = node-1 ] || { reach node-1 10; return; }\n"
                  "  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --mca plm_rsh_args '" + SSH + "' "
                  "--mca btl tcp,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 "
                  "--host $(echo $NODES | tr -d ' ') --wdir /srv hpcc || return 1\n"
                  "  python3 -c 'import socket\ns = socket.create_server((\"\", 10))\nwhile True: s.accept()[0].close()' & }\n"),
}
SCENE = """#version 3.7;
global_settings { assumed_gamma 1.0 max_trace_level 6 }
camera { location <0, 3, -9> look_at <0, 1, 0> }
light_source { <10, 20, -10> rgb 1 }
light_source { <-12, 9, -6> rgb 0.4 }
plane { y, 0 pigment { checker rgb 0.9 rgb 0.2 } finish { reflection 0.2 } }
#for (i, -4, 4)
  #for (j, 0, 5)
    sphere { <i, 0.5, j>, 0.45 pigment { rgb <0.5 + i/10, 0.4, j/6> } finish { phong 1 reflection 0.3 } }
  #end
#end
"""
# One small HPL problem on a grid of 2 by 2, the smallest that hpcc takes as a whole.
HPCC = "HPLinpack benchmark input file\nfairness\nHPL.out\n8\n1\n{n}\n1\n64\n0\n1\n2\n2\n16.0\n1\n2\n1\n4\n1\n2\n1\n1\n1\n0\n1\n0\n0\n0\n2\n64\n" \
       "0\n0\n1\n8\n" + "0\n" * 7


def say(text):
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def catalog(case, mode, o):
    c = CASES[case]
    slower = MODES[mode](c.tdf)[1]
    size, measure_s = (c.size // 3, c.measure_s / 4) if o.small and c.kind != "mpi" else (c.size, c.measure_s)
    # One MPI job needs all of its nodes.
    there = 1 if mode == "alone" and c.kind != "mpi" else c.nodes
    names = [f"node-{i}" for i in range(1, there + 1)]
    peers = [n.replace("node", "peer") for n in names]
    # The judge is a peer, and nodes and peers take turns, so that the plan puts all nodes on one core and all peers on the other.
    pairs = "".join(f"  {n}: {{type: node}}\n  {p}: {{type: node}}\n" for n, p in zip(names, peers))
    return CATALOG.format(nodes=pairs, all=", ".join(names + peers), names=", ".join(names), peers=", ".join(peers),
                          workers=", ".join(names), speed=c.speed, size=size, seed=o.seed,
                          warm_up=round(1000 * c.warm_up_s * slower), measure=round(1000 * measure_s * slower))


def prepare(case, o, folder):
    """The files that all nodes of a case get."""
    c = CASES[case]
    peer, job = JOBS[c.kind]
    files = {"peer.sh": peer, "job.sh": REACH + job, "work.sh": WORK, "work.py": WORK_PY, "judge.py": JUDGE,
             "scene.pov": SCENE, "sshd_config": SSHD_CONFIG, "hpccinf.txt": HPCC.format(n=c.size)}
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        open(os.path.join(folder, name), "w").write(text)
    for name in ("key", "key.pub"):
        open(os.path.join(folder, name), "w").close()
    if "ssh-keygen" in NEEDS[c.kind]:
        key = os.path.join(folder, "key")
        [os.unlink(key + end) for end in ("", ".pub")]
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)


def run(case, mode, o):
    """One run; per node its seconds in original time and its CPU time while all worked."""
    folder = os.path.join(o.out, case)
    path, out = os.path.join(folder, f"{mode}.yaml"), os.path.join(folder, mode)
    shutil.rmtree(out, ignore_errors=True)
    open(path, "w").write(catalog(case, mode, o))
    flags, slower = MODES[mode](CASES[case].tdf)
    began = time.monotonic()
    done = subprocess.run(["timeout", "-s", "INT", "-k", "20", str(LIMIT_S), DIECAST, "run", path, *flags, "--out", out],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{case} {mode} ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    s = json.load(open(f"{out}/run.json"))
    per_node = {m["name"]: m["data"]["scalar"]["per_node"] for m in s["metrics"]}
    begun, ended = per_node["begun"], per_node["ended"]
    use = s["fidelity"]["host_use"] or {"stolen": {}}
    reasons = [f"{r['what']} {r['measured']}" for r in s["verdict"]["reasons"]]
    say(f"{case} {mode}: {time.monotonic() - began:.0f} s real; {'; '.join(reasons) or 'trustworthy'}")
    c = CASES[case]
    seconds = {n: (ended[n] - begun[n]) / 1e9 / slower for n in begun}
    samples = cpu_samples(out, mode, begun)
    part = RAMP if o.small else 1
    first, last = max(begun.values()), min(ended.values())
    rates = cpu_rates(samples, first + min(part * 1e9 * slower * c.warm_up_s, RAMP_MAX * (last - first)), last)
    # Of each node, in mode naive too, the capacity that it has for as long as the work should take.
    share = {n: rate / c.speed * (slower if mode == "naive" else 1) for n, rate in rates.items()}
    own = {n: (counted_at(s, ended[n]) - counted_at(s, begun[n])) / 1e9 / c.speed for n, s in samples.items()}
    return {"seconds": seconds, "share": share,
            "seconds_equal_work": {n: t - own[n] + statistics.mean(own.values()) for n, t in seconds.items()},
            "stolen": max(use["stolen"].values(), default=None), "distrust": reasons,
            "host_probe_us": {c["core"]: statistics.median(c["probe_ns"]) / 1e3 for c in s["fidelity"]["host_speed"] if c["probe_ns"]}}


def cpu_samples(out, mode, nodes):
    """Of each node instants of the lab's clock with the CPU time that it was given and that the kernel counted until then,
    both with its packets', the latter without the meter's own cost."""
    found, meter_ns = {n: [] for n in nodes}, dict.fromkeys(nodes, 0)
    for record in map(json.loads, open(f"{out}/journal.jsonl")):
        node = record.get("node")
        if node in nodes and record["record"] == "conservation":
            meter_ns[node] += record["meter_cost_ns"]
        elif node in nodes and record["record"] == "sample":
            given_ns = record["cpu_used_ns" if mode == "naive" else "cpu_charged_ns"]
            found[node].append(Sample(record["v_ns"], given_ns + record["cpu_received_ns"],
                                      record["cpu_used_ns"] + record["cpu_received_ns"] - meter_ns[node]))
    return found


def cpu_rates(samples, from_v_ns, to_v_ns):
    """CPU time given to each node per second of the lab's clock between two instants, by the samples that lie between them."""
    found = {n: [s for s in all_ if from_v_ns <= s.v_ns <= to_v_ns] for n, all_ in samples.items()}
    short = [n for n, s in found.items() if len(s) < 2]
    if short:
        raise RuntimeError(f"{', '.join(short)}: worked too short for two samples of CPU time")
    return {n: (s[-1].given_ns - s[0].given_ns) / (s[-1].v_ns - s[0].v_ns) for n, s in found.items()}


def counted_at(samples, v_ns):
    """What the kernel had counted, ns: between two samples in proportion; before the first and after the last theirs."""
    for a, b in zip(samples, samples[1:]):
        if a.v_ns <= v_ns <= b.v_ns:
            return a.counted_ns + (b.counted_ns - a.counted_ns) * (v_ns - a.v_ns) / (b.v_ns - a.v_ns)
    return samples[0 if v_ns < samples[0].v_ns else -1].counted_ns


def distance(values):
    """The largest distance of one from the mean of all, as a share of the mean."""
    values = list(values)
    mean = statistics.mean(values)
    return max(abs(v - mean) for v in values) / mean if mean else 1.0


def mean_of(rounds):
    """Runs of one mode as one: the mean of each node's figures, and what all said of themselves."""
    by_node = {of: {n: statistics.mean(r[of][n] for r in rounds) for n in rounds[0][of]} for of in ("seconds", "seconds_equal_work", "share")}
    stolen = [r["stolen"] for r in rounds if r["stolen"] is not None]
    probes = {core: statistics.median(r["host_probe_us"][core] for r in rounds if core in r["host_probe_us"])
              for core in rounds[0]["host_probe_us"]}
    single = [{"seconds_distance": distance(r["seconds"].values()), "cpu_distance": distance(r["share"].values()), **r} for r in rounds]
    return {**by_node, "stolen": max(stolen, default=None), "distrust": [d for r in rounds for d in r["distrust"]],
            "host_probe_us": probes, "rounds": single}


def figures(case, found):
    c = CASES[case]
    row = {"case": case, "modes": {}}
    alone = found.get("alone", {"seconds": {}})["seconds"].get("node-1")
    for mode, f in found.items():
        # The job of MPI is one, which the first node began.
        seconds = [f["seconds"]["node-1"]] if c.kind == "mpi" else list(f["seconds"].values())
        row["modes"][mode] = {
            "seconds_mean": statistics.mean(seconds), "seconds_distance": distance(seconds),
            "equal_work_distance": None if c.kind == "mpi" else distance(f["seconds_equal_work"].values()),
            "cpu_distance": distance(f["share"].values()), "of_share": statistics.mean(f["share"].values()),
            "rounds_distance": max(max(r["seconds_distance"], r["cpu_distance"]) for r in f["rounds"]),
            "above_alone": statistics.mean(seconds) / alone - 1 if alone and mode != "alone" else None, **f}
    ours = row["modes"]["diecast"]
    row["met"] = max(ours["seconds_distance"], ours["cpu_distance"]) <= BAR
    return row


def percent(value, digits=2):
    return "" if value is None else f"{100 * value:.{digits}f} %"


def table(rows):
    yield "| case | mode | time, original s | above one alone | time: farthest node | at equal work | CPU: farthest node | runs | of one | of its share | stolen | probes, µs | bar 2 % |"
    yield "|" + "---|" * 13
    for row in rows:
        for mode, f in row["modes"].items():
            # One node has no distance from itself.
            several = f if len(f["share"]) > 1 else dict.fromkeys(f)
            met = ("met" if row["met"] else "missed") if mode == "diecast" else ""
            probes = "/".join(f"{us:.0f}" for us in f["host_probe_us"].values())
            yield (f"| {row['case']} | {mode} | {f['seconds_mean']:.2f} | {percent(f['above_alone'], 1)} "
                   f"| {percent(several['seconds_distance'])} | {percent(several['equal_work_distance'])} | {percent(several['cpu_distance'])} "
                   f"| {len(f['rounds'])} | {percent(several['rounds_distance'])} "
                   f"| {percent(f['of_share'], 1)} | {percent(f['stolen'], 1)} | {probes} | {met} |")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--small", action="store_true", help="the loop, a third of it and in mode diecast only, to see that it works")
    a.add_argument("--mode", action="append", choices=MODES, help="only this one, and mode diecast; may be repeated")
    a.add_argument("--seed", type=int, default=11, help="of the instants at which the nodes begin [11]")
    a.add_argument("--case", action="append", choices=CASES, help="only this one; may be repeated")
    a.add_argument("--rounds", type=int, help="runs of each case in mode diecast [3 of scp, otherwise 1]")
    a.add_argument("--out", default=f"out/bench-fairness-{int(time.time())}")
    o = a.parse_args()
    rows, broken, left_out = [], [], []
    for case in o.case or (SMALL if o.small else CASES):
        kind = CASES[case].kind
        missing = [p for p in NEEDS[kind] if not shutil.which(p)]
        if missing:
            say(f"{case} is skipped: {', '.join(missing)} not installed")
            continue
        try:
            prepare(case, o, os.path.join(o.out, case))
            modes = [m for m in MODES if not (kind == "mpi" and m == "alone")
                     and (m == "diecast" or m in (o.mode or ([] if o.small else MODES)))]
            found = {}
            for mode in modes:
                try:
                    rounds = (o.rounds or ROUNDS.get(kind, 1)) if mode == "diecast" and not o.small else 1
                    found[mode] = mean_of([run(case, mode, o) for _ in range(rounds)])
                except RuntimeError as error:
                    # What is compared with may not end at all: ranks of MPI that spin through their quotas.
                    if mode == "diecast":
                        raise
                    say(str(error))
                    left_out.append({"case": case, "mode": mode, "error": str(error)})
            rows.append(figures(case, found))
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            say(str(error))
            broken.append({"case": case, "error": str(error)})
        except KeyboardInterrupt:
            # What has been measured is not lost.
            say(f"{case}: interrupted")
            broken.append({"case": case, "error": "interrupted"})
            break
    if not rows and not broken:
        print("nothing ran", file=sys.stderr)
        return 3
    machine = open("/proc/cpuinfo").read().split("model name\t: ")[1].splitlines()[0]
    print("\n".join(["", *table(rows), "", f"{machine}, Linux {os.uname().release}; seed {o.seed}"]))
    with open(os.path.join(o.out, "bench-fairness.json"), "w") as out:
        json.dump({"machine": machine, "kernel": os.uname().release, "seed": o.seed, "small": o.small, "bar": BAR,
                   "figures": rows, "broken": broken, "left_out": left_out}, out, indent=1)
    for other in left_out:
        print(f"left out: {other['case']} in mode {other['mode']}, which failed")
    print(f"{sum(r['met'] for r in rows)} of {len(rows)} cases within the bar, {len(broken)} did not run; "
          f"JSON in {o.out}/bench-fairness.json")
    return 3 if broken else 0 if all(r["met"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
