"""how: auto of an ensemble: the fastest of what was measured is taken, told, and kept by a run that goes on; and a figure that
early_stop watches is refused before anything is trained where no evaluation tells it."""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "ensemble.yaml"
SETS = ["launch.cores_per_rank=1", "precision=fp64"]
WAYS = ["stacked", "threads", "processes"]


def members(summary):
    return summary["metrics"]["loss"]["members"]


def close(a, b, tolerance=1e-11):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * max(1, abs(y)) for x, y in zip(a, b))


def check_fastest(ways):
    """The way that was taken is that of the least time of those that were measured."""
    measured = {way["way"]: way["seconds_per_step"] for way in ways["tried"] if "seconds_per_step" in way}
    for way in ways["tried"]:
        runs.check(("seconds_per_step" in way) != bool(way.get("left_out")), f"neither measured nor left out: {way}")
    runs.check(all(seconds > 0 for seconds in measured.values()), f"times: {measured}")
    runs.check(ways["taken"] == min(measured, key=measured.get), f"{ways['taken']} was taken of {measured}")
    return measured


def check_shape(summary):
    taken, cores = summary["ways"]["taken"], {tuple(rank["cores"]) for rank in summary["ranks"]}
    ranks, processes = summary["world_size"], len({rank["pid"] for rank in summary["ranks"]})
    runs.check((ranks == 1) == (taken == "stacked"), f"{taken} has {ranks} ranks")
    runs.check(processes == (ranks if taken == "processes" else 1), f"{taken}: {summary['ranks']}")
    runs.check(len(cores) == ranks, f"{taken}: cores {cores}")


def check_ranks(summary):
    """Each rank has kept the faster of a stack and members side by side, and tells both times."""
    for rank in summary["ranks"]:
        told = rank["ensemble"]
        seconds = told.get("seconds_per_pass")
        if told["members"] == 1:
            continue
        runs.check(told["trained"] == min(seconds, key=seconds.get), f"rank {rank['rank']}: {told}")


def refusals(folder):
    for metric, words in (("acuracy", ["loss, accuracy", "did you mean accuracy?"]),
                          ("vote_accuracy", ["no evaluation of a member tells that", "loss, accuracy"])):
        sets = [f"strategy.early_stop={{patience: 1, metric: {metric}}}"]
        runs.refused(metric, 78, ["strategy.early_stop.metric", f"is {metric}", *words],
                     runs.command(CONFIG, folder / metric, sets), within=20)
        runs.check(not (folder / metric).exists(), f"{metric}: a run was begun")
    runs.refused("no rows", 78, ["strategy.early_stop.metric", "no rows to evaluate on"],
                 runs.command(CONFIG, folder / "no", ["data.evaluate_rows=0", "strategy.early_stop.patience=1"]), within=20)
    # With folds members are judged on the rows that they have not seen, too.
    folds = ["strategy.samples={folds: 4}", "strategy.how=stacked", "train.epochs=1"]
    watched = [*folds, "strategy.early_stop={patience: 1, metric: out_of_fold_accuracy}"]
    runs.run(CONFIG, folder / "folds", watched)


if len(os.sched_getaffinity(0)) < 2:
    print("skipped: one core has one way")
    sys.exit(77)
with runs.workspace() as folder:
    refusals(folder)
    print("early_stop.metric: refused where no evaluation tells it")

    stacked = runs.run(CONFIG, folder / "stacked", [*SETS, "strategy.how=stacked"])
    runs.check("ways" not in stacked, f"nothing was left open: {stacked.get('ways')}")
    auto = runs.run(CONFIG, folder / "auto", SETS)
    measured = check_fastest(auto["ways"])
    runs.check(set(measured) == set(WAYS), f"cores have three ways, and {measured} were measured")
    check_shape(auto)
    check_ranks(auto)
    runs.check(close(members(auto), members(stacked)), f"{auto['ways']['taken']}: {members(auto)}")
    runs.check(json.loads((folder / "auto" / "ways.json").read_text()) == auto["ways"], "ways.json is another")
    runs.check(not (folder / "auto" / ".trial").exists(), "a trial was left behind")
    print("auto:", {way: f"{1e3 * seconds:.2f} ms" for way, seconds in measured.items()}, "→", auto["ways"]["taken"])

    # A run that goes on keeps its way, whichever would be the fastest now: here one that no measurement has chosen.
    sets = [*SETS, "train.checkpoint_every=5 steps"]
    runs.run(CONFIG, folder / "killed", sets, inject=["kill@step=8"], expect=None)
    choice = json.loads((folder / "killed" / "ways.json").read_text())
    check_fastest(choice)
    other = next(way for way in WAYS if way != choice["taken"])
    (folder / "killed" / "ways.json").write_text(json.dumps({**choice, "taken": other}))
    resumed = runs.run(CONFIG, folder / "killed", sets)
    runs.check(resumed["ways"] == {**choice, "taken": other}, f"measured again: {resumed['ways']}")
    check_shape(resumed)
    runs.check(close(members(resumed), members(stacked)), f"resumed: {members(resumed)}")
    print(f"resumed: {other} kept")

    # Where there is one way nothing is measured, which is told with the reason.
    one = runs.run(CONFIG, folder / "one", [*SETS, "train.epochs=1"], ranks=1)["ways"]
    runs.check(one["taken"] == "stacked" and "only way" in one["because"], f"one rank: {one}")
    runs.check([way.get("left_out", "") for way in one["tried"]][1:] == ["it is 1 rank in 1 process here, as stacked is"] * 2,
               f"one rank: {one}")
    told = runs.run(CONFIG, None, [*SETS, "train.epochs=1", "backend=gloo", f"name={folder.name}"], cwd=folder).stdout
    gloo = runs.summary(folder / "runs" / folder.name)["ways"]
    runs.check(set(check_fastest(gloo)) == {"stacked", "processes"}, f"gloo: {gloo}")
    line = next(line for line in told.splitlines() if "strategy.how: auto takes" in line)
    runs.check(f"auto takes {gloo['taken']}" in line and "threads not measured: " in line, line)
    print("told:", line)
    under = runs.run(CONFIG, folder / "mpirun", [*SETS, "train.epochs=1"], under=["mpirun", "-n", "2"])["ways"]
    runs.check(under["taken"] == "processes" and "mpirun" in under["because"] and under["tried"] == [], f"mpirun: {under}")
