#!/usr/bin/env python3
"""Accuracy of a whole run: baseline against diecast at 30 % and 70 % of the service's capacity, naive beside it, one
row against native, and a fixed-CPU loop. Prints a table and writes JSON; see PROMISES.md for the bars.

Usage: benches/validate.py [--small] [--measure S] [--out DIR]     (make bench-validate; about 28 minutes, --small about 8)
"""
import argparse, json, os, re, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
DIECAST = os.path.join(TARGET, "release", "diecast")
SPIN = os.path.join(TARGET, "release", "diecast-spin")
TIER = os.path.join(ROOT, "examples", "web-tier.yaml")
ONE = os.path.join(ROOT, "examples", "one-server.yaml")
BEGAN = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - BEGAN:6.0f} s] {text}", flush=True)


def with_times(catalog, out, warm_up, measure):
    """A copy of a catalog beside the original, with other times; removed by the caller."""
    text = open(catalog).read()
    text = re.sub(r"warm_up: \S+", f"warm_up: {warm_up}s", text)
    text = re.sub(r"measure: (\d\S*)", f"measure: {measure}s", text)
    path = os.path.join(os.path.dirname(catalog), f".bench-{os.getpid()}-{os.path.basename(catalog)}")
    open(path, "w").write(text)
    return path


def run(catalog, out, mode, rate, warm_up, measure, extra=()):
    """One fresh run; its summary, or None when the experiment failed."""
    path = with_times(catalog, out, warm_up, measure)
    try:
        command = [DIECAST, "run", path, "--mode", mode, "-p", f"rate={rate}/s", "--out", out, "--json", *extra]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    finally:
        os.unlink(path)
    if done.returncode in (0, 4):
        return json.loads(done.stdout)
    if done.returncode in (2, 3):
        # The catalog's fault or the host's: every other run would say the same.
        sys.exit(f"{mode} at {rate}/s ended with {done.returncode}: {done.stderr.strip()}")
    say(f"{mode} at {rate}/s ended with {done.returncode}: {done.stderr.strip()[:300]}")
    return None


def scalar(summary, name):
    return next(m["data"]["scalar"]["value"] for m in summary["metrics"] if m["name"] == name)


def samples(summary, name):
    return next(m["data"]["samples"]["count"] for m in summary["metrics"] if m["name"] == name)


def completed_share(summary):
    """Share of the requests of the measured time that were answered: samples are answers, errors are not."""
    good = samples(summary, "latency")
    return good / max(1, good + scalar(summary, "errors"))


def offered_met(summary, per_node, nodes=2):
    return scalar(summary, "throughput") / (per_node * nodes)


def capacity(out, small):
    """The highest baseline rate (per load node) with at least 99 % of the requests answered in time."""
    best, rate, step, tried = 0, 200, 1.3, []
    warm_up, measure = (1, 4) if small else (2, 8)
    high = None
    for i in range(4 if small else 12):
        rate = int(round(rate))
        s = run(TIER, f"{out}/capacity-{i:02d}-{rate}", "baseline", rate, warm_up, measure)
        share = 0 if s is None else min(completed_share(s), offered_met(s, rate))
        tried.append({"rate_per_node": rate, "share": share})
        say(f"capacity: {rate}/s a load node: {100 * share:.2f} % answered in the measured time")
        if share >= 0.99:
            best = max(best, rate)
            rate = rate * step if high is None else (rate + high) / 2
        else:
            high = rate
            rate = (best + rate) / 2 if best else rate / step
        if high and best and high - best < 0.05 * best:
            break
    return best, tried


def compare(directories, page):
    done = subprocess.run([DIECAST, "compare", *directories, "--json", "--html", page], capture_output=True, text=True)
    if done.returncode not in (0, 1, 4):
        return {"error": done.stderr.strip()}
    return json.loads(done.stdout)


def table(title, comparison):
    print(f"\n{title}")
    if "error" in comparison:
        print("  " + comparison["error"])
        return
    for row in comparison["rows"]:
        for column, cell in zip(comparison["columns"], row["cells"]):
            value = cell.get("value")
            if value is None:
                continue
            error, interval, spread = cell.get("error"), cell.get("interval"), cell.get("spread")
            parts = [f"  {row['metric']:<12}{row['figure']:<14}{column['name']:<18}{value:>16.6g} {row['unit']:<9}"]
            if error is not None:
                parts.append(f"error {100 * error:+7.2f} %")
            if interval:
                low, high = (interval["low"], interval["high"]) if isinstance(interval, dict) else interval
                parts.append(f"[{100 * low:+.2f}, {100 * high:+.2f}] %")
            if spread is not None:
                parts.append(f"spread {100 * spread:.2f} %")
            if cell.get("judged"):
                parts.append(str(cell["judged"]))
            print(" ".join(parts))
    print(f"  overall: {json.dumps(comparison['overall'])}")


def loops(small):
    """The same fixed loop natively and metered, alternating. Perceived time times speed over native CPU time."""
    seconds, rounds = (0.1, 2) if small else (0.4, 4)
    size = subprocess.run([SPIN, "--size-for", f"{seconds}s"], capture_output=True, text=True, check=True).stdout
    turns = re.search(r"\d+", size).group(0)
    cases = [(tdf, speed, grain) for tdf, speed in ((1, 0.5), (10, 1.0)) for grain in (50, 100, 500)]
    ratios = {c: [] for c in cases}
    for _ in range(rounds):
        for case in cases:
            tdf, speed, grain = case
            wall = lambda command: json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1])
            before = wall([SPIN, "--turns", turns])["thread_cpu_ns"]
            inside = wall([DIECAST, "frame", "--tdf", str(tdf), "--speed", str(speed), "--grain", f"{grain}us", "--", SPIN, "--turns", turns])
            after = wall([SPIN, "--turns", turns])["thread_cpu_ns"]
            ratios[case].append(inside["wall_ns"] * speed / ((before + after) / 2))
    print("\nfixed-CPU loop: perceived time x speed / native CPU time (bar 0.97 to 1.03)")
    rows = []
    for (tdf, speed, grain), r in ratios.items():
        row = {"tdf": tdf, "speed": speed, "grain_us": grain, "median": statistics.median(r), "min": min(r), "max": max(r), "rounds": len(r)}
        row["passes"] = abs(row["median"] - 1) <= 0.03
        rows.append(row)
        print(f"  TDF {tdf:<3} speed {speed:<4} grain {grain:>3} us: median {row['median']:.4f}, {row['min']:.4f} to {row['max']:.4f} of {len(r)}: {'pass' if row['passes'] else 'FAIL'}")
    return rows


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--small", action="store_true", help="a few minutes, to see that it works; its figures mean little")
    a.add_argument("--measure", type=int, default=30, metavar="S", help="virtual seconds measured per load [30]")
    a.add_argument("--out", default=f"out/bench-validate-{int(time.time())}")
    o = a.parse_args()
    os.makedirs(o.out, exist_ok=True)
    result = {"machine": open("/proc/cpuinfo").read().split("model name\t: ")[1].splitlines()[0], "small": o.small}
    result["loops"] = loops(o.small)
    say("one server against native, load 0.3")
    w, m = (1, 3) if o.small else (2, 16)
    dirs = []
    for i, (mode, extra) in enumerate((("native", ()), ("diecast", ("--tdf", "10")), ("native", ()))):
        d = f"{o.out}/one-{i}-{mode}"
        if run(ONE, d, mode, 600, w, m, extra) is not None:
            dirs.append(d)
    result["native"] = compare(dirs, f"{o.out}/one.html")
    table("one server, service 500 us of CPU time, load 0.3, against native (bar: median 10 %)", result["native"])
    best, result["capacity"] = capacity(o.out, o.small)
    result["capacity_per_node"] = best
    result["loads"] = {}
    for load, measure in ((0.7, 4), (0.3, 4)) if o.small else ((0.7, o.measure), (0.3, o.measure)):
        rate = int(best * load)
        dirs = []
        order = [("baseline", ()), ("diecast", ("--tdf", "10", "--scale", "10")), ("naive", ("--scale", "10")), ("baseline", ())]
        for i, (mode, extra) in enumerate(order):
            d = f"{o.out}/load-{int(load * 100)}-{i}-{mode}"
            say(f"load {load:.0%} ({rate}/s a load node): {mode}")
            # Naive runs shorter: its queues grow without bound.
            if run(TIER, d, mode, rate, 3 if not o.small else 1, measure if mode != "naive" else min(measure, 20), extra) is not None:
                dirs.append(d)
        c = compare(dirs, f"{o.out}/load-{int(load * 100)}.html")
        result["loads"][str(load)] = {"rate_per_node": rate, "comparison": c}
        table(f"web tier at {load:.0%} of capacity ({2 * rate}/s), TDF 10, scale 10", c)
    json.dump(result, open(f"{o.out}/bench-validate.json", "w"), indent=1)
    say(f"done; JSON in {o.out}/bench-validate.json")


if __name__ == "__main__":
    main()
