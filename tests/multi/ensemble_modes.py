"""`how: auto` of an ensemble: devices and model decide, and no clock. An early_stop metric that no evaluation
reports is refused before training."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "ensemble.yaml"
SETS = ["launch.cores_per_rank=1", "precision=fp64"]


def members(summary):
    return summary["metrics"]["loss"]["members"]


def close(a, b, tolerance=1e-11):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * max(1, abs(y)) for x, y in zip(a, b))


def check_shape(summary):
    taken, cores = summary["ways"]["taken"], {tuple(rank["cores"]) for rank in summary["ranks"]}
    ranks, processes = summary["world_size"], len({rank["pid"] for rank in summary["ranks"]})
    runs.check((ranks == 1) == (taken == "stacked"), f"{taken} has {ranks} ranks")
    runs.check(processes == (ranks if taken == "processes" else 1), f"{taken}: {summary['ranks']}")
    runs.check(len(cores) == ranks, f"{taken}: cores {cores}")


def refusals(folder):
    for metric, words in (("acuracy", ["loss, accuracy", "did you mean accuracy?"]),
                          ("vote_accuracy", ["no evaluation of a member reports", "loss, accuracy"])):
        sets = [f"strategy.early_stop={{patience: 1, metric: {metric}}}"]
        runs.refused(metric, 78, ["strategy.early_stop.metric", f"is {metric}", *words],
                     runs.command(CONFIG, folder / metric, sets), within=20)
        runs.check(not (folder / metric).exists(), f"{metric}: a run was started")
    runs.refused("no rows", 78, ["strategy.early_stop.metric", "no rows to evaluate on"],
                 runs.command(CONFIG, folder / "no", ["data.evaluate_rows=0", "strategy.early_stop.patience=1"]),
                 within=20)
    # With folds members are also evaluated on their held-out rows.
    folds = ["strategy.samples={folds: 4}", "strategy.how=stacked", "train.epochs=1"]
    watched = [*folds, "strategy.early_stop={patience: 1, metric: out_of_fold_accuracy}"]
    runs.run(CONFIG, folder / "folds", watched)


if len(os.sched_getaffinity(0)) < 2:
    print("skipped: one core has one execution mode")
    sys.exit(77)
with runs.workspace() as folder:
    refusals(folder)
    print("early_stop.metric: refused if no evaluation reports it")

    stacked = runs.run(CONFIG, folder / "stacked", [*SETS, "strategy.how=stacked"])
    runs.check("ways" not in stacked, f"nothing was left open: {stacked.get('ways')}")
    # The devices determine the mode, not a measurement. So no mode is tried, and an equal run chooses the same mode.
    done = runs.run(CONFIG, None, [*SETS, "name=auto"], cwd=folder)
    auto = runs.summary(folder / "runs" / "auto")
    runs.check(auto["ways"]["taken"] == "threads" and auto["ways"]["tried"] == [], f"auto: {auto['ways']}")
    runs.check("trying" not in done.stdout, f"an execution mode was tried:\n{done.stdout}")
    check_shape(auto)
    for rank in auto["ranks"]:
        runs.check(rank["ensemble"]["trained"] == "as one stack", f"rank {rank['rank']}: {rank['ensemble']}")
        runs.check(rank["ensemble"].get("seconds_per_pass", 0) is None, f"a field is gone: {rank['ensemble']}")
    runs.check(close(members(auto), members(stacked)), f"auto: {members(auto)}")

    convnet = runs.TOP / "configs" / "tiny" / "convnet.yaml"
    images = runs.run(convnet, folder / "images", ["strategy={name: ensemble, members: 3}", "train.max_steps=2",
                                                   "train.evaluate_every=never"], ranks=1)
    told = images["ranks"][0]["ensemble"]
    runs.check(told["trained"] == "side by side" and "convolutions" in told["because"], f"convolutions: {told}")

    # A resumed run keeps its number of ranks, on any number of cores.
    sets = ["precision=fp64", "train.checkpoint_every=5 steps"]
    cores = sorted(os.sched_getaffinity(0))[:2]
    for ranks, first, then in ((1, cores[:1], cores), (2, cores, cores[:1])):
        title = f"{ranks}-ranks"
        bound = [["taskset", "-c", ",".join(map(str, some))] for some in (first, then)]
        whole = runs.run(CONFIG, folder / f"whole-{title}", sets, under=bound[0])
        runs.run(CONFIG, folder / title, sets, inject=["kill@step=8"], expect=None, under=bound[0])
        moved = runs.run(CONFIG, folder / title, sets, under=bound[1])
        runs.check(whole["world_size"] == moved["world_size"] == ranks,
                   f"{title}: {moved['world_size']} after the resume")
        runs.check(close(members(moved), members(whole)), f"{title}: {members(moved)}, {members(whole)}")
        copied = runs.run(CONFIG, folder / f"from-{title}",
                          [*sets, f"train.resume={folder / title}", "train.epochs=30"], under=bound[1])
        runs.check(copied["world_size"] == ranks, f"{title}: {copied['world_size']} in a new folder")

    one = runs.run(CONFIG, folder / "one", [*SETS, "train.epochs=1"], ranks=1)["ways"]
    runs.check(one["taken"] == "stacked" and one["because"] == "there is one rank", f"one rank: {one}")
    gloo = runs.run(CONFIG, folder / "gloo", [*SETS, "train.epochs=1", "backend=gloo"])["ways"]
    runs.check(gloo["taken"] == "processes", f"gloo: {gloo}")
    under = runs.run(CONFIG, folder / "mpirun", [*SETS, "train.epochs=1"], under=["mpirun", "-n", "2"])["ways"]
    runs.check(under["taken"] == "processes" and under["tried"] == [], f"mpirun: {under}")
print("auto: devices and model decide, and a resumed run keeps its ranks")
