"""An ensemble through the launcher: every execution mode gives the same members, and each continues alone like
`single`."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "ensemble.yaml"
SETS = ["launch.cores_per_rank=1", "precision=fp64"]


def members(summary, name="loss"):
    return summary["metrics"][name]["members"]


def close(a, b, tolerance=1e-11):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * max(1, abs(y)) for x, y in zip(a, b))


with runs.workspace() as folder:
    summaries = {}
    for how, ranks in (("stacked", None), ("threads", 2), ("processes", 2), ("auto", None)):
        summaries[how] = runs.run(CONFIG, folder / how, [*SETS, f"strategy.how={how}"], ranks=ranks)
        figures = summaries[how]["metrics"]
        runs.check(len(members(summaries[how])) == 4, f"{how}: {figures['loss']}")
        runs.check({"mean_loss", "mean_accuracy", "vote_accuracy"} <= set(figures), f"{how}: {sorted(figures)}")
        runs.check(summaries[how]["samples"] == 4 * 2 * 500, f"{how}: {summaries[how]['samples']} samples")
        runs.check(close(members(summaries[how]), members(summaries["stacked"])), f"{how}: {members(summaries[how])}")
    print("stacked, threads, processes, auto: the same members")

    # Member 2 of the first epoch's checkpoint, loaded alone, ends with the state of the ensemble's member 2.
    first = folder / "stacked" / "checkpoints" / "step-13"
    runs.check(first.is_dir(), f"no {first}")
    rate = 1e-3 * 8 ** (2 / 3)
    alone = ["strategy={name: single}", "seed=3", "data.seed=1", f"optimizer.lr={rate!r}", *SETS]
    other = runs.run(CONFIG, folder / "resumed", [*alone, f"train.resume={first}@member2"])
    runs.check(close([other["metrics"]["loss"]["last"]], [members(summaries["stacked"])[2]]),
               f"resumed: {other['metrics']}")
    whole = runs.run(CONFIG, folder / "alone", alone)
    runs.check(close([whole["metrics"]["loss"]["last"]], [members(summaries["stacked"])[2]]),
               f"alone: {whole['metrics']}")
    print("member 2 alone, from its checkpoint and from the start: the same")

    # Without steps left the member is evaluated, and leaves an ordinary checkpoint. Settings that differ are reported.
    last = folder / "stacked"
    still = runs.run(CONFIG, folder / "still-alone", [*alone, f"train.resume={last}@member2"])
    runs.check(close([still["metrics"]["loss"]["last"]], [members(summaries["stacked"])[2]]),
               f"nothing left: {still['metrics']}")
    runs.check(runs.weights(folder / "still-alone"), "it left no checkpoint")
    again = runs.run(CONFIG, folder / "from-it", [*alone, f"train.resume={folder / 'still-alone'}", "train.epochs=3"])
    runs.check(again["steps"] == 3 * still["steps"] // 2, f"went on to step {again['steps']}")
    other = [*alone, "data.samples={how: bootstrap}", "optimizer.lr=0.5", f"train.resume={last}@member3", "name=other"]
    told = runs.run(CONFIG, None, other, cwd=folder).stdout
    for words in ("continues with another seed: 4 -> 3", "another optimizer.lr: 0.008", "-> 0.5", "data.samples"):
        runs.check(words in told, f"no '{words}' in\n{told}")
    # The seed makes these rows.
    runs.refused("a member with other data", 78,
                 ["another data.seed: 1 -> 2", "is not the data", "its contents differ"],
                 runs.command(CONFIG, folder / "other-data", [*alone, "data.seed=2", f"train.resume={last}@member2"]),
                 within=20)
    runs.refused("a missing member", 78, ["train.resume", "names member 4"],
                 runs.command(CONFIG, folder / "no", [*alone, f"train.resume={last}@member4"]))
    runs.refused("a member of a single model", 78, ["train.resume", "has no members"],
                 runs.command(CONFIG, folder / "no", [*alone, f"train.resume={folder / 'alone'}@member0"]))
    runs.check(not (folder / "no").exists(), "a folder was made although nothing started")
    runs.refused("all mistakes of an ensemble", 78,
                 ["strategy.samples: has a subset of 1.5", "strategy.lr: has 2 values", "2 mistakes"],
                 runs.command(CONFIG, folder / "no", [*SETS, "strategy.samples={subset: 1.5}", "strategy.lr=[1, 2]"]))
    print("no steps left: evaluated, and an ordinary checkpoint; other settings than the member's are reported")

    # The same members as pipelines of a farm, which isolates crashes: one crashes, and is retried.
    text = CONFIG.read_text().replace("strategy: {name: ensemble, members: 4, lr: {from: 1.0e-3, to: 8.0e-3, "
                                      "scale: log}}", "")
    runs.check("strategy" not in text, "configs/tiny/ensemble.yaml has another strategy now: mend the line above")
    (folder / "farm.yaml").write_text(
        text.replace("data: {", "data: {seed: 1, samples: {how: bootstrap}, ")
        + 'strategy: {name: independent, retries: 1, backoff: 0, names: "member-{seed}", grid: {seed: [1, 2, 3, 4]}}\n')
    apart = runs.run(folder / "farm.yaml", folder / "apart", SETS, inject=["member-2/kill@step=5"])
    attempts = {entry["name"]: entry["attempts"] for entry in apart["pipelines"]}
    runs.check(attempts == {"member-1": 1, "member-2": 2, "member-3": 1, "member-4": 1}, f"attempts: {attempts}")
    bagged = runs.run(CONFIG, folder / "bagged",
                      [*SETS, "strategy.lr=0.003", "strategy.samples=bootstrap", "strategy.how=stacked"])
    losses = [runs.summary(folder / "apart" / "pipelines" / name)["metrics"]["loss"]["last"]
              for name in sorted(attempts)]
    runs.check(close(losses, members(bagged)), f"as pipelines {losses}, as a stack {members(bagged)}")
    print("members as pipelines of a farm: equal results, and a crash affects one member only")
    # Their vote: the farm's checkpoints are the members of one ensemble, without steps left.
    bag = [*SETS, "strategy.lr=0.003", "strategy.samples=bootstrap", "strategy.how=stacked"]
    voted = runs.run(CONFIG, folder / "voted", [*bag, f"train.resume={folder / 'apart'}"], ranks=2)
    for name, figures in bagged["metrics"].items():
        runs.check(close([voted["metrics"][name]["last"]], [figures["last"]]),
                   f"{name} of the farm's vote: {voted['metrics'][name]}")
    runs.check(close(members(voted), members(bagged)), f"the farm's members: {members(voted)}")
    for sets, key, word in ((["strategy.members=3"], "train.resume",
                             "strategy.members = 3 conflicts with its 4 pipelines"),
                            (["model.hidden=[3]"], "model.hidden", "(for member 0) is of another model"),
                            (["strategy={name: single}"], "train.resume", "strategy.name=ensemble")):
        runs.refused(f"a farm's vote with {sets}", 78, [key, word],
                     runs.command(CONFIG, folder / "no", [*(bag if "single" not in sets[0] else SETS), *sets,
                                                          f"train.resume={folder / 'apart'}"]))
    moved = runs.run(CONFIG, None, [*bag, "seed=2", "data.seed=1", f"train.resume={folder / 'apart'}"],
                     cwd=folder).stdout
    runs.check("member-1 becomes member 0, with another seed: 1 -> 2" in moved, moved)
    print("the vote of a farm's pipelines: that of the same members trained together")

    lines = [json.loads(line) for line in (folder / "stacked" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "evaluate"][-1]
    runs.check(close(last["members"]["loss"], members(summaries["stacked"])), f"metrics.jsonl: {last}")

    # At learning rate 0 no member improves: they end at the second evaluation.
    still = runs.run(CONFIG, folder / "still",
                     [*SETS, "strategy.lr=0", "strategy.early_stop={patience: 1}", "train.epochs=9"])
    runs.check(still["steps"] == 26, f"early stop after {still['steps']} steps")
    print("early stop: ended when all members had")
    # After a resume with another patience, members end by the new patience and count earlier evaluations too. With
    # another metric the count starts again.
    on = [*SETS, "strategy.lr=0", f"train.resume={folder / 'still'}"]
    for sets, steps in ((["strategy.early_stop={patience: 1}"], 26), (["strategy.early_stop={patience: 2}"], 39),
                        (["strategy.early_stop={patience: 1, metric: accuracy}"], 52),
                        (["strategy.early_stop={patience: 0}"], 65)):
        ended = runs.run(CONFIG, folder / f"stop-{steps}", [*on, *sets, "train.epochs=5"])
        runs.check(ended["steps"] == steps, f"{sets}: ended after {ended['steps']} steps, expected {steps}")
    print("early stop: another patience or metric on resume")
