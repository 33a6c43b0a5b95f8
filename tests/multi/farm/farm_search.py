"""Random search, successive halving and means over seeds: the outcome does not depend on slots or interruptions."""
# timeout: 240
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

COMMON = """\
name: search
device: cpu
model: {name: mlp, hidden: [32]}
data: {name: synthetic, kind: classification, rows: 2000, evaluate_rows: 500, features: [16], classes: 10}
optimizer: {name: adam, lr: 1.0e-3, schedule: cosine}
train: {epochs: 9, batch: {global: 64}}
log: {tensorboard: false}
strategy:
  name: independent
  cores: 1
  metric: accuracy
"""
SEARCH = """\
  search:
    random: 9
    over:
      optimizer.lr: {from: 1.0e-5, to: 1.0e-1, scale: log}
      model.hidden: [[32], [64]]
"""
HALVING = "  halving: {eta: 3, first: 1 epoch}\n"

THREE = """\
name: three
device: cpu
data: {name: synthetic, kind: classification, rows: 20000, evaluate_rows: 500, features: [64], classes: 3}
model: {name: mlp, hidden: [256, 256]}
optimizer: {name: sgd, lr: 1.0e-2}
train: {epochs: 3, batch: {global: 50}}
strategy:
  name: independent
  max_parallel: 1
  metric: accuracy
  pipelines: [{name: a}, {name: b}, {name: c}]
  halving: {eta: 3, first: 1 epoch}
"""

with runs.workspace() as folder:
    (folder / "search.yaml").write_text(COMMON + SEARCH + HALVING)
    (folder / "full.yaml").write_text(COMMON + SEARCH)

    def convoy(*line, code=0):
        done = subprocess.run([str(runs.CONVOY), *map(str, line)], cwd=folder, env=runs.environment(), text=True,
                              timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        runs.check(done.returncode == code, f"{line}: exit {done.returncode}, expected {code}: {done.stdout}")
        return done.stdout

    def outcome(name):
        """Returns leaderboard columns that must not depend on slots: place, stage, value, settings and others."""
        board = runs.summary(folder / name)["leaderboard"]
        return [(row["place"], row["pipeline"], row["status"], row.get("stage"), row["value"], row["epochs"],
                 row["grid"])
                for row in board["rows"]]

    text = convoy("run", "search.yaml", "--output", "two")
    rows = outcome("two")
    runs.check([row[2] for row in rows] == ["done"] + ["lost"] * 8, f"{rows}")
    runs.check([row[3] for row in rows] == [None, 2, 2, 1, 1, 1, 1, 1, 1], f"{rows}")
    runs.check([row[5] for row in rows] == [9, 3, 3, 1, 1, 1, 1, 1, 1], f"{rows}")
    runs.check("rung 1 of 2: 9 pipelines train to 1 epoch" in text and "lost: rung 2" in text, text)
    runs.check(len({json.dumps(row[6], sort_keys=True) for row in rows}) == 9, f"equal settings: {rows}")

    attempts = runs.summary(folder / "two" / "pipelines" / rows[0][1])["attempts"]
    runs.check([(one["paused"], one["checkpoint"] > 0) for one in attempts] == [(True, True)] * 2,
               f"pauses: {attempts}")

    convoy("run", "search.yaml", "--output", "one", "--set", "strategy.max_parallel=1")
    runs.check(outcome("one") == rows, f"another number of slots: {outcome('one')}\n{rows}")

    # A trial that went through all rungs equals one that trained without a pause, with the schedule of its whole
    # length.
    convoy("run", "full.yaml", "--output", "full")
    whole = {row[1]: row for row in outcome("full")}
    runs.check(whole[rows[0][1]][4] == rows[0][4], f"{whole[rows[0][1]]} {rows[0]}")
    convoy("compare", f"two/pipelines/{rows[0][1]}", f"full/pipelines/{rows[0][1]}")

    # A farm that is stopped or killed between rungs, and started again, gives the same result.
    for name, number in (("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)):
        with open(folder / "console", "w") as console:
            farm = subprocess.Popen([str(runs.CONVOY), "run", "search.yaml", "--output", name], cwd=folder,
                                    env=runs.environment(), stdout=console, stderr=subprocess.STDOUT)
        journal = folder / name / "journal.jsonl"
        runs.wait_for(lambda: journal.exists() and journal.read_text().count('"lost"') >= 6, 60, "a decided rung")
        farm.send_signal(number)
        farm.wait(60)
        runs.check(farm.returncode in (0, 143, -9), f"{name}: {farm.returncode}")
        if name == "killed":
            convoy("report", name, "-o", "killed.html")
            page = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', (folder / "killed.html").read_text(),
                                        re.S).group(1))
            # The two pipelines that ran may have stopped, since their farm ended.
            states = [row["status"] for row in page["farms"][0]["rows"]]
            runs.check("lost" in states and states.count("stopped") <= 2 and "failed" not in states,
                       f"{page['farms'][0]['rows']}")
            failed = [run for run in page["runs"] if "failure" in run and run["status"] != "stopped"]
            runs.check(not failed, f"a pause is no failure: {failed}")
        times = [json.loads(line)["time"] for line in journal.read_text().splitlines()]
        convoy("run", "search.yaml", "--output", name)
        seconds, before = runs.summary(folder / name)["train_seconds"], times[-1] - times[0]
        runs.check(seconds > before, f"{name}: the farm took {seconds} s, and its first part {before} s")
        runs.check(outcome(name) == rows, f"{name}: {outcome(name)}\n{rows}")

    # Grid and search together: each setting is trained with each seed, and their mean is reported.
    seeds = ["--set", "strategy.grid.seed=[1,2,3]", "--set", "strategy.search.random=2", "--set", "train.epochs=1"]
    text = convoy("run", "full.yaml", "--output", "seeds", *seeds)
    board = runs.summary(folder / "seeds")["leaderboard"]
    values = {}
    for row in board["rows"]:
        values.setdefault(row["grid"]["optimizer.lr"], []).append(row["value"])
    means = sorted((sum(each) / 3 for each in values.values()), reverse=True)
    runs.check([setting["runs"] for setting in board["settings"]] == [3, 3], f"{board['settings']}")
    runs.check(all(abs(setting["mean"] - mean) < 1e-12 for setting, mean in zip(board["settings"], means)),
               f"{board['settings']} {means}")
    runs.check("mean accuracy" in text and "deviation" in text, text)
    text = convoy("add", "seeds", "--set", "strategy.grid.seed=[4]")
    runs.check("2 pipelines added" in text, text)
    runs.check([s["runs"] for s in runs.summary(folder / "seeds")["leaderboard"]["settings"]] == [4, 4], "added seeds")

    # A trial that is cancelled at a rung takes no place from the others.
    (folder / "three.yaml").write_text(THREE)
    with open(folder / "console", "w") as console:
        farm = subprocess.Popen([str(runs.CONVOY), "run", "three.yaml", "--output", "three"], cwd=folder,
                                env=runs.environment(), stdout=console, stderr=subprocess.STDOUT)
    runs.wait_for(lambda: "b: starts" in (folder / "console").read_text(), 30, "the second trial")
    convoy("cancel", "three", "a")
    runs.check(farm.wait(60) == 0, f"{farm.returncode}")
    board = {row["pipeline"]: row["status"] for row in runs.summary(folder / "three")["leaderboard"]["rows"]}
    runs.check(board["a"] == "stopped" and sorted([board["b"], board["c"]]) == ["done", "lost"], f"{board}")

    # A cancelled pipeline stays cancelled when an interrupted farm starts again.
    slow = ["--set", "train.epochs=100000", "--set", "strategy.max_parallel=1", "--set", "strategy.search.random=3"]
    with open(folder / "console", "w") as console:
        farm = subprocess.Popen([str(runs.CONVOY), "run", "full.yaml", "--output", "cancelled", *slow], cwd=folder,
                                env=runs.environment(), stdout=console, stderr=subprocess.STDOUT)
    runs.training(folder / "cancelled" / "pipelines" / "trial-0")
    convoy("cancel", "cancelled", "trial-1")
    convoy("cancel", "cancelled", "trial-0")
    runs.training(folder / "cancelled" / "pipelines" / "trial-2")
    farm.send_signal(signal.SIGTERM)
    runs.check(farm.wait(60) == 143, f"{farm.returncode}")
    with open(folder / "console", "w") as console:
        farm = subprocess.Popen([str(runs.CONVOY), "run", "full.yaml", "--output", "cancelled", *slow], cwd=folder,
                                env=runs.environment(), stdout=console, stderr=subprocess.STDOUT)

    def started():
        lines = (folder / "cancelled" / "journal.jsonl").read_text().splitlines()
        return [json.loads(line)["pipeline"] for line in lines if '"started"' in line]

    runs.wait_for(lambda: len(started()) == 3, 60, "a start after the interruption")
    farm.send_signal(signal.SIGTERM)
    farm.wait(60)
    runs.check(started() == ["trial-0", "trial-2", "trial-2"], f"{started()}")

    # A mistake is reported within 3 s and creates no folder.
    for sets, words in {
            ("strategy.metric=~",): "strategy.halving: needs strategy.metric",
            ("strategy.metric=acuracy",): "did you mean accuracy?",
            ("strategy.halving.first=never",): "strategy.halving.first: is never",
            ("strategy.halving.eta=1",): "strategy.halving.eta: is 1, must be at least 2",
            ("strategy.search.over.optimizer.lr={from: 0, to: 1, scale: log}",): "must be above 0",
            ("strategy.search.over.optimizer.lrr=[1]",): "did you mean lr?",
            ("strategy.grid.optimizer.lr=[0.1]",): "is a key of strategy.grid too",
            ("strategy.search.random=0",): "strategy.search.random: is 0",
            ("strategy.search.random=10001",): "strategy.search.random: is 10001",
            ("strategy.search.random=1",): "has only one run",
            ("train.pause_after=5",): "did you mean 5 steps?",
    }.items():
        start = time.monotonic()
        text = convoy("run", "search.yaml", "--output", "wrong", *[w for s in sets for w in ("--set", s)], code=78)
        runs.check(words in text and time.monotonic() - start < 3 and not (folder / "wrong").exists(),
                   f"{sets}: {text}")
    text = convoy("add", "two", "--set", "strategy.grid.seed=[4]", code=64)
    runs.check("grid" in text, text)
