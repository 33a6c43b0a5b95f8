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

BENCHMARKS = ["startup", "comm", "ddp", "data_parallel", "fsdp", "pipeline", "tensor", "ensemble", "ncf",
              "ncf_mlperf", "predict", "generate", "ranking", "farm", "supervision", "seeing", "lost_rank", "hosts",
              "halving", "resnet", "images"]
DOCS = harness.TOP / "docs"
PAGE, CHART, RESULTS = DOCS / "benchmarks.md", DOCS / "benchmarks.svg", DOCS / "benchmarks.json"
BEGIN, END = "<!-- begin: tests/bench/run all -->", "<!-- end: tests/bench/run all -->"


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def measure(name, options):
    """Runs one benchmark; returns its exit code and its checks."""
    with tempfile.NamedTemporaryFile(prefix="convoy-bench-", suffix=".jsonl") as file:
        code = subprocess.run([str(pathlib.Path(__file__).with_name("run")), name, *options],
                              env={**os.environ, harness.CHECKS: file.name}).returncode
        lines = pathlib.Path(file.name).read_text().splitlines()
        return code, [json.loads(line) for line in lines]


def limit(check, key):
    return "" if check[key] is None else f"{'≤' if check['at_most'] else '≥'} {check[key]:.4g}"


def rows_of(results):
    """Returns [(benchmark, label, {processor: check})] in the order of the benchmarks."""
    rows = []
    for name in BENCHMARKS:
        found = {}
        for processor_name, known in results.items():
            for one in known.get(name, {}).get("checks", []):
                found.setdefault(one["label"], {})[processor_name] = {**one, "date": known[name]["date"]}
        rows += [(name, label, checks) for label, checks in found.items()]
    return rows


def cell(check):
    return "" if check is None else f"{check['value']:.4g}{'' if check['ok'] else ' **missed**'}"


def table(results):
    """Returns the values, and a second table with the last run of each benchmark."""
    names = list(results)
    rows = [f"| benchmark | | gate | aim | {' | '.join(names)} |", "|---" * (4 + len(names)) + "|"]
    for name, label, checks in rows_of(results):
        gate = max(checks.values(), key=lambda one: one["date"])
        cells = " | ".join(cell(checks.get(processor_name)) for processor_name in names)
        rows.append(f"| `{name}` | {label.replace('|', ' ')} | {limit(gate, 'gate')} | {limit(gate, 'aim')} | "
                    f"{cells} |")
    rows += ["", f"| last run: date, commit | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for name in BENCHMARKS:
        last = [known.get(name) for known in results.values()]
        ended = ["" if one is None else f"{one['date']}, {one['commit']}" +
                 ("" if one["checks"] else f": **no figure**, it ended with {one['code']}") for one in last]
        if any(ended):
            rows.append(f"| `{name}` | {' | '.join(ended)} |")
    return rows


def fraction(check):
    """Measured value as a multiple of its gate, so that more than 1 is better than required; None without a scale."""
    value, gate = check["value"], check["gate"]
    if value <= 0 or gate <= 0:
        return None
    return gate / value if check["at_most"] else value / gate


def draw(results):
    import matplotlib
    matplotlib.use("svg")
    # Equal values give an equal, small file.
    matplotlib.rcParams.update({"svg.hashsalt": "convoy", "svg.fonttype": "none"})
    from matplotlib import pyplot
    rows = [(f"{name}: {label}", checks) for name, label, checks in rows_of(results)
            if any(fraction(one) is not None for one in checks.values())][::-1]
    if not rows:
        return
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.22 * len(rows)), layout="constrained")
    for processor_name, marker in zip(results, "osD^v"):
        here = [(y, fraction(checks[processor_name]), checks[processor_name]["ok"])
                for y, (_, checks) in enumerate(rows) if processor_name in checks]
        here = [point for point in here if point[1] is not None]
        axes.scatter([x for _, x, _ in here], [y for y, _, _ in here], marker=marker, label=processor_name,
                     c=["#2a7f9e" if ok else "#c8553d" for *_, ok in here])
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=7)
    axes.set_ylim(-1, len(rows))
    axes.grid(axis="y", linewidth=0.3)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("better than the gate, times (log scale); the line is the gate, red misses it")
    axes.legend(loc="lower right")
    figure.savefig(CHART, metadata={"Date": None})
    pyplot.close(figure)


def write(results):
    text = PAGE.read_text()
    if BEGIN not in text or END not in text:
        sys.exit(f"benchmark: {PAGE} has no lines '{BEGIN}' and '{END}' to write between")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    body = [BEGIN, "", f"![each measured value against its gate]({CHART.name})", "", *table(results), "", END]
    PAGE.write_text(before + "\n".join(body) + after)
    draw(results)


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=harness.TOP, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def missed(results):
    lines = []
    for name, result in results.items():
        misses = [one for one in result["checks"] if not one["ok"]]
        lines += [f"{name}: {one['label']}: {one['value']:.4g}, gate {limit(one, 'gate')}" for one in misses]
        lines += [f"{name}: {label}: no value" for label in result.get("absent", [])]
        if result["code"] and not misses:
            lines.append(f"{name}: no figure, exit code {result['code']}")
    return lines


if __name__ == "__main__":
    parser = harness.arguments(__doc__, rounds=None)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME",
                        help="measures these; the page keeps the others")
    options = parser.parse_args()
    names, start = options.only or BENCHMARKS, time.monotonic()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known = results.setdefault(f"{len(os.sched_getaffinity(0))} cores of {processor()}", {})
    for number, name in enumerate(names, 1):
        minutes = (time.monotonic() - start) / 60
        harness.say(f"\n== {name} ({number} of {len(names)}, {minutes:.0f} minutes so far)")
        code, checks = measure(name, ["--rounds", str(options.rounds)] if options.rounds else [])
        # Values that an earlier run had and this one lacks: it ended early, or something that it needs is missing.
        before = known.get(name, {})
        labels = [*(one["label"] for one in before.get("checks", [])), *before.get("absent", [])]
        absent = [label for label in labels if label not in {one["label"] for one in checks}]
        known[name] = {"date": str(datetime.date.today()), "commit": commit(), "code": code, "checks": checks,
                       **({"absent": absent} if absent else {})}
        # After each benchmark: an interrupted hour keeps what it has measured.
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        write(results)
    lines = missed({name: known[name] for name in names})
    minutes = (time.monotonic() - start) / 60
    values = sum(len(known[name]["checks"]) for name in names)
    harness.say(f"\n{values} values against gates in {minutes:.0f} minutes; " +
                (f"{len(lines)} missed:" if lines else "all met"))
    for line in lines:
        harness.say(f"  {line}")
    sys.exit(1 if lines else 0)
