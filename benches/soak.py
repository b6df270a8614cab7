#!/usr/bin/env python3
"""Labs for hours: servers under load (Redis and two of our own; nginx, memcached and PostgreSQL where they are installed)
while the world is paused and re-timed at random, servers are killed and come back, and every eighth lab is killed itself.
No hang, no deadline early, no wrong answer, nothing that grows or stays.
Prints a line for each lab and percentiles of lateness, writes JSON; exit 1 when something of this is not so, 3 when
nothing could run.

Usage: benches/soak.py [--minutes M] [--measure S] [--seed N] [--out DIR]     (make soak; 2 hours)
"""
import argparse, collections, glob, http.client, json, os, random, shutil, signal, socket, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
POSTGRES = max(glob.glob("/usr/lib/postgresql/*/bin"), default="/nowhere")
SERVERS = ["redis-server", "cpuserver", "tcp.py", "nginx", "memcached", "postgres"]
RATES = ["1", "3/2", "2", "3", "4", "6"]
# A lab can be paused and re-timed 31 times.
CHANGES_MAX = 28
# How long a lab may take at all, real.
LAB_LIMIT_S = 400
# Waits that a lab has at least for each virtual second of load.
WAITS_MIN = 2.5
# What may differ between two looks at a lab that does the same all the while.
GROWTH_MAX = {"descriptors": 16, "perf events": 8, "memory, MiB": 16}
# Virtual ms by which a wait may be late: an interval timer that does not go on is later.
LATE_MAX_MS = 1000
# What was here before, and what the labs' processes have in their environment.
SPACES = {os.readlink(link) for link in glob.glob("/proc/self/ns/*")}
MOUNTS = len(open("/proc/self/mountinfo").readlines())
MARK = f"DIECAST_SOAK={os.getpid()}"
AGAIN = "while :; do %s; sleep 0.1; done"
CATALOG = """diecast: 1
name: soak
machine_types:
  node: {cores: 1, speed: 0.3, memory: 256MiB}
nodes:
  client: {type: node}
  web: {type: node}
  kv: {type: node}
topology:
  switches: [s]
  links:
    - {from: [client, web, kv], to: s, bandwidth: 100Mbit/s, delay: 5ms}
programs:
  - {on: kv, run: [sh, -c, "%s"], ready: {tcp: 6379, within: 30s}}
  - {on: web, run: [sh, -c, "%s"], files: {/usr/local/bin/cpuserver: diecast-cpuserver}, ready: {tcp: 80, within: 30s}}
  - {on: web, run: [sh, -c, "%s"], files: {/tcp.py: tcp.py}}
%s  - {on: client, run: [/tcp.py, web], files: {/tcp.py: tcp.py}}
  - {on: client, run: [/waits.py], files: {/waits.py: waits.py}}
workload:
  parameters: {seconds: %d}
  warm_up: 1s
  measure: %ds
  run:
    on: client
    command: [python3, /soak.py, "--load=${seconds}"]
    files: {/soak.py: soak.py}
metrics:
  answers: {from: client, json: $.rate, unit: 1/s}
"""
# What is run where, the port it listens to and the files it needs, by the program that must be installed.
MORE = {
    "nginx": ("web", "pkill -x nginx; nginx -c /nginx.conf", 8080, "files: {/nginx.conf: nginx.conf}, "),
    "memcached": ("kv", "memcached -u nobody -l 0.0.0.0", 11211, ""),
    f"{POSTGRES}/postgres": ("db", "/postgres.sh", 5432, "files: {/postgres.sh: postgres.sh}, "),
}
FILES = {
    "nginx.conf": """daemon off; worker_processes 2; error_log stderr; events {}
http { access_log off; server { listen 8080; location / { return 200 "served by nginx"; } } }
""",
    "postgres.sh": f"""#!/bin/sh
as='setpriv --reuid=postgres --regid=postgres --clear-groups'
[ -d /pg ] || {{
  mkdir /pg && chown postgres /pg && $as {POSTGRES}/initdb -D /pg/data -A trust > /pg/init
  echo 'host all all all trust' >> /pg/data/pg_hba.conf
}}
exec $as {POSTGRES}/postgres -D /pg/data -k /pg -c listen_addresses=*
""",
}


def more():
    """Those of MORE that are installed here."""
    return {os.path.basename(name): what for name, what in MORE.items() if shutil.which(name)}


def catalog(measure_s):
    lines = ['  - {on: %s, run: [sh, -c, "%s"], %sready: {tcp: %d, within: 60s}}\n' % (on, AGAIN % run, files, port)
             for on, run, port, files in more().values()]
    text = CATALOG % (AGAIN % "redis-server --save '' --bind 0.0.0.0 --protected-mode no",
                      AGAIN % "cpuserver --listen 0.0.0.0:80 --service 500us", AGAIN % "/tcp.py", "".join(lines), measure_s + 1, measure_s)
    if "postgres" in more():
        text = text.replace("  kv: {type: node}\n", "  kv: {type: node}\n  db: {type: node}\n").replace("web, kv]", "web, kv, db]")
    return text


class Nginx:
    def __init__(self):
        self.connection = http.client.HTTPConnection("web", 8080, timeout=5)

    def once(self):
        self.connection.request("GET", "/")
        answer = self.connection.getresponse()
        return (answer.status, answer.read()) == (200, b"served by nginx")


class Postgres:
    """A new process and a new server process for each question."""

    def once(self):
        command = [f"{POSTGRES}/psql", "-h", "db", "-U", "postgres", "-Atc", "select sum(i) from generate_series(1, 1000) i"]
        try:
            told = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except subprocess.TimeoutExpired as e:
            raise ConnectionError("no answer") from e
        if told.returncode:
            raise ConnectionError(told.stderr)
        return told.stdout == "500500\n"


class Web:
    def __init__(self):
        self.connection = http.client.HTTPConnection("web", timeout=5)

    def once(self):
        self.connection.request("GET", "/")
        answer = self.connection.getresponse()
        answer.read()
        return answer.status == 200


class Lines:
    """As much of a client of a text protocol as tells right answers from wrong ones: it sets a value and asks for it."""

    def __init__(self):
        self.socket, self.turn = socket.create_connection(("kv", self.PORT), 5), 0
        self.lines = self.socket.makefile("rb")

    def once(self):
        self.turn += 1
        value = b"%064d" % self.turn
        self.socket.sendall(self.ASK % value)
        expected = [line % value if b"%s" in line else line for line in self.ANSWER]
        answer = [self.lines.readline() for _ in expected]
        if not answer[-1]:
            raise ConnectionError("closed")
        return answer == expected


class Redis(Lines):
    PORT, ASK, ANSWER = 6379, b"SET key %s\r\nGET key\r\n", [b"+OK\r\n", b"$64\r\n", b"%s\r\n"]


class Memcached(Lines):
    PORT, ASK = 11211, b"set key 0 0 64\r\n%s\r\nget key\r\n"
    ANSWER = [b"STORED\r\n", b"VALUE key 0 64\r\n", b"%s\r\n", b"END\r\n"]


def load(seconds):
    """Clients that make one request after the other; connections that end are made again."""
    counts = {"answered": 0, "wrong": 0, "ended": 0}
    clients = [(Web, Web.once), (Redis, Redis.once)]
    clients += [(kind, kind.once) for name, kind in [("nginx", Nginx), ("memcached", Memcached), ("postgres", Postgres)] if name in more()]
    end = time.monotonic() + seconds

    def ask(connect, once):
        while time.monotonic() < end:
            try:
                peer = connect()
                while time.monotonic() < end:
                    counts["answered"] += 1
                    counts["wrong"] += not once(peer)
                    time.sleep(0.01)
            except (OSError, http.client.HTTPException):
                counts["ended"] += 1
                time.sleep(0.05)

    threads = [threading.Thread(target=ask, args=client) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"rate": counts["answered"] / seconds, **counts}))


def left_behind(labs):
    """What these labs have outside of themselves, by kind: other labs of this machine are not looked at."""
    groups = [path for lab in labs for path in glob.glob(f"/sys/fs/cgroup/diecast/{lab}") + glob.glob(f"/sys/fs/cgroup/*/diecast/{lab}")]
    ours, spaces = {f"/diecast/{lab}/" for lab in labs}, set()
    # By the cgroup of a node's processes, by the environment of all others.
    for process in glob.glob("/proc/[0-9]*"):
        try:
            if MARK not in open(f"{process}/environ", errors="replace").read() and not any(lab in open(f"{process}/cgroup", errors="replace").read() + "/" for lab in ours):
                continue
            spaces |= {os.readlink(link) for link in glob.glob(f"{process}/ns/*")} - SPACES
        except OSError:
            pass
    return {"cgroups": len(groups), "namespaces": len(spaces), "mounts": len(open("/proc/self/mountinfo").readlines()) - MOUNTS}


def held_by(pid):
    """Descriptors, perf events and memory of a process."""
    links = []
    for link in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            links.append(os.readlink(link))
        except OSError:
            pass
    resident = [line for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS")]
    return {"descriptors": len(links), "perf events": sum("perf_event" in link for link in links),
            "memory, MiB": int(resident[0].split()[1]) / 1024 if resident else 0}


def processes(lab):
    found = glob.glob(f"/sys/fs/cgroup/diecast/{lab}/*/**/cgroup.procs", recursive=True) \
        or glob.glob(f"/sys/fs/cgroup/cpu*/diecast/{lab}/*/**/cgroup.procs", recursive=True)
    return sorted({int(pid) for file in found for pid in open(file).read().split()})


def kill_a_server(lab, dice):
    """The name of the server that was killed."""
    named = {}
    for pid in processes(lab):
        try:
            named.setdefault(open(f"/proc/{pid}/comm").read().strip(), []).append(pid)
        except OSError:
            pass
    which = [name for name in SERVERS if name in named]
    if not which:
        return None
    name = dice.choice(which)
    try:
        os.kill(dice.choice(named[name]), signal.SIGKILL)
    except ProcessLookupError:
        return None
    return name


class Lab:
    def __init__(self, folder, out, dice):
        self.folder, self.out, self.dice, self.done, self.changes, self.faults = folder, out, dice, [], 0, []
        self.id, self.seen = "", collections.Counter()
        self.child = subprocess.Popen([DIECAST, "run", "soak.yaml", "--tdf", "2", "--out", out], cwd=folder, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env=os.environ | dict([MARK.split("=")]))
        self.said = []
        self.reader = threading.Thread(target=lambda: self.said.extend(self.child.stdout), daemon=True)
        self.reader.start()

    def journal(self):
        try:
            return open(f"{self.out}/journal.jsonl").read()
        except OSError:
            return ""

    def tell(self, *words):
        told = subprocess.run([DIECAST, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        # A lab may end meanwhile.
        if told.returncode and self.child.poll() is None and '"end"' not in self.journal() and "is ending" not in told.stderr:
            self.faults.append(f"{' '.join(words)}: {told.stderr.strip()[:200]}")
        return told.returncode == 0

    def disturb(self, lab):
        what = self.dice.choice(["pause", "retime", "kill"] if self.changes < CHANGES_MAX else ["kill"])
        if what == "pause" and self.tell("pause", lab):
            time.sleep(self.dice.uniform(0.1, 3))
            self.tell("resume", lab)
        elif what == "retime":
            self.tell("retime", lab, "--tdf", self.dice.choice(RATES))
        elif what == "kill" and not kill_a_server(lab, self.dice):
            return
        self.changes += what != "kill"
        self.done.append(what)

    def run(self, dies):
        """Disturbs it until it ends, or until it is killed."""
        began, first, last = time.monotonic(), None, None
        while "measure" not in self.journal() and self.child.poll() is None and time.monotonic() < began + 60:
            time.sleep(0.1)
        self.id = json.loads(self.journal().split("\n")[0])["lab"] if self.journal() else ""
        dies_at = began + self.dice.uniform(20, 40) if dies else None
        while self.child.poll() is None:
            time.sleep(self.dice.uniform(0.3, 3))
            if self.child.poll() is None and '"end"' not in self.journal():
                try:
                    now = held_by(self.child.pid)
                    first, last = first or now, now
                except OSError:
                    pass
                self.seen |= collections.Counter(left_behind([self.id]))
                self.disturb(self.id)
            if dies_at and time.monotonic() > dies_at:
                self.child.kill()
            elif time.monotonic() > began + LAB_LIMIT_S:
                self.faults.append(f"it hung: {self.done[-5:]}")
                self.child.kill()
        self.reader.join(10)
        if self.child.returncode not in ((-signal.SIGKILL,) if dies else (0, 4)):
            self.faults.append(f"status {self.child.returncode}: {''.join(self.said)[-300:]}")
        for kind, most in GROWTH_MAX.items():
            if first and last[kind] - first[kind] > most:
                self.faults.append(f"{kind} grew from {first[kind]:.0f} to {last[kind]:.0f}")
        return last

    def waits(self):
        """How late its waits ended, virtual ms."""
        late = []
        for file in glob.glob(f"{self.out}/logs/client.*"):
            for words in map(str.split, open(file, errors="replace")):
                if words[:1] in (["wait"], ["period"]) and len(words) == 4:
                    late.append((int(words[3]) - int(words[2])) / 1e6)
                    if late[-1] < 0:
                        self.faults.append(f"early: {' '.join(words)}")
        if late and max(late) > LATE_MAX_MS:
            self.faults.append(f"late by {max(late):.0f} ms")
        return late

    def answers(self):
        for file in glob.glob(f"{self.out}/logs/client.*") + glob.glob(f"{self.out}/**/*.out", recursive=True):
            for line in open(file, errors="replace"):
                if line.startswith('{"rate"'):
                    return json.loads(line)
        return None


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--minutes", type=float, default=120)
    a.add_argument("--measure", type=int, default=20, help="virtual seconds of load in a lab")
    a.add_argument("--seed", type=int, default=int(time.time()))
    a.add_argument("--out", default=f"out/soak-{int(time.time())}")
    a.add_argument("--load", type=float, help=argparse.SUPPRESS)
    o = a.parse_args()
    if o.load:
        return load(o.load)
    if lacks := [p for p in ["redis-server", "runc", "python3"] if not shutil.which(p)]:
        print(f"skipped: no {', '.join(lacks)}")
        return 3
    print(f"seed {o.seed}; beside Redis: {', '.join(more()) or 'no server of others'}", flush=True)
    if os.path.exists(o.out):
        print(f"{o.out} exists: --out takes a folder that is made", file=sys.stderr)
        return 2
    os.makedirs(o.out)
    dice, late, labs, ids, began = random.Random(o.seed), [], [], [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="diecast-soak-", dir="/var/tmp") as folder:
        for name, source in [("soak.py", f"{HERE}/soak.py"), ("waits.py", f"{ROOT}/tests/system/pace_waits.py"),
                             ("tcp.py", f"{ROOT}/tests/system/pace_tcp.py"), ("diecast-cpuserver", f"{RELEASE}/diecast-cpuserver")]:
            shutil.copy(source, f"{folder}/{name}")
            os.chmod(f"{folder}/{name}", 0o755)
        for name, text in FILES.items():
            open(f"{folder}/{name}", "w").write(text)
            os.chmod(f"{folder}/{name}", 0o755)
        open(f"{folder}/soak.yaml", "w").write(catalog(o.measure))
        while time.monotonic() < began + o.minutes * 60:
            lab = Lab(folder, os.path.abspath(f"{o.out}/lab-{len(labs)}"), dice)
            dies = len(labs) % 8 == 2
            held = lab.run(dies)
            if dies:
                subprocess.run([DIECAST, "clean"], capture_output=True, timeout=60)
            settled = time.monotonic() + 30
            ids.append(lab.id)
            while any(left_behind(ids).values()) and time.monotonic() < settled:
                time.sleep(1)
            left, waits, answers = left_behind(ids), lab.waits(), lab.answers()
            lab.faults += [f"{kind} left: {count}" for kind, count in left.items() if count]
            # A look that can't see a lab can't see what it leaves.
            lab.faults += [f"none of its {kind} was seen while it ran" for kind in ("cgroups", "namespaces") if not lab.seen[kind]]
            if answers and answers["wrong"]:
                lab.faults.append(f"{answers['wrong']} wrong answers")
            if not dies and not (answers and len(waits) > WAITS_MIN * o.measure):
                lab.faults.append(f"{len(waits)} waits, answers {answers}")
            late += waits
            labs.append({"done": lab.done, "killed": dies, "held": held, "seen": lab.seen, "left": left, "waits": len(waits), "answers": answers, "faults": lab.faults})
            counts = ", ".join(f"{lab.done.count(what)} {what}" for what in ["pause", "retime", "kill"])
            print(f"[{time.monotonic() - began:5.0f} s] lab {len(labs)}: {counts}{', killed itself' if dies else ''}; {len(waits)} waits; "
                  f"answers {answers}; {held}; {'; '.join(lab.faults) or 'fine'}", flush=True)
    late.sort()
    at = lambda share: round(late[min(len(late) - 1, int(len(late) * share))], 1) if late else None
    found = {"seed": o.seed, "labs": labs, "late_ms": {"p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": at(1)}}
    with open(f"{o.out}/soak.json", "w") as out:
        json.dump(found, out, indent=1)
    bad = sum(bool(lab["faults"]) for lab in labs)
    print(f"{len(labs)} labs, {bad} with faults; {len(late)} waits, late in virtual ms: {found['late_ms']}; JSON in {o.out}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
