#!/usr/bin/env python3
"""Accuracy of a whole run: baseline against diecast at 30 % and 70 % of the service's capacity, naive beside it, one
row against native, and a fixed-CPU loop. Prints a table and writes JSON; see PROMISES.md for the bars. Exit 1 when a bar
was missed, 3 when something does not run.

Usage: benches/validate.py [--small] [--part PART]... [--measure S] [--out DIR]
(make bench-validate; 28 to 40 minutes, --small 20 s)

Small is one round of the loop and tests/system/overload.yaml at TDF 4, one virtual second of it.
"""
import argparse, json, os, re, shutil, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
DIECAST = os.environ.get("DIECAST_BIN", os.path.join(RELEASE, "diecast"))
SPIN = os.path.join(RELEASE, "diecast-spin")
TIER = os.path.join(ROOT, "examples", "web-tier.yaml")
ONE = os.path.join(ROOT, "examples", "one-server.yaml")
OVERLOAD = os.path.join(ROOT, "tests", "system", "overload.yaml")
# Naive is off by more than this share of the baseline's throughput.
NAIVE_OFF = 0.5
# Diecast runs at each load.
BLOCKS = 3
# A run that calls itself not trustworthy is made again so often at most, as its user would, while the whole stays within
# this time. All of them are printed and in the JSON.
AGAIN, AGAIN_UNTIL_S = 5, 38 * 60
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
        say(f"{mode} at {rate}/s ended with {done.returncode}: {done.stderr.strip()}")
        sys.exit(3)
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


def capacity(out):
    """The highest baseline rate (per load node) with at least 99 % of the requests answered in time, and every rate tried.
    What answers as many once may be luck: the host's own speed moves by a tenth from one minute to the next. So it has to
    do it in two longer runs more, or a lower rate has."""
    tried = []

    def holds(rate, measure):
        d = f"{out}/capacity-{len(tried):02d}-{rate}"
        s = run(TIER, d, "baseline", rate, 2, measure)
        share = 0 if s is None else min(completed_share(s), offered_met(s, rate))
        tried.append({"rate_per_node": rate, "measured_s": measure, "share": share})
        say(f"capacity: {rate}/s a load node, {measure} s: {100 * share:.2f} % answered in the measured time")
        return share >= 0.99

    best, high, rate, step = 0, None, 200, 1.3
    for _ in range(12):
        rate = int(round(rate))
        if holds(rate, 8):
            best = max(best, rate)
            rate = rate * step if high is None else (rate + high) / 2
        else:
            high = rate
            rate = (best + rate) / 2 if best else rate / step
        if high and best and high - best < 0.05 * best:
            break
    while best and not (holds(best, 16) and holds(best, 16)):
        best = int(best * 0.94)
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
            if value is None and not cell["none"]:
                continue
            shown = f"{'none':>16} {'':<9}" if value is None else f"{value:>16.6g} {row['unit']:<9}"
            error, interval, spread = cell.get("error"), cell.get("interval"), cell.get("spread")
            parts = [f"  {row['metric']:<12}{row['figure']:<14}{column['name']:<18}{shown}"]
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


def judged(part, comparison):
    """Diecast's bars in a comparison: met, missed, or None where there is no verdict or too few samples for one."""
    columns = comparison.get("columns", [])
    at = next((i for i, c in enumerate(columns) if c["mode"] == "diecast"), 0)
    if at == 0:
        return [{"part": part, "name": "diecast", "passes": False, "why": comparison.get("error", "it or its reference failed")}]
    doubt = columns[0]["no_verdict"] or columns[at]["no_verdict"]
    found = []
    for row in comparison["rows"]:
        if row["bar"] is not None:
            cell = row["cells"][at]
            passes = {"pass": None if doubt else True, "fail": False}.get(cell["judged"])
            found.append({"part": part, "name": f"{row['metric']} {row['figure']}", "bar": row["bar"], "error": cell["error"],
                          "interval": cell["interval"], "passes": passes, "why": doubt})
    return found


def naive_off(part, comparison):
    """Naive's bar: it answers nothing, or its throughput is off by more than half."""
    at = next((i for i, c in enumerate(comparison.get("columns", [])) if c["mode"] == "naive"), 0)
    figure = {"part": part, "name": f"naive is off by more than {NAIVE_OFF:.0%}", "bar": NAIVE_OFF}
    if at == 0:
        return {**figure, "passes": False, "why": "it or its reference failed"}
    of = lambda metric: next(row["cells"] for row in comparison["rows"] if row["metric"] == metric)
    none = of("latency")[0]["value"] is not None and of("latency")[at]["value"] is None and of("latency")[at]["none"] > 0
    error = of("throughput")[at]["error"]
    return {**figure, "error": error, "answered_nothing": none, "passes": none or (error is not None and abs(error) > NAIVE_OFF)}


def spin(command):
    """What a loop says of itself."""
    done = subprocess.run(command, capture_output=True, text=True)
    # 4: the frame distrusts itself; the bar here says whether it is right.
    if done.returncode not in (0, 4):
        say(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        sys.exit(3)
    return json.loads(done.stdout.strip().splitlines()[-1])


def loops(small):
    """The same fixed loop natively and metered, alternating. Perceived time times speed over native CPU time."""
    seconds, rounds, grains = (0.1, 1, (500,)) if small else (0.4, 8, (50, 100, 500))
    size = subprocess.run([SPIN, "--size-for", f"{seconds}s"], capture_output=True, text=True, check=True).stdout
    turns = re.search(r"\d+", size).group(0)
    cases = [(tdf, speed, grain) for tdf, speed in ((1, 0.5), (10, 1.0)) for grain in grains]
    ratios = {c: [] for c in cases}
    for _ in range(rounds):
        for case in cases:
            tdf, speed, grain = case
            before = spin([SPIN, "--turns", turns])["thread_cpu_ns"]
            inside = spin([DIECAST, "frame", "--tdf", str(tdf), "--speed", str(speed), "--grain", f"{grain}us", "--", SPIN, "--turns", turns])
            after = spin([SPIN, "--turns", turns])["thread_cpu_ns"]
            ratios[case].append(inside["wall_ns"] * speed / ((before + after) / 2))
    print("\nfixed-CPU loop: perceived time x speed / native CPU time (bar 0.97 to 1.03)")
    rows = []
    for (tdf, speed, grain), r in ratios.items():
        name = f"TDF {tdf}, speed {speed}, grain {grain} us"
        row = {"part": "loop", "name": name, "tdf": tdf, "speed": speed, "grain_us": grain, "median": statistics.median(r), "min": min(r), "max": max(r), "rounds": len(r)}
        row["passes"] = abs(row["median"] - 1) <= 0.03
        rows.append(row)
        print(f"  TDF {tdf:<3} speed {speed:<4} grain {grain:>3} us: median {row['median']:.4f}, {row['min']:.4f} to {row['max']:.4f} of {len(r)}: {'pass' if row['passes'] else 'FAIL'}")
    return rows


def trusted(out, part, what, result):
    """Where a run is that calls itself trustworthy, or the last of those that don't; None when the experiment failed."""
    catalog, mode, rate, *how = what
    for again in range(1 + AGAIN):
        d = out + (f"-again-{again}" if again else "")
        say(f"{part}: {mode}, {rate}/s a load node")
        began = time.monotonic()
        summary = run(catalog, d, mode, rate, *how)
        if summary is None:
            return None
        if mode == "naive" or summary["verdict"]["trustworthy"]:
            return d
        why = "; ".join(f"{r['what']} {r['measured']}" for r in summary["verdict"]["reasons"])
        say(f"{part}: {mode} is not trustworthy: {why}")
        result.setdefault("distrusted", []).append({"directory": d, "why": why, "throughput": scalar(summary, "throughput")})
        now = time.monotonic()
        # Another would take as long.
        if now - BEGAN + now - began > AGAIN_UNTIL_S:
            break
    return d


def service(part, catalog, rate, factor, warm_up, measure, blocks, out, result):
    """Diecast runs of a catalog at a rate, each between two baselines, and one of naive; figures of diecast and naive. All have
    the same arrivals. Within minutes the host's own speed changes by as much as the bars: one long run of each would show that."""
    ours = [("diecast", ("--tdf", factor, "--scale", factor)), ("baseline", ())]
    order = [("baseline", ()), *blocks * ours, ("naive", ("--scale", factor))]
    directories = []
    for i, (mode, extra) in enumerate(order):
        # Naive runs shorter: its queues grow without bound.
        seconds = min(measure, 20) if mode == "naive" else measure
        d = trusted(f"{out}/{part}-{i}-{mode}", part, (catalog, mode, rate, warm_up, seconds, extra), result)
        if d is not None:
            directories.append(d)
    c = compare(directories, f"{out}/{part}.html")
    result[part] = {"rate_per_node": rate, "comparison": c}
    table(f"{os.path.basename(catalog)}, {part}: {rate}/s a load node, TDF {factor}, scale {factor}", c)
    return [*judged(part, c), naive_off(part, c)]


def overload(out, result):
    """A copy of the small catalog beside its programs."""
    for file in (OVERLOAD, os.path.join(RELEASE, "diecast-cpuserver"), os.path.join(RELEASE, "diecast-loadgen")):
        shutil.copy(file, out)
    return service("overload", os.path.join(out, "overload.yaml"), 12, "4", 1, 1, 1, out, result)


def one_server(out, result):
    say("one server against native, load 0.3")
    directories = []
    for i, (mode, extra) in enumerate((("native", ()), ("diecast", ("--tdf", "10")), ("native", ()))):
        d = trusted(f"{out}/one-{i}-{mode}", "one server", (ONE, mode, 600, 2, 16, extra), result)
        if d is not None:
            directories.append(d)
    result["native"] = compare(directories, f"{out}/one.html")
    table("one server, service 500 us of CPU time, load 0.3, against native", result["native"])
    return judged("one server", result["native"])


def web_tier(measure, out, result):
    best, result["capacity"] = capacity(out)
    result["capacity_per_node"] = best
    if not best:
        return [{"part": "web tier", "name": "capacity", "passes": False, "why": "no rate was answered"}]
    figures = []
    for load in (0.7, 0.3):
        figures += service(f"load-{int(load * 100)}", TIER, int(best * load), "10", 3, measure, BLOCKS, out, result)
    return figures


def main():
    result = {}
    # The web tier last: what it repeats depends on the time that is left.
    parts = {"loops": lambda: loops(o.small), "overload": lambda: overload(o.out, result),
             "one-server": lambda: one_server(o.out, result), "web-tier": lambda: web_tier(o.measure, o.out, result)}
    a = argparse.ArgumentParser()
    a.add_argument("--small", action="store_true", help="seconds, to see that it works; its figures mean little")
    a.add_argument("--part", action="append", choices=parts, help="only this part; again for more [all]")
    a.add_argument("--measure", type=int, default=12, metavar="S", help="virtual seconds measured in a run [12]")
    a.add_argument("--out", default=f"out/bench-validate-{int(time.time())}")
    o = a.parse_args()
    os.makedirs(o.out, exist_ok=True)
    result |= {"machine": open("/proc/cpuinfo").read().split("model name\t: ")[1].splitlines()[0], "small": o.small}
    wanted = o.part or (("loops", "overload") if o.small else ("loops", "one-server", "web-tier"))
    figures = [figure for part, run_part in parts.items() if part in wanted for figure in run_part()]
    result["figures"] = figures
    json.dump(result, open(f"{o.out}/bench-validate.json", "w"), indent=1)
    names = lambda passes: ", ".join(f"{f['part']}: {f['name']}" for f in figures if f["passes"] is passes)
    print(f"\n{sum(f['passes'] is True for f in figures)} of {len(figures)} bars met; JSON in {o.out}/bench-validate.json")
    if result.get("distrusted"):
        print(f"runs that were not trustworthy: {', '.join(os.path.basename(d['directory']) for d in result['distrusted'])}")
    for words, found in (("missed", names(False)), ("can't say", names(None))):
        if found:
            print(f"{words}: {found}")
    return 1 if names(False) else 0


if __name__ == "__main__":
    sys.exit(main())
