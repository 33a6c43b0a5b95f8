"""Interleaved rounds, medians, spreads and ratios; shared by the benchmarks. No benchmark itself."""
import argparse
import concurrent.futures
import glob
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

TOP = pathlib.Path(__file__).resolve().parents[2]
CONVOY = TOP / "build" / "convoy"
CHECKS = "CONVOY_BENCH_CHECKS"  # a file that receives one JSON object for each check; tests/bench/all.py reads it


def arguments(description, rounds=3):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="interleaved rounds (default %(default)s)")
    return parser


def step_arguments(description, steps, warm, rounds=3):
    """`arguments` of a benchmark that times steps by step_of."""
    parser = arguments(description, rounds)
    parser.add_argument("--steps", type=int, default=steps, help="timed in each run (default %(default)s)")
    parser.add_argument("--warm", type=int, default=warm,
                        help="steps before those; convoy measures overlap in the first 18 (default %(default)s)")
    return parser


def say(text):
    print(text, flush=True)


def convoy_run(convoy, config, output, overrides=(), ranks=None, timeout=600, under=(), inject=()):
    """Runs `convoy run`; ends the benchmark if it fails. `under` is put before the command."""
    command = [*under, str(convoy), "run", str(TOP / config), "--output", str(output)]
    for override in overrides:
        command += ["--set", override]
    for fault in inject:
        command += ["--inject", fault]
    if ranks:
        command += ["--ranks", str(ranks)]
    done = subprocess.run(command, cwd=TOP, env={**os.environ, **runs.MPI}, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"benchmark: {' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-3000:]}")


class Run:
    """One `convoy run` in a separate folder: its summary and its metrics. `under` is put before the command."""

    def __init__(self, config, overrides=(), ranks=None, timeout=600, under=(), inject=(), convoy=CONVOY):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="convoy-bench-"))
        convoy_run(convoy, config, self.folder / "run", overrides, ranks, timeout, under, inject)
        self.summary = json.loads((self.folder / "run" / "summary.json").read_text())
        lines = (self.folder / "run" / "metrics.jsonl").read_text().splitlines()
        self.records = [json.loads(line) for line in lines]
        shutil.rmtree(self.folder)

    def step_seconds(self, skip):
        """Returns seconds a step between the first train record at or after step `skip` and the last one: the steady
        state."""
        train = [r for r in self.records if r["kind"] == "train" and r["step"] >= skip]
        return (train[-1]["seconds"] - train[0]["seconds"]) / (train[-1]["step"] - train[0]["step"])


def step_of(config, options, *overrides, **more):
    """Returns seconds a step of `config` after options.warm steps; metrics are reduced and written outside of the timed
    ones. `more`: of Run."""
    run = Run(config, [f"train.max_steps={options.warm + options.steps}", f"train.log_every={options.warm}",
                       *overrides], **more)
    return run.step_seconds(skip=options.warm)


def on_two_cores(measure):
    """Returns [measure(core), …] of two runs at once that share nothing, each on a core: the value of the second
    core."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(measure, sorted(os.sched_getaffinity(0))[:2]))


def synthetic_interactions(rows, words):
    """Returns convoy's cache of synthetic interactions with `rows` rows, whose description contains `words`. The rows
    are positives and a held-out interaction of each user."""
    for path in glob.glob(str(TOP / ".data" / "synthetic-interactions-*.cache.safetensors")):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        if header["user"]["shape"] == [rows] and words in header["__metadata__"]["how"]:
            return path
    sys.exit("benchmark: convoy left no columns in .data")


def program(backend, *words, text=None, timeout=600, ranks=2):
    """Runs tests/bench/library.cpp by `convoy run` on two cores, divided among the ranks; returns its values."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="convoy-bench-"))
    result = folder / "result.json"
    command = [str(CONVOY), "run", "--ranks", str(ranks), "--output", str(folder / "run"),
               "--set", f"backend={backend}", "--set", f"launch.cores_per_rank={2 // ranks}",
               "--set", "device=cpu", "--", str(TOP / "build" / "tests" / "bench" / "library"), *map(str, words),
               str(result),
               *([str(text)] if text else [])]
    done = subprocess.run(command, cwd=TOP, env={**os.environ, **runs.MPI}, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"benchmark: {' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-3000:]}")
    measured = json.loads(result.read_text())
    shutil.rmtree(folder)
    return measured


def peer(script, *options, timeout=600):
    """Runs a peer script with this Python; it prints one JSON object as its last line."""
    command = [sys.executable, str(TOP / "tests" / "bench" / "peers" / script), *map(str, options)]
    done = subprocess.run(command, cwd=TOP, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"peer: {' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def spread(values):
    return f"{statistics.median(values):8.4g}  [{min(values):.4g} … {max(values):.4g}]"


def interleave(rounds, contestants, reference=None, expected=None, slower_is="more", retries=6, number=float):
    """Measures every contestant once a round; each round starts with the next contestant. A round in which the
    reference is slower than 0.75 of its known value is repeated, so that a slow peer wins nothing. `expected`: that
    value, or a function of the round's values if it depends on the machine's speed, or {name: value} for several
    references. `number`: converts what a contestant returns to the number that is compared and
    printed. Returns {name: [what it returned, per round]}."""
    measured = {name: [] for name in contestants}
    names = list(contestants)
    done = tried = 0
    while done < rounds:
        turn = tried % len(names)
        tried += 1
        returned = {name: contestants[name]() for name in names[turn:] + names[:turn]}
        this = {name: number(value) for name, value in returned.items()}
        if expected:
            figure = expected(this) if callable(expected) else expected
            wanted = figure if isinstance(figure, dict) else {reference: figure}
            slow = [name for name, known in wanted.items()
                    if (known / this[name] if slower_is == "more" else this[name] / known) < 0.75]
            if slow:
                shown = ", ".join(f"{name} at {this[name]:.4g}, expected {wanted[name]:.4g}" for name in slow)
                if retries == 0:
                    sys.exit(f"no figure: {shown}, and no round is left to repeat: run this on an idle machine")
                retries -= 1
                say(f"round repeated: {shown}: the machine was busy")
                continue
        done += 1
        for name, value in returned.items():
            measured[name].append(value)
        say(f"round {done}/{rounds}: " + "  ".join(f"{name} {this[name]:.4g}" for name in names))
    return measured


def pairs(count, measured, contestants, names):
    """Measures a few of the contestants `count` times more, back to back, and alternates the first one. A difference of
    a few percent needs more rounds than the others, and no contestant may always run second."""
    for number in range(count):
        order = names if number % 2 == 0 else names[::-1]
        this = {name: contestants[name]() for name in order}
        for name in names:
            measured[name].append(this[name])
        say(f"pair {number + 1}/{count}: " + "  ".join(f"{name} {this[name]:.4g}" for name in names))


def ratios(measured, name, reference):
    return [a / b for a, b in zip(measured[name], measured[reference])]


def median_ratio(measured, name, reference):
    return statistics.median(ratios(measured, name, reference))


def beside_known(measured, seconds):
    """Prints one line for each peer: its value here and its known value. `seconds`: {name: known value}."""
    for name, figure in seconds.items():
        say(f"{name}: {1000 * statistics.median(measured[name]):.0f} ms a step here, "
            f"{1000 * figure:.0f} ms known of two idle cores")


def check(label, value, gate, at_most=True, aim=None):
    ok = value <= gate if at_most else value >= gate
    sign = "≤" if at_most else "≥"
    goal = f", aim {aim}" if aim is not None else ""
    say(f"  {'ok  ' if ok else 'MISS'} {label}: {value:.3f} (gate {sign} {gate}{goal})")
    if CHECKS in os.environ:
        with open(os.environ[CHECKS], "a") as file:
            file.write(json.dumps({"label": label, "value": value, "gate": gate, "at_most": at_most, "aim": aim,
                                   "ok": ok}) + "\n")
    return ok


def table(measured, reference, unit):
    say(f"\n{'':28s}{unit}: median [min … max]      ratio to {reference}: median [min … max]")
    for name in measured:
        ratio = ratios(measured, name, reference)
        say(f"{name:28s}{spread(measured[name]):32s}      {spread(ratio)}")
