"""CPU time of event files, Prometheus' file, resources and the time breakdown, as a fraction of NCF's"""
# needs data: movielens
# The time breakdown has no switch. `--baseline BUILD` compares with a build of an earlier commit, which has neither the
# breakdown nor these files. Without `--baseline`, runs with and without the files are compared.
# On a virtual machine equal runs need up to a fifth more CPU time than the fastest one. So a round makes several short
# runs of each side in turn, and takes the lowest time of each side.
import pathlib
import resource
import shutil
import statistics
import sys
import tempfile

import harness

SETS = ["train.epochs=10", "train.evaluate_every=never", "train.checkpoint_every=never", "launch.cores_per_rank=1",
        "backend=gloo"]
RUNS = 8  # of either side in a round


def measured(convoy, sets, ranks):
    """CPU seconds of one run with all its processes, by rusage."""
    def measure():
        folder = pathlib.Path(tempfile.mkdtemp(prefix="convoy-bench-"))
        overrides = [*SETS, f"strategy.name={'ddp' if ranks > 1 else 'single'}",
                     *(text.format(folder=folder) for text in sets)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        harness.convoy_run(convoy, "configs/ncf_ddp.yaml", folder / "run", overrides, ranks)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        shutil.rmtree(folder)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return measure


if __name__ == "__main__":
    parser = harness.arguments(__doc__, rounds=5)
    parser.add_argument("--baseline", help="build folder of an earlier commit")
    parser.add_argument("--ranks", type=int, default=2,
                        help="a rank alone does not wait for cores that others use (default %(default)s)")
    options = parser.parse_args()
    off = ((pathlib.Path(options.baseline) / "convoy", []) if options.baseline else
           (harness.CONVOY, ["log.tensorboard=false"]))
    contestants = {
        "on": measured(harness.CONVOY, ["log.prometheus={folder}/ncf.prom"], options.ranks),
        "off": measured(*off, options.ranks),
    }
    seconds = {name: [] for name in contestants}
    for number in range(options.rounds):
        runs = {name: [] for name in contestants}
        for run in range(RUNS):
            for name in sorted(contestants, reverse=run % 2 == 0):
                runs[name].append(contestants[name]())
        for name, values in runs.items():
            seconds[name].append(min(values))
        harness.say(f"round {number + 1}/{options.rounds}: " + "  ".join(
            f"{name} {min(values):.2f} (to {max(values):.2f})" for name, values in runs.items()))
    ratios = [on / without for on, without in zip(seconds["on"], seconds["off"])]
    for name, values in seconds.items():
        harness.say(f"{name}: {statistics.median(values):.2f} s of CPU time, {min(values):.2f} to {max(values):.2f}")
    harness.say(f"ratio of each round: {', '.join(f'{ratio:.4f}' for ratio in ratios)}; "
                f"spread {max(ratios) - min(ratios):.4f}")
    ok = harness.check("added CPU time, percent", 100 * (statistics.median(ratios) - 1), 1.0)
    sys.exit(0 if ok else 1)
