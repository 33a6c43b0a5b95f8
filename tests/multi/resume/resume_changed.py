"""Resuming with other settings: what continues and is reported, what is refused, and leftovers of an interruption."""
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

MLP = runs.TOP / "configs" / "tiny" / "mlp.yaml"
NCF = runs.TOP / "configs" / "tiny" / "ncf.yaml"
ONE = ["strategy={name: single}", "launch={ranks: 1, cores_per_rank: 1}"]


def console_of(config, folder, sets, words, expect=0, **more):
    """Runs and returns the console, which must contain each of `words`."""
    done = runs.subprocess.run(runs.command(config, folder, sets, **more), cwd=runs.TOP, env=runs.environment(),
                               timeout=60, stdout=runs.subprocess.PIPE, stderr=runs.subprocess.STDOUT, text=True)
    runs.check(done.returncode == expect, f"{sets}: exit {done.returncode}, expected {expect}\n{done.stdout}")
    for word in words:
        runs.check(word in done.stdout, f"{sets}: no '{word}' in\n{done.stdout}")
    return done.stdout


def by_path(work):
    base = runs.run(MLP, work / "base", [*ONE, "optimizer.schedule={name: cosine}", "data.prefetch=2", "device=auto"])
    steps = base["steps"]
    on = [*ONE, f"train.resume={work / 'base'}", "train.epochs=3"]
    cosine = "optimizer.schedule={name: cosine}"
    text = console_of(MLP, work / "other",
                      [*on, cosine, "device=cpu", "precision=bf16", "data.prefetch=0", "train.evaluate_every=5 steps",
                       "optimizer.lr=0.01", "optimizer.clip_norm=1", "model.dropout=0.25"],
                      ["train.epochs: 2 -> 3", "device: auto -> cpu", "precision: fp32 -> bf16",
                       "data.prefetch: 2 -> 0", "optimizer.clip_norm: none -> 1.0", "model.dropout: 0.0 -> 0.25",
                       "-> 5 steps", "optimizer.lr: ", f"at step {steps}", "the learning rate goes from 0 to "])
    log = (work / "other" / "logs" / "rank0.log").read_text()
    runs.check("model.dropout: 0.0 -> 0.25" in log, f"the log does not report: {log}")
    runs.check(runs.summary(work / "other")["steps"] == 3 * steps // 2, text)
    # If only the length is new, the message shows how to keep the learning rate.
    console_of(MLP, work / "longer", [*on, cosine],
               ["the schedule cosine depends on the length", "To avoid it, keep the length"])
    # 13 steps of 40 rows an epoch are 7 of 80.
    console_of(MLP, work / "batch", [*on, cosine, "train.batch.global=80", "train.log_every=1"],
         ["train.batch.global: 40 -> 80", f"step {steps} of the checkpoint is step 14 of 21"])
    runs.check(runs.summary(work / "batch")["steps"] == 21, "another batch size")
    rate = runs.records(work / "batch", "train")[0]["learning_rate"]
    runs.check(abs(rate - 0.003 * (1 + math.cos(math.pi * 14 / 21)) / 2) < 1e-9, f"the schedule continues at {rate}")
    # An update of two steps: the schedule counts updates, so it continues at 14 of 21 as well.
    ddp = ["strategy={name: ddp, sync: {every: 2}}", ONE[1]]
    console_of(MLP, work / "every", [*ddp, *on[2:], cosine, "train.log_every=1"], ["strategy.sync.every"])
    rate = runs.records(work / "every", "train")[-1]["learning_rate"]
    runs.check(abs(rate - 0.003 * (1 + math.cos(math.pi * 20 / 21)) / 2) < 1e-9,
               f"the last update of every two steps: {rate}")
    # A state that cannot be used.
    for sets, words in ((["model.hidden=[5]"], ["model.hidden", "another model"]),
                        (["data.features=[9]"], ["data: is not the data that", "its contents differ"])):
        console_of(MLP, work / "no", [*on, *sets], words, expect=78)
    ensemble = ["strategy={name: ensemble, members: 2}", ONE[1], "train.epochs=1"]
    runs.run(MLP, work / "members", ensemble)
    console_of(MLP, work / "no",
               [*ensemble, f"train.resume={work / 'members'}", "train.epochs=2", "strategy.members=3"],
               ["strategy.members: members = 3 conflicts with the state in", "members = 2"], expect=78)
    ncf = runs.run(NCF, work / "ncf", [*ONE, "train.epochs=1"])
    console_of(NCF, work / "ncf-again", [*ONE, f"train.resume={work / 'ncf'}", "train.epochs=1", "data.candidates=20"],
               ["data.candidates: 50 -> 20", f"nothing is left to train after step {ncf['steps']}",
                "done: nothing was left to train"])
    print("by path: differences are reported, mismatches are refused")


OPTIMIZERS = {"adam": "optimizer={name: adamw, lr: 0.003}",
              "momentum": "optimizer={name: sgd, lr: 0.01, momentum: 0.9}", "plain": "optimizer={name: sgd, lr: 0.01}",
              "adagrad": "optimizer={name: adagrad, lr: 0.01}"}
MOMENTS = {"adam": "exp_avg, exp_avg_sq", "momentum": "momentum", "plain": "", "adagrad": "sum"}


def optimizers(work):
    """Moments of another optimizer start at zero or are ignored, in every layout; both are reported."""
    cores = "launch.cores_per_rank=1"
    layouts = {"one": (MLP, ONE, 1,
                       ["adam momentum", "adam plain", "momentum adam", "plain momentum", "plain adagrad"]),
               "shards": (MLP, ["strategy={name: fsdp}", cores], 2, ["adam momentum", "momentum adam"]),
               "optimizer-shards": (MLP, ["strategy={name: fsdp, shard: optimizer}", cores], 2, ["momentum adam"]),
               "averages": (MLP, ["strategy={name: ddp, sync: {every: 4, what: parameters}}", cores], 2,
                            ["momentum adam"]),
               "rows": (NCF, ["strategy={name: ddp}", "model.rows=sharded", cores], 2, ["momentum adam"]),
               "members": (MLP, ["strategy={name: ensemble, members: 2, how: stacked}", cores], 1, ["momentum adam"])}
    for name, (config, sets, ranks, pairs) in layouts.items():
        for before, after in map(str.split, pairs):
            folder = work / f"{name}-{before}"
            if not folder.exists():
                runs.run(config, folder, [*sets, OPTIMIZERS[before], "train.epochs=1", "train.evaluate_every=never"],
                         ranks=ranks)
            words = []
            if MOMENTS[after]:
                words.append(f"has no {MOMENTS[after]}, which start at zero")
            if MOMENTS[before]:
                words.append(f"optimizer: {MOMENTS[before]} of {folder}")
            text = console_of(config, work / f"{name}-{before}-{after}",
                        [*sets, OPTIMIZERS[after], "train.epochs=2", f"train.resume={folder}"], words, ranks=ranks)
            runs.check("went their own ways" not in text, f"{name}: copies are of these ranks\n{text}")
    # The count of updates starts again, but the schedule continues: in the first start, and after a kill.
    sets = [*ONE, "optimizer={name: adam, lr: 0.003, schedule: {name: cosine}}", "train.log_every=1",
            "train.checkpoint_every=4 steps", f"train.resume={work / 'one-momentum'}"]
    console_of(MLP, work / "schedule", sets, [], expect=137, inject=["kill@step=20"])
    console_of(MLP, work / "schedule", sets, [])
    rates = {record["step"]: record["learning_rate"] for record in runs.records(work / "schedule", "train")}
    runs.check(min(rates) == 14 and max(rates) == 26, f"steps {sorted(rates)}")
    for step, rate in rates.items():
        expected = 0.003 * (1 + math.cos(math.pi * (step - 1) / 26)) / 2
        runs.check(abs(rate - expected) < 1e-9, f"step {step}: rate {rate}, expected {expected}")
    print("optimizers: moments that start at zero or are left out are reported; the schedule continues")


def nothing_left(work):
    two = runs.run(MLP, work / "two", ["strategy={name: fsdp}", "launch.cores_per_rank=1"], ranks=2)
    runs.check(len(runs.weights(work / "two")) == 2, "fsdp writes a file for each rank")
    merged = runs.run(MLP, work / "merged", [*ONE, f"train.resume={work / 'two'}", "train.checkpoint_every=never"])
    runs.check(len(runs.weights(work / "merged")) == 1, f"shards were not merged: {runs.weights(work / 'merged')}")
    before, now = two["metrics"]["loss"]["last"], merged["metrics"]["loss"]["last"]
    runs.check(abs(before - now) < 1e-5, f"evaluated anew: {before}, {now}")
    print("nothing left: evaluated and saved in the new layout")


def automatic(work):
    sets = [*ONE, "train.checkpoint_every=5 steps", "train.log_every=1", "device=auto"]
    folder = work / "killed"
    console_of(MLP, folder, sets, ["injected"], expect=137, inject=["kill@step=18"])
    steps = [record["step"] for record in runs.records(folder, "train")]
    runs.check(steps[-1] > 15, f"killed too early: {steps}")
    text = console_of(MLP, folder, [*sets, "optimizer.lr=0.5", "seed=9"],
                      ["--set optimizer.lr=0.5: optimizer.lr: 0.003 -> 0.5", "seed: 1 -> 9",
                       f"--set train.resume={folder} --output {folder}-2"], expect=73)
    runs.check("--set seed=9" in text, text)
    (folder / "summary.json").write_text("")
    console_of(MLP, folder, [*sets, "device=cpu"], ["summary.json is empty or damaged", "step-15", "resumes from"])
    steps = [record["step"] for record in runs.records(folder, "train")]
    runs.check(steps == list(range(1, 27)), f"metrics.jsonl has steps {steps}")
    console_of(MLP, folder, [*sets, "device=cpu"], ["already done", "--set train.epochs=4"])
    print("automatic: 73 with all differences; no step twice; a summary that was lost")


def length(work):
    runs.run(MLP, work / "steps", [*ONE, "train.epochs=~", "train.max_steps=40"])
    runs.check(runs.summary(work / "steps")["steps"] == 40, "max_steps alone")
    console_of(MLP, work / "both", [*ONE, "train.max_steps=40"], ["train.epochs, 2, ends this run after 26 steps"])
    name = f"name={work.name}"
    for words in ([], [f"{work.name} is done", "--set train.epochs=4", f"train.resume=runs/{work.name}"]):
        done = runs.run(MLP, None, [*ONE, name], cwd=work).stdout
        runs.check(all(word in done for word in words), f"no {words} in\n{done}")
    runs.run(MLP, None, [*ONE, name, "train.epochs=4", f"train.resume=runs/{work.name}"], cwd=work)
    runs.check(runs.summary(work / "runs" / f"{work.name}-3")["steps"] == 52, "more epochs")
    # An older version trained one epoch also if max_steps was given; its run ends as it began.
    old = [*ONE, "train.max_steps=40", "train.checkpoint_every=5 steps"]
    console_of(MLP, work / "old", [*old, "train.epochs=1"], ["injected"], expect=137, inject=["kill@step=8"])
    config = work / "by-steps.yaml"
    config.write_text(MLP.read_text().replace("epochs: 2, ", ""))
    console_of(config, work / "old", old, ["train.epochs stays 1"])
    runs.check(runs.summary(work / "old")["steps"] == 13,
               f"an old run continued to step {runs.summary(work / 'old')['steps']}")
    runs.check(runs.summary(work / "old")["config"]["train"]["epochs"] == 1, "the epochs were not kept")
    console_of(config, work / "old", old, ["already done"])
    # The same command without a length continues with that of the folder.
    often = [*ONE, "train.checkpoint_every=5 steps"]
    for name, given, steps in (("epochs", "train.epochs=3", 39), ("limit", "train.max_steps=20", 20)):
        console_of(config, work / name, [*often, given], ["injected"], expect=137, inject=["kill@step=8"])
        console_of(config, work / name, often, [f"{given.replace('=', ' stays ')}, as this run began"])
        runs.check(runs.summary(work / name)["steps"] == steps, f"{given}: {runs.summary(work / name)['steps']} steps")
        console_of(config, work / name, often, ["already done"])
    console_of(MLP, work / "same", [*ONE, "train.max_steps=26"], ["train.max_steps both end this run after 26 steps"])
    print("length: max_steps alone, both, more epochs of a finished run")


with runs.workspace() as work:
    by_path(work)
    optimizers(work)
    nothing_left(work)
    automatic(work)
    length(work)
