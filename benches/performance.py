#!/usr/bin/env python3
"""What a frame costs, beside the same program natively and under libfaketime (Debian's package faketime), in turns of
one run. Prints a table, writes JSON and, with --write, the table in docs/performance.md; exit 1 when a bar is missed,
3 when something does not run.

Usage: benches/performance.py [--small] [--write] [--out FILE]     (make bench-performance; about a minute)
"""
import argparse, glob, json, os, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
FRAME_COST = os.environ.get("FRAME_COST_BIN", os.path.join(RELEASE, "frame-cost"))
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
PAGE = os.path.join(ROOT, "docs", "performance.md")
BEGIN, END = "<!-- made by benches/performance.py -->\n", "<!-- end -->\n"
LIBRARY = "/usr/lib/*/faketime/libfaketime.so.1"

WORLDS = [("native", "native"), ("frame-1", "frame, TDF 1"), ("frame-10", "frame, TDF 10"),
          ("trapped", "frame, TDF 1, `--call-sites never`"),
          ("libfaketime", "libfaketime, x0.1")]
# Key, name, unit, ns in it, digits.
ROWS = [("clock", "clock_gettime", "ns", 1, 1), ("call", "a call without time (getppid)", "ns", 1, 1),
        ("trap", "a wait of no length (ppoll)", "ns", 1, 0), ("sigsys", "an empty SIGSYS round trip", "ns", 1, 0),
        ("thread", "a thread: create and join", "µs", 1e3, 1), ("fork", "fork, exit and wait", "µs", 1e3, 0),
        ("exec", "vfork, exec, exit and wait", "µs", 1e3, 0)]
# What is compared with what, the most that it may be above it, ns, and where.
FRAMES = ["frame-1", "frame-10"]
BARS = [("clock_gettime above native", "clock", ("native", "clock"), 15, FRAMES),
        ("clock_gettime above libfaketime", "clock", ("libfaketime", "clock"), 0, FRAMES),
        ("a call without time above native", "call", ("native", "call"), 35, FRAMES),
        # By default a place that waits often is not trapped any more.
        ("a trapped wait above an empty SIGSYS round trip", "trap", ("native", "sigsys"), 1000, ["trapped"]),
        ("exec above native", "exec", ("native", "exec"), 350e3, FRAMES)]


def looks(turns, ops, library):
    command = [FRAME_COST, "--looks", str(turns), str(ops), *([library] if library else [])]
    env = {**os.environ, "DIECAST_BIN": DIECAST}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def spread(values):
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values), "looks": len(values)}


def figures(found):
    """By row and world, in ns."""
    of = {}
    for row, *_ in ROWS:
        for world, _ in WORLDS:
            values = [look["ns"][row] for look in found if look["world"] == world and row in look["ns"]]
            if values:
                of.setdefault(row, {})[world] = spread(values)
    return of


def judged(found):
    """Each bar in each frame: differences of the same turn."""
    by_turn = {}
    for look in found:
        by_turn.setdefault(look["turn"], {})[look["world"]] = look["ns"]
    for name, row, (other, other_row), bar, worlds in BARS:
        for world, words in [w for w in WORLDS if w[0] in worlds]:
            pairs = [(t[world], t[other]) for t in by_turn.values() if world in t and other in t]
            added = [mine[row] - its[other_row] for mine, its in pairs]
            if added:
                s = spread(added)
                yield {"name": name, "world": words, "bar_ns": bar, "added_ns": s, "met": s["median"] <= bar}


def written(s, unit_ns, digits):
    value = lambda key: f"{s[key] / unit_ns:,.{digits}f}"
    return f"{value('median')} [{value('lowest')}, {value('highest')}]"


def scale(bar_ns):
    return ("µs", 1e3, 0) if bar_ns > 10_000 else ("ns", 1, 1)


def tables(of, bars, turns):
    shown = [(key, words) for key, words in WORLDS if any(key in worlds for worlds in of.values())]
    yield "| | " + " | ".join(words for _, words in shown) + " |"
    yield "|" + "---|" * (len(shown) + 1)
    for row, name, unit, unit_ns, digits in ROWS:
        cells = [written(of[row][w], unit_ns, digits) if w in of[row] else "" for w, _ in shown]
        yield f"| {name}, {unit} | " + " | ".join(cells) + " |"
    yield ""
    yield f"Median of {turns} turns [lowest, highest]."
    yield ""
    yield "| bar | at most | in | measured | |"
    yield "|---|---|---|---|---|"
    for b in bars:
        unit, unit_ns, digits = scale(b["bar_ns"])
        measured = f"{written(b['added_ns'], unit_ns, digits)} {unit}"
        met = "met" if b["met"] else "missed"
        yield f"| {b['name']} | {b['bar_ns'] / unit_ns:g} {unit} | {b['world']} | {measured} | {met} |"


def write_page(text):
    page = open(PAGE).read()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    open(PAGE, "w").write(before + BEGIN + text + END + after)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--small", action="store_true", help="seconds, to see that it works; its figures mean little")
    a.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    a.add_argument("--out", default=f"out/bench-performance-{int(time.time())}.json")
    o = a.parse_args()
    library = next(iter(glob.glob(LIBRARY)), None)
    if not library:
        print("libfaketime is left out: apt-get install faketime", file=sys.stderr)
    turns, ops = (2, 10) if o.small else (12, 200)
    try:
        found = looks(turns, ops, library)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 3
    of, bars = figures(found), list(judged(found))
    machine = open("/proc/cpuinfo").read().split("model name\t: ")[1].splitlines()[0]
    on = f"{machine}, {os.cpu_count()} CPUs, Linux {os.uname().release}."
    text = "\n".join(["", *tables(of, bars, turns), "", on, ""]) + "\n"
    print(text)
    os.makedirs(os.path.dirname(os.path.abspath(o.out)), exist_ok=True)
    with open(o.out, "w") as out:
        json.dump({"machine": on, "small": o.small, "looks": found, "rows_ns": of, "bars": bars}, out, indent=1)
    if o.write:
        write_page(text)
    print(f"{sum(b['met'] for b in bars)} of {len(bars)} bars met; JSON in {o.out}")
    return 0 if all(b["met"] for b in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
