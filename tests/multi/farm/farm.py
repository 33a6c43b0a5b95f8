"""Several runs from one file: a grid alone and inside mpirun gives the same leaderboard; all mistakes are reported at
once, before the start; completed runs are never repeated."""
# timeout: 180
import csv
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

GRID = runs.TOP / "configs" / "grid.yaml"
SETS = ["train.epochs=1", "data.rows=2000", "data.evaluate_rows=200",
        "strategy.grid={optimizer.lr: [0.001, 0.01], seed: [1, 2]}", "strategy.names=lr{optimizer.lr}-seed{seed}"]
NAMES = ["lr0.001-seed1", "lr0.001-seed2", "lr0.01-seed1", "lr0.01-seed2"]


def board(summary):
    return [(row["place"], row["pipeline"], row["value"]) for row in summary["leaderboard"]["rows"]]


def look(title, output, console, slots):
    summary = runs.summary(output)
    runs.check(summary["status"] == "done" and summary["exit_code"] == 0 and summary["failure"] is None,
               f"{title}: {summary}")
    runs.check(summary["strategy"] == "independent" and summary["world_size"] == slots, f"{title}: {slots} slots")
    runs.check([entry["name"] for entry in summary["pipelines"]] == NAMES, f"{title}: {summary['pipelines']}")
    for entry in summary["pipelines"]:
        runs.check(entry["status"] == "done" and entry["attempts"] == 1 and entry["metrics"]["accuracy"]["last"] > 0,
                   f"{title}: {entry}")
        own = runs.summary(output / entry["folder"])
        runs.check(own["status"] == "done" and own["backend"] != "mpi" and len(own["ranks"][0]["cores"]) == 1,
                   f"{title}: {own['ranks']}")
    runs.check(summary["leaderboard"]["metric"] == "accuracy", f"{title}: {summary['leaderboard']['metric']}")
    values = [value for _, _, value in board(summary)]
    runs.check(values == sorted(values, reverse=True), f"{title}: leaderboard is not sorted: {values}")
    rows = (output / "leaderboard.csv").read_text().splitlines()
    runs.check(len(rows) == 1 + len(NAMES), f"{title}: leaderboard.csv: {rows}")
    runs.check(all(name in console for name in NAMES), f"{title}: the table is not printed\n{console}")
    hidden = [str(f) for f in output.rglob(".*")]
    runs.check(not hidden, f"{title}: left in the folder: {hidden}")
    events = [json.loads(line) for line in (output / "journal.jsonl").read_text().splitlines()]
    for name in NAMES:
        own = [line["event"] for line in events if line["pipeline"] == name]
        runs.check(own == ["queued", "started", "done"], f"{title}: journal of {name}: {own}")
    started = [line for line in events if line["event"] == "started"]
    runs.check({line["slot"] for line in started} == set(range(slots)),
               f"{title}: slots {[line['slot'] for line in started]}")
    return summary


def whole(title, output, under=()):
    line = runs.command(GRID, output, SETS, under=under)
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), timeout=120, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == 0, f"{title}: exit {done.returncode}\n{done.stdout[-3000:]}")
    return look(title, output, done.stdout, 2)


with runs.workspace() as folder:
    alone = whole("alone", folder / "alone", under=["taskset", "-c", "0,1"])
    inside = whole("under mpirun", folder / "mpirun", under=["mpirun", "-n", "2"])
    runs.check(board(alone) == board(inside), f"other leaderboards: {board(alone)}, {board(inside)}")
    unbound = whole("under mpirun, unbound", folder / "unbound", under=["mpirun", "-n", "2", "--bind-to", "none"])
    runs.check(board(alone) == board(unbound), f"other leaderboards: {board(alone)}, {board(unbound)}")

    before = (folder / "alone" / "summary.json").read_text()
    done = subprocess.run(runs.command(GRID, folder / "alone", SETS), cwd=runs.TOP, env=runs.environment(), timeout=60,
                          stdout=subprocess.PIPE, text=True)
    runs.check(done.returncode == 0 and "already done" in done.stdout, f"again: {done.returncode} {done.stdout}")
    runs.check((folder / "alone" / "summary.json").read_text() == before, "the summary was written again")
    runs.refused("another farm in that folder", 73, ["another"],
                 runs.command(GRID, folder / "alone", [*SETS, "optimizer.weight_decay=0.5"]))

    larger = [one.replace("seed: [1, 2]", "seed: [1, 2, 4]") for one in SETS]
    runs.refused("a larger grid in that folder", 73, [f"convoy add {folder / 'alone'} --set 'strategy.grid.seed=[4]'"],
                 runs.command(GRID, folder / "alone", larger))
    larger = ([one.replace("[0.001, 0.01]", "[0.001]") for one in SETS] +
              ["strategy.grid.optimizer.lr=[0.001, 0.01, 0.02]"])
    runs.refused("a larger grid by a key path", 73,
                 [f"convoy add {folder / 'alone'} --set 'strategy.grid.optimizer.lr=[0.02]'"],
                 runs.command(GRID, folder / "alone", larger))

    # A finished sweep grows; completed runs stay unchanged, byte by byte.
    def contents():
        return {path: path.read_bytes() for name in NAMES for path in (folder / "alone" / "pipelines" / name).rglob("*")
                if path.is_file()}

    def add(code, word, *sets):
        line = [str(runs.CONVOY), "add", str(folder / "alone"), *[item for one in sets for item in ("--set", one)]]
        done = subprocess.run(line, cwd=folder, env=runs.environment(), timeout=90, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        runs.check(done.returncode == code and word in done.stdout, f"{line}: exit {done.returncode}: {done.stdout}")

    done_before = contents()
    add(78, "is no key of this farm's grid", "strategy.grid.sede=[3]")
    add(78, "nothing was added", "strategy.grid.seed=[2]")
    add(64, "adds values to keys of the farm's grid only", "train.epochs=3")
    add(0, "2 pipelines added", "strategy.grid.seed=[3]")
    add(0, "3 pipelines added", "strategy.grid.optimizer.lr=[0.1]")
    runs.check(contents() == done_before, "a finished pipeline was touched")
    summary = runs.summary(folder / "alone")
    grown = [f"lr{lr}-seed{seed}" for lr in ("0.001", "0.01", "0.1") for seed in (1, 2, 3)]
    runs.check(summary["status"] == "done" and sorted(entry["name"] for entry in summary["pipelines"]) == grown,
               f"{summary['pipelines']}")
    with open(folder / "alone" / "leaderboard.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    runs.check(sorted((float(row["optimizer.lr"]), row["seed"], row["pipeline"]) for row in rows) ==
               sorted((float(name[2:-6]), name[-1], name) for name in grown), f"{rows}")
    done = subprocess.run(runs.command(GRID, folder / "alone", SETS), cwd=runs.TOP, env=runs.environment(), timeout=60,
                          stdout=subprocess.PIPE, text=True)
    runs.check(done.returncode == 0 and "already done" in done.stdout, f"again: {done.returncode} {done.stdout}")

    text = GRID.read_text().split("\n", 1)[1].split("strategy:")[0]  # without the line of the schema
    bad = folder / "bad.yaml"
    other = folder / "other.yaml"
    other.write_text("name: other\nmodel: {name: mlp, hiden: [4]}\n")
    bad.write_text(f"""{text}strategy:
  name: independent
  pipelines:
    - {{name: a, cores: [0], config: {{seed: one}}}}
    - {{name: a, cores: [0], priority: high}}
    - {{name: b, config: other.yaml}}
    - {{name: c, config: nowhere.yaml}}
""")
    expected = ["bad.yaml:12:44: seed: is 'one'", "strategy.pipelines.1.priority: is 'high'", "name: is 'a'", "line 12",
            "other.yaml:2:20: model.hiden: unknown key; did you mean hidden?", "nowhere.yaml: no such file", "mistakes"]
    runs.refused("bad pipelines", 78, expected, runs.command(bad, folder / "bad"))
    runs.refused("bad pipelines under mpirun", 78, expected,
                 runs.command(bad, folder / "bad", under=["mpirun", "-n", "2"]), within=10)
    bad.write_text(f"{text}strategy:\n  name: independent\n  pipelines:\n    - {{name: a, cores: [0]}}\n"
                   "    - {name: b, cores: [0]}\n    - {name: c, cores: [4000]}\n"
                   "    - {name: d, config: {launch: {ranks: 2}}}\n")
    runs.refused("cores given twice, and others", 78,
                 ["b.cores: gives core 0 also to a", "c.cores: names core 4000", "launch.ranks"],
                 runs.command(bad, folder / "bad"))
    bad.write_text(f"{text}strategy:\n  name: independent\n  pipelines:\n"
                   "    - {name: a, cores: [0], config: {trian: 1}}\n"
                   "    - {name: b, cores: [0], memory: 900 TB}\n"
                   "    - {name: c, config: {model: mpl, data: syntetic, optimizer: {name: adm}}}\n"
                   "    - {name: d, config: {data: {name: table, path: nowhere.csv}}}\n    - a text\n    - another\n")
    expected = ["bad.yaml:12:38: trian: unknown key", "b.cores: gives core 0 also to a", "b.memory: is",
                "model: unknown model 'mpl'", "data: unknown data 'syntetic'",
                "optimizer.name: unknown optimizer 'adm'", "nowhere.csv: no such file", "strategy.pipelines.4: must be",
                "strategy.pipelines.5: must be", "9 mistakes"]
    runs.refused("mistakes of every kind", 78, expected, runs.command(bad, folder / "bad"))
    del expected[2]  # the hosts' resources are unknown before the slots have joined
    runs.refused("the same under mpirun", 78, expected[:-1] + ["8 mistakes"],
                 runs.command(bad, folder / "bad", under=["mpirun", "-n", "2"]), within=10)

    expected = ["strategy.metric: is acuracy", "did you mean accuracy?"]
    runs.refused("an unknown metric", 78, expected,
                 runs.command(GRID, folder / "bad", [*SETS, "strategy.metric=acuracy"]), within=6)
    folds = [*SETS, "data.samples={how: folds, folds: 3}", "strategy.metric=out_of_fold_acuracy"]
    runs.refused("an unknown metric of held-out folds", 78, ["did you mean out_of_fold_accuracy?"],
                 runs.command(GRID, folder / "bad", folds), within=6)
    # This value conflicts only with the cluster, which is known once the slots have joined.
    runs.refused("more cores than there are, under mpirun", 78, ["cores: needs 4096"],
                 runs.command(GRID, folder / "bad", [*SETS, "strategy.cores=4096"], under=["mpirun", "-n", "2"]),
                 within=10)
    runs.check(not (folder / "bad").exists(), "a folder is left although nothing started")

    # Ten thousand pipelines, one of them wrong: reported within the time limit of one run.
    grid = "strategy.grid={optimizer.lr: [%s], seed: [%s]}" % (", ".join(f"0.{i:03}" for i in range(1, 101)),
                                                               ", ".join(map(str, range(100))))
    for title, values, words in (("a wrong value in a large grid", grid.replace(" 57,", " much,"), ["seed: is 'much'"]),
                                 ("what no host has in a large grid", grid, ["cores: needs 4096"])):
        line = runs.command(GRID, folder / "bad",
                            [values, "strategy.names=~"] + (["strategy.cores=4096"] if "host" in title else []))
        before = os.times()
        runs.refused(title, 78, words, line, within=10)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        # 1.1 s without other load on these cores.
        runs.check(used < 2.5, f"{title}: reported after {used:.2f} s of processor time")
    runs.refused("a key that the grid has", 78, ["--set seed=5: seed: has no effect", "strategy.grid.seed"],
                 runs.command(GRID, folder / "bad", [*SETS, "seed=5"]))

    many = "strategy.grid={seed: [%s], train.epochs: [%s]}" % (",".join(map(str, range(101))),
                                                               ",".join(map(str, range(1, 101))))
    runs.refused("too large a grid", 78, ["more than 10000"],
                 runs.command(GRID, folder / "bad", [many, "strategy.names=~"]))
    runs.refused("one run's option", 64, ["max_parallel"], runs.command(GRID, folder / "bad", SETS, ranks=2))
    runs.refused("a fault for no run", 64, ["lr0.001-seed1/kill"],
                 runs.command(GRID, folder / "bad", SETS, inject=["kill"]))
    runs.refused("explain looks at one run", 78,
                 ["describes several runs", "type --set strategy=single", "writes when it starts"],
                 [str(runs.CONVOY), "explain", str(GRID)])
    done = subprocess.run([str(runs.CONVOY), "explain", str(GRID), "--set", "strategy=single"], cwd=folder, text=True,
                               env=runs.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0 and "single on 1 rank" in done.stdout, done.stdout)
    runs.check(not (folder / "bad").exists(), "a folder was made although nothing started")

    # Folders of another user are reported before anything starts.
    for title, place, content, words in (
        ("a file in the place of the pipelines", "pipelines", "", ["pipelines: is no folder"]),
        ("a file in the place of the inbox", "inbox", "", ["inbox: is no folder"]),
        ("a file in the place of a pipeline", f"pipelines/{NAMES[1]}", "", [f"{NAMES[1]}: is no folder"]),
        ("a summary of somebody else's", f"pipelines/{NAMES[0]}/summary.json",
         '{"status": "failed", "failure": {"cause": 5}}', [f"{NAMES[0]}/summary.json: has a `failure.cause`"]),
    ):
        output = folder / title.replace(" ", "-")
        (output / place).parent.mkdir(parents=True)
        (output / place).write_text(content)
        runs.refused(title, 73, words, runs.command(GRID, output, SETS))
        runs.check((output / place).read_text() == content and not list(output.rglob("rank0.log")),
                   f"{title}: something started")
    print("one leaderboard alone and inside mpirun; all mistakes are reported at once")
