"""Bagging on Fashion-MNIST: the vote reaches its stated accuracy for any division of the members; one fold alone equals
that member."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "bagging_fashion.yaml"
EPOCH = ["train.epochs=1", "train.checkpoint_every=never", "device=cpu"]
SHORT = [*EPOCH, "train.max_steps=60", "precision=fp64", "launch.cores_per_rank=1"]
FOLDS = 5


def close(a, b, tolerance=1e-9):
    return abs(a - b) <= tolerance * max(1, abs(b))


def one_epoch(folder):
    ways = {}
    for how, ranks in (("stacked", 1), ("threads", 2), ("processes", 2)):
        figures = runs.run(CONFIG, folder / how, [*EPOCH, f"strategy.how={how}"], ranks=ranks)
        metrics = ways[how] = figures["metrics"]
        runs.check(figures["samples"] == 10 * 60000, f"{how}: {figures['samples']} member-samples")
        runs.check(metrics["vote_accuracy"]["last"] >= 0.83, f"{how}: {metrics['vote_accuracy']}")
        members = metrics["accuracy"]["members"]
        runs.check(len(members) == 10 and metrics["vote_accuracy"]["last"] > sum(members) / 10, f"{how}: {metrics}")
        for mine, stacked in zip(members, ways["stacked"]["accuracy"]["members"]):
            runs.check(abs(mine - stacked) <= 0.005, f"{how}: a member is right for {mine}, stacked for {stacked}")
    print("one epoch:", {how: metrics["vote_accuracy"]["last"] for how, metrics in ways.items()})


def folds(folder):
    together = runs.run(CONFIG, folder / "folds",
                        [*SHORT, f"strategy.members={FOLDS}", f"strategy.samples={{folds: {FOLDS}}}"], ranks=2)
    held_out = together["metrics"]["out_of_fold_accuracy"]
    runs.check(len(held_out["members"]) == FOLDS and close(held_out["last"], sum(held_out["members"]) / FOLDS),
               held_out)
    # Fold 3 with the seed of member 3, alone; and again with floats instead of bytes.
    for name, more in (("fold", []), ("floats", ["data.bytes=false"])):
        alone = runs.run(CONFIG, folder / name, [*SHORT, "strategy={name: single}", "seed=4", "data.seed=1", *more,
                                                 f"data.samples={{how: folds, folds: {FOLDS}, fold: 3}}"])
        for metric in ("loss", "accuracy", "out_of_fold_loss", "out_of_fold_accuracy"):
            here, there = alone["metrics"][metric]["last"], together["metrics"][metric]["members"][3]
            runs.check(close(here, there), f"{name}, {metric}: {here} alone, {there} among others")
        runs.check(alone["samples"] == 60 * 128, f"{alone['samples']} samples")
    print("out of fold:", held_out["members"])


def refusals(folder):
    for sets, words in ((["data.samples.how=bootstrap"], "strategy.samples"),
                        (["strategy.samples={folds: 11}"], "folds"),
                        (["strategy={name: single}", "data.samples={how: folds, folds: 3, fold: 3}"],
                         "data.samples.fold")):
        done = runs.run(CONFIG, None, [*SHORT, *sets], expect=78)
        runs.check(words in done.stdout, f"{sets}: {done.stdout}")


if not pathlib.Path("/usr/share/datasets/fashion-mnist").is_dir():
    print("skipped: dataset-fashion-mnist is not installed")
    sys.exit(77)
with runs.workspace() as folder:
    refusals(folder)
    folds(folder)
    one_epoch(folder)
