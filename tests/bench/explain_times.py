"""Predicted step times against measured ones: models × strategies × one and two ranks, and whether the pick is right"""
# needs data: movielens
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import harness

UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
SECONDS = 1.8  # approximate time for which a run is timed
SYNTHETIC = "data={name: synthetic, kind: classification, rows: 8192, evaluate_rows: 0, features: %s, classes: 10}"
SHORT = ["train.evaluate_every=never", "train.checkpoint_every=never", "train.resume=never", "train.epochs=100000"]
# A device is a core, except if two cores are named. There are small steps that a second device cannot speed up, and
# large ones that it can.
MODELS = {
    "ncf, 256 rows": ("configs/ncf_ddp.yaml", ["train.batch={global: 256}"], ["ddp", "data_parallel", "fsdp"]),
    "ncf, 8192 rows": ("configs/ncf_ddp.yaml", ["train.batch={global: 8192}"], ["ddp", "data_parallel", "fsdp"]),
    "mlp 0.2 M, 128 rows": ("configs/mlp_25m.yaml",
                            ["model.hidden=[256, 128]", "train.batch={global: 128}", SYNTHETIC % "[784]"],
                            ["ddp", "data_parallel", "fsdp", "pipeline", "tensor_parallel"]),
    "mlp 25 M, 32 rows": ("configs/mlp_25m.yaml", ["train.batch={global: 32}"],
                          ["ddp", "data_parallel", "fsdp", "pipeline", "tensor_parallel"]),
    "mlp 8 M, 512 rows": ("configs/mlp_25m.yaml", ["model.hidden=[2048, 2048]", "train.batch={global: 512}"],
                          ["ddp", "data_parallel", "fsdp", "pipeline", "tensor_parallel"]),
    "convnet, 128 rows": ("configs/mlp_25m.yaml", ["model={name: convnet, channels: [16, 32], hidden: 64}",
                                                   "train.batch={global: 128}", SYNTHETIC % "[1, 28, 28]"],
                          ["ddp", "data_parallel", "fsdp", "pipeline"]),
    "gpt 0.8 M, 16 rows": ("configs/gpt_single.yaml", ["model.dim=128", "data.length=64"],
                           ["ddp", "data_parallel", "fsdp", "pipeline", "tensor_parallel"]),
    "mlp 8 M, two cores a rank alone": ("configs/mlp_25m.yaml",
                                        ["model.hidden=[2048, 2048]", "train.batch={global: 128}",
                                         "launch.cores_per_rank=auto"], ["ddp", "fsdp"]),
}


def overrides_of(name):
    config, changes, _ = MODELS[name]
    return ["launch.cores_per_rank=1", *SHORT, *changes]


def seconds_of(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def explain(name, backend):
    """Returns the predictions of --calibrate, {strategy: (seconds a step, relative error)}, and the time of the
    answer."""
    config, _, strategies = MODELS[name]
    command = [str(harness.CONVOY), "explain", str(harness.TOP / config), "--ranks", "2", "--calibrate", "--compare",
               ",".join(["single", *strategies])]
    for override in overrides_of(name) + ([f"backend={backend}"] if backend != "gloo" else []):
        command += ["--set", override]
    with tempfile.TemporaryDirectory(prefix="convoy-bench-") as folder:
        for kept in (".data", "configs"):
            os.symlink(harness.TOP / kept, os.path.join(folder, kept))
        start = time.monotonic()
        done = subprocess.run(command, cwd=folder, env={**os.environ, **harness.runs.MPI}, timeout=120,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        took = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"benchmark: {' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-3000:]}")
    rows = {}
    for line in done.stdout.splitlines():
        cells = re.split(r"  +", line.strip())
        rows[cells[0]] = cells[1:]
    if "predicted step" not in rows:
        sys.exit(f"benchmark: no prediction in\n{done.stdout}")
    names = done.stdout.splitlines()[0].split("  ")[1:]
    names = [cell.strip() for cell in names if cell.strip()]
    found = {}
    for strategy, cell, error in zip(names, rows["predicted step"], rows["its error"]):
        if cell not in ("refused", "—"):
            found[strategy] = (seconds_of(cell), float(error.split()[1]) / 100)
    return found, took


def measure(name, strategy, predicted, backend):
    """Returns seconds a step of a run of about SECONDS."""
    config, _, _ = MODELS[name]
    lap = min(100, max(2, round(SECONDS / predicted / 4)))
    more = [f"strategy={{name: {strategy}}}", f"train.log_every={lap}", f"train.max_steps={5 * lap}"]
    if strategy not in ("single", "data_parallel"):
        more.append(f"backend={backend}")
    run = harness.Run(config, [*overrides_of(name), *more], ranks=1 if strategy == "single" else 2)
    return run.step_seconds(skip=lap)


def one_round(name, backend, answered):
    """Returns {strategy: (predicted, stated relative error, measured)} of one model. Calibrates before and after the
    runs, because this machine's speed drifts: the prediction is the mean of both. Returns nothing if both differ by
    more than a quarter for `single`: then the difference shows other load and not the quality of a prediction."""
    before, took = explain(name, backend)
    answered.append(took)
    measured = {strategy: measure(name, strategy, before[strategy][0], backend) for strategy in before}
    after, took = explain(name, backend)
    answered.append(took)
    drift = after["single"][0] / before["single"][0]
    if not 0.8 <= drift <= 1.25:
        harness.say(f"round repeated: {name}: single was to take {1000 * before['single'][0]:.2f} ms in front of the "
                    f"runs and {1000 * after['single'][0]:.2f} ms behind them: the machine was busy")
        return None
    return {strategy: ((before[strategy][0] + after[strategy][0]) / 2, (before[strategy][1] + after[strategy][1]) / 2,
                       seconds)
            for strategy, seconds in measured.items() if strategy in after}


def report(cells):
    median = statistics.median
    harness.say(f"\n{'':34s}{'predicted':>12s}{'measured':>12s}{'÷':>8s}{'stated ±':>10s}   {'':8s}")
    errors, within = {}, 0
    for (name, strategy), measurements in cells.items():
        ratio = median([p / m for p, _, m in measurements])
        errors[name, strategy] = abs(ratio - 1)
        stated = median([e for _, e, _ in measurements])
        within += abs(ratio - 1) <= stated
        alone = median([m for _, _, m in cells[name, "single"]])
        seconds = median([m for _, _, m in measurements])
        note = "" if strategy == "single" else ("single wins" if alone < seconds else "single loses")
        harness.say(f"{name + ', ' + strategy:44.44s}{1000 * median([p for p, _, _ in measurements]):10.2f} ms"
                    f"{1000 * seconds:10.2f} ms{ratio:8.2f}{100 * stated:9.0f} %   {note}")
    return errors, within


def picks(cells):
    """Returns the fraction of cells whose choice between `single` and the cell's strategy is within 10 % of the best
    measured; the same for models and their choice among all strategies; and how often `single` wins and loses."""
    median = statistics.median
    predicted = {cell: median([p for p, _, _ in measurements]) for cell, measurements in cells.items()}
    measured = {cell: median([m for _, _, m in measurements]) for cell, measurements in cells.items()}
    good = wins = losses = models_good = 0
    for name in MODELS:
        mine = [cell for cell in cells if cell[0] == name]
        best = min(mine, key=predicted.get)
        models_good += measured[best] <= 1.1 * min(measured[cell] for cell in mine)
        for cell in mine:
            if cell[1] == "single":
                continue
            pair = [cell, (name, "single")]
            good += measured[min(pair, key=predicted.get)] <= 1.1 * min(map(measured.get, pair))
            wins += measured[name, "single"] < measured[cell]
            losses += measured[name, "single"] > measured[cell]
    return good / (wins + losses), models_good / len(MODELS), wins, losses


if __name__ == "__main__":
    parser = harness.arguments(__doc__)
    parser.add_argument("--backend", default="gloo", help="of strategies with processes (default %(default)s)")
    parser.add_argument("--only", default="", help="models whose names contain this")
    options = parser.parse_args()
    MODELS = {name: model for name, model in MODELS.items() if options.only in name}
    cells, answered, retries = {}, [], 2 * len(MODELS)
    for number in range(options.rounds):
        for name in MODELS:
            measurements = one_round(name, options.backend, answered)
            while measurements is None:
                if retries == 0:
                    sys.exit("no figure: no round is left to repeat: run this on an idle machine")
                retries -= 1
                measurements = one_round(name, options.backend, answered)
            shown = []
            for strategy, (predicted, error, seconds) in measurements.items():
                cells.setdefault((name, strategy), []).append((predicted, error, seconds))
                shown.append(f"{strategy} {predicted / seconds:.2f}")
            harness.say(f"round {number + 1}/{options.rounds}: {name}: predicted ÷ measured: {'  '.join(shown)}")
    errors, within = report(cells)
    pair_share, model_share, wins, losses = picks(cells)
    worst = max(errors, key=errors.get)
    mean = statistics.mean(errors.values())
    harness.say(f"\n{len(cells)} cells, {options.backend}; single wins {wins} comparisons and loses {losses}; "
                f"mean error {100 * mean:.1f} %, worst {100 * errors[worst]:.0f} % ({', '.join(worst)}); "
                f"{within} cells lie within the error that was stated; "
                f"--calibrate answered in {statistics.median(answered):.1f} s, at most {max(answered):.1f}")
    ok = harness.check("mean error of the predicted step", mean, 0.20, aim=0.10)
    ok &= harness.check("cells whose pick is within 10 % of the best", pair_share, 0.80, at_most=False)
    ok &= harness.check("models whose pick of all strategies is within 10 % of the best", model_share, 0.80,
                          at_most=False)
    ok &= harness.check("seconds that --calibrate takes to answer", statistics.median(answered), 8)
    if not options.only:
        ok &= harness.check("cells", len(cells), 24, at_most=False)
        ok &= harness.check("comparisons that single wins", wins, 6, at_most=False)
        ok &= harness.check("comparisons that single loses", losses, 6, at_most=False)
    sys.exit(0 if ok else 1)
