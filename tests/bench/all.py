"""All benchmarks against their peers, about an hour: writes the table and the chart of docs/benchmarks.md"""
# needs: matplotlib
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import harness

# Each with the options that keep the whole within about an hour. The longest are last.
BENCHMARKS = {
    "startup": [], "comm": [], "ddp": [], "data_parallel": [], "fsdp": [], "pipeline": [], "tensor": [], "ensemble": [],
    "ncf": [], "ncf_mlperf": [], "predict": [], "generate": [], "ranking": [], "farm": [],
    "supervision": [], "seeing": [], "lost_rank": [],
    "hosts": [], "halving": [], "resnet": [], "images": [],
}
DOCS = harness.TOP / "docs"
PAGE, CHART, RESULTS = DOCS / "benchmarks.md", DOCS / "benchmarks.svg", DOCS / "benchmarks.json"
BEGIN, END = "<!-- begin: tests/bench/run all -->", "<!-- end: tests/bench/run all -->"


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def measure(name, options):
    """Runs one benchmark; returns its exit code and its verdicts."""
    with tempfile.NamedTemporaryFile(prefix="convoy-bench-", suffix=".jsonl") as file:
        code = subprocess.run([str(pathlib.Path(__file__).with_name("run")), name, *options],
                              env={**os.environ, harness.VERDICTS: file.name}).returncode
        lines = pathlib.Path(file.name).read_text().splitlines()
        return code, [json.loads(line) for line in lines]


def limit(verdict, key):
    return "" if verdict[key] is None else f"{'≤' if verdict['at_most'] else '≥'} {verdict[key]:.4g}"


def table(results):
    rows = ["| benchmark | | measured | gate | aim | date, commit |", "|---|---|---|---|---|---|"]
    for name, result in results.items():
        when = f"{result['date']}, {result['commit']}"
        for one in result["verdicts"]:
            met = "met" if one["ok"] else "**missed**"
            rows.append(f"| `{name}` | {one['label'].replace('|', ' ')} | {one['value']:.4g} | "
                        f"{limit(one, 'gate')}: {met} | "
                        f"{limit(one, 'aim')} | {when} |")
        if not result["verdicts"]:
            rows.append(f"| `{name}` | | **no figure**: it ended with {result['code']} | | | {when} |")
    return rows


def fraction(verdict):
    """Measured value as a multiple of its gate, so that more than 1 is better than required; None without a scale."""
    value, gate = verdict["value"], verdict["gate"]
    if value <= 0 or gate <= 0:
        return None
    return gate / value if verdict["at_most"] else value / gate


def draw(results, title):
    import matplotlib
    matplotlib.use("svg")
    # Equal figures give an equal, small file.
    matplotlib.rcParams.update({"svg.hashsalt": "convoy", "svg.fonttype": "none"})
    from matplotlib import pyplot
    bars = [(f"{name}: {one['label']}", fraction(one), one["ok"])
            for name, result in results.items() for one in result["verdicts"]]
    bars = [bar for bar in bars if bar[1] is not None][::-1]
    if not bars:
        return
    figure, axes = pyplot.subplots(figsize=(10, 0.8 + 0.22 * len(bars)), layout="constrained")
    axes.barh([bar[0] for bar in bars], [bar[1] for bar in bars],
              color=["#2a7f9e" if bar[2] else "#c8553d" for bar in bars])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("better than the gate, times (log scale); the line is the gate, red misses it")
    axes.set_title(title, fontsize=9)
    figure.savefig(CHART, metadata={"Date": None})
    pyplot.close(figure)


def write(results):
    text = PAGE.read_text()
    if BEGIN not in text or END not in text:
        sys.exit(f"benchmark: {PAGE} has no lines '{BEGIN}' and '{END}' to write between")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    how = (f"Measured on {len(os.sched_getaffinity(0))} cores of {processor()}. "
           "Each benchmark has the date and commit of its last run.")
    body = [BEGIN, "", how, "", f"![each measured value against its gate]({CHART.name})", "", *table(results), "", END]
    PAGE.write_text(before + "\n".join(body) + after)
    draw(results, how)


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=harness.TOP, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def missed(results):
    lines = []
    for name, result in results.items():
        misses = [one for one in result["verdicts"] if not one["ok"]]
        lines += [f"{name}: {one['label']}: {one['value']:.4g}, gate {limit(one, 'gate')}" for one in misses]
        lines += [f"{name}: {label}: no value" for label in result.get("absent", [])]
        if result["code"] and not misses:
            lines.append(f"{name}: no figure, exit code {result['code']}")
    return lines


if __name__ == "__main__":
    parser = harness.arguments(__doc__, rounds=None)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), metavar="NAME",
                        help="measures these; the page keeps the others")
    options = parser.parse_args()
    names, start = options.only or list(BENCHMARKS), time.monotonic()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for number, name in enumerate(names, 1):
        minutes = (time.monotonic() - start) / 60
        harness.say(f"\n== {name} ({number} of {len(names)}, {minutes:.0f} minutes so far)")
        code, verdicts = measure(name, BENCHMARKS[name] + (["--rounds", str(options.rounds)] if options.rounds else []))
        # Values that an earlier run had and this one lacks: it ended early, or something that it needs is missing.
        before = known.get(name, {})
        labels = [*(one["label"] for one in before.get("verdicts", [])), *before.get("absent", [])]
        absent = [label for label in labels if label not in {one["label"] for one in verdicts}]
        known[name] = {"date": str(datetime.date.today()), "commit": commit(), "code": code, "verdicts": verdicts,
                       **({"absent": absent} if absent else {})}
        # After each benchmark: an interrupted hour keeps what it has measured.
        known = {name: known[name] for name in BENCHMARKS if name in known}
        RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
        write({name: known[name] for name in BENCHMARKS if name in known})
    lines = missed({name: known[name] for name in names})
    minutes = (time.monotonic() - start) / 60
    values = sum(len(known[name]["verdicts"]) for name in names)
    harness.say(f"\n{values} values against gates in {minutes:.0f} minutes; " +
                (f"{len(lines)} missed:" if lines else "all met"))
    for line in lines:
        harness.say(f"  {line}")
    sys.exit(1 if lines else 0)
