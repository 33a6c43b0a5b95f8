"""The 12-million-parameter NeuMF of docs/recommenders.md: two mpi ranks and one core against PyTorch, with a chart"""
import math
import os
import pathlib
import statistics
import sys

import harness

CONFIG = "configs/ncf_story.yaml"
SIZES = {"rows": 3647614, "users": 211261, "items": 100000}
PARAMETERS, BATCH, WIDTH = 12453873, 256, 5
DENSE_BYTES = 4 * PARAMETERS

LOOP, VECTORISED, DDP, FUSED, SPARSE = "per-row loop, dense Adam", "vectorised, dense Adam", "DDP, dense Adam", \
    "DDP, fused Adam", "SparseAdam, both cores"
MPI, CORE, FOUR, GLOO, DENSE = "convoy, 2 ranks, mpi", "convoy, one core", "convoy, 4 ranks, mpi", \
    "convoy, 2 ranks, gloo", "convoy, one core, dense tables"
BOTH = "convoy, two runs at once, one a core"
# Known instances a second on two idle cores. If this machine runs the vectorised peer more slowly, the others' expected
# values shrink by the same factor.
KNOWN = {LOOP: 17400, VECTORISED: 26500, DDP: 22000, FUSED: 30000, SPARSE: 592000}
SETTINGS = ["train.evaluate_every=never", "train.checkpoint_every=never", "train.resume=never"]


def convoy(ranks, backend, steps, warm, *more, under=()):
    def measure():
        run = harness.Run(CONFIG, [*SETTINGS, f"backend={backend}", f"train.max_steps={steps + warm}",
                                   f"train.log_every={max(1, min(100, warm))}", *more], ranks=ranks, under=under)
        return ranks * BATCH * WIDTH / run.step_seconds(skip=warm)
    return measure


def side_by_side(steps, warm):
    """Returns a function that measures instances a second of two independent runs at once, each on a core."""
    one = lambda core: convoy(1, "auto", steps, warm, "strategy={name: single}", under=["taskset", "-c", str(core)])()
    return lambda: sum(harness.on_two_cores(one))


def columns():
    return harness.synthetic_interactions(SIZES["rows"] + SIZES["users"], '"seed":1,')


def peer(steps, *more):
    sizes = [text for name, value in SIZES.items() for text in ("--" + name, value)]
    return lambda: harness.peer("ncf.py", "--columns", columns(), *sizes, "--steps", steps,
                                *more)["instances_per_second"]


def expected(measured):
    scale = min(1, measured[VECTORISED] / KNOWN[VECTORISED])
    return {name: known * scale for name, known in KNOWN.items() if name in measured}


def report(measured):
    harness.table(measured, SPARSE, "instances a second")
    harness.say("known of two idle cores: " + ", ".join(f"{name} {value:,}" for name, value in KNOWN.items()))
    for name, value in KNOWN.items():
        if name in measured:
            harness.say(f"  {name}: {statistics.median(measured[name]):,.0f} here, {value:,} known")


def checks(measured):
    ratio = lambda name, reference: statistics.median(harness.ratios(measured, name, reference))
    ok = True
    for reference, gate, aim in ((SPARSE, 7, 10), (DDP, 90, 200), (FUSED, 40, 80), (LOOP, 150, 300)):
        ok &= harness.check(f"two mpi ranks ÷ {reference}", ratio(MPI, reference), gate, at_most=False, aim=aim)
    ok &= harness.check(f"one core ÷ {SPARSE}", ratio(CORE, SPARSE), 4.5, at_most=False, aim=6)
    harness.say(f"  two runs that share nothing, one on each core, train {ratio(BOTH, CORE):.2f} times as fast as one")
    ok &= harness.check("1 → 2 ranks", ratio(MPI, CORE), 1.7, at_most=False, aim=1.85)
    ok &= harness.check("four ranks ÷ two", ratio(FOUR, MPI), 0.9, at_most=False, aim=1)
    return ok


def epoch():
    """Measures one whole epoch by two ranks, with the time outside of training steps."""
    run = harness.Run(CONFIG, ["backend=mpi", "train.epochs=1", "train.checkpoint_every=never", "train.resume=never"],
                      ranks=2)
    summary = run.summary
    train, evaluate = summary["train_seconds"], summary["evaluate_seconds"]
    sent = summary["bytes_sent_per_step"]
    harness.say(f"\none epoch, two mpi ranks: {summary['samples']:,} instances in {train:.1f} s, "
                f"evaluation {evaluate:.2f} s, {sent:,.0f} bytes a rank and step, "
                f"HR@10 {summary['metrics']['hr@10']['last']:.3f}")
    ok = harness.check("parameters", summary["parameters"], PARAMETERS)
    ok &= harness.check("evaluation ÷ training", evaluate / train, 0.10, aim=0.05)
    ok &= harness.check("bytes sent ÷ dense gradient", sent / DENSE_BYTES, 1 / 50, aim=1 / 80)
    return harness.check("CPU efficiency", min(summary["cpu_efficiency"]), 0.8, at_most=False, aim=0.9) and ok


def chart(measured, path):
    """Draws bars on a logarithmic scale, each a step further than the one above it."""
    names = [name for name in (LOOP, DDP, VECTORISED, FUSED, DENSE, SPARSE, CORE, GLOO, MPI) if name in measured]
    rates = [statistics.median(measured[name]) for name in names]
    low, high = 1e4, 10 ** math.ceil(math.log10(max(rates)))
    left, width, bar, gap = 220, 420, 18, 8
    at = lambda rate: left + width * math.log10(max(rate, low) / low) / math.log10(high / low)
    height = len(names) * (bar + gap) + 58
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 120}" height="{height}" '
           'font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           '<text x="8" y="18" font-weight="bold">NeuMF of 12.5 M parameters on two cores: instances a second, '
           'logarithmic</text>']
    for power in range(int(math.log10(low)), int(math.log10(high)) + 1):
        x = at(10 ** power)
        out.append(f'<line x1="{x:.1f}" y1="28" x2="{x:.1f}" y2="{height - 22}" stroke="#ddd"/>'
                   f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#555">{10 ** power:,}</text>')
    for number, (name, rate) in enumerate(zip(names, rates)):
        y = 32 + number * (bar + gap)
        colour = "#2a7ab8" if name.startswith("convoy") else "#b0b0b0"
        out.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{name}</text>'
                   f'<rect x="{left}" y="{y}" width="{at(rate) - left:.1f}" height="{bar}" fill="{colour}"/>'
                   f'<text x="{at(rate) + 6:.1f}" y="{y + 13}">{rate:,.0f}</text>')
    path.write_text("\n".join(out) + "\n</svg>\n")
    harness.say(f"chart: {path}")


if __name__ == "__main__":
    parser = harness.arguments(__doc__)
    parser.add_argument("--chart", type=pathlib.Path, help="writes a chart to it, such as docs/recommenders.svg")
    parser.add_argument("--only", nargs="*", help="these contestants, without checks")
    options = parser.parse_args()
    # Limit its loader too: by default it uses the second core, which the ranks need.
    one_core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    contestants = {
        VECTORISED: peer(20),
        SPARSE: peer(300, "--sparse", "--warm", 30),
        DDP: peer(15, "--ranks", 2),
        FUSED: peer(20, "--ranks", 2, "--fused"),
        LOOP: peer(15, "--per-row", "--warm", 2),
        DENSE: convoy(1, "auto", 60, 10, "strategy={name: single}", "model.rows=false", under=one_core),
        CORE: convoy(1, "auto", 3000, 300, "strategy={name: single}", under=one_core),
        BOTH: side_by_side(3000, 300),
        GLOO: convoy(2, "gloo", 1500, 300),
        FOUR: convoy(4, "mpi", 3000, 300),
        MPI: convoy(2, "mpi", 4000, 300),
    }
    convoy(1, "auto", 2, 1, "strategy={name: single}")()  # creates the columns
    if options.only is not None:
        contestants = {name: measure for name, measure in contestants.items()
                       if any(part in name for part in options.only)}
        measured = harness.interleave(options.rounds, contestants)
        for name, values in measured.items():
            harness.say(f"{name:34s}{harness.spread(values)}")
        sys.exit(0)
    measured = harness.interleave(options.rounds, contestants, expected=expected, slower_is="less")
    report(measured)
    ok = checks(measured)
    ok &= epoch()
    if options.chart:
        chart(measured, options.chart)
    sys.exit(0 if ok else 1)
