"""Mistakes with trained runs: one message, once, with one exit code for each kind; the file that the user asked for is
named, and nothing half-written remains."""
import json
import os
import pathlib
import resource
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

TABLE = """
name: table
seed: 1
device: cpu
model: {{name: mlp, hidden: [8]}}
data: {{name: table, path: {folder}/train.csv, target: kind, scale: standard, categorical: [word]}}
optimizer: {{name: adam, lr: 0.02}}
train: {{epochs: 2, batch: {{global: 20}}, checkpoint_every: 1 epoch, evaluate_every: never}}
strategy: {{name: single}}
"""
VISITS = """
name: visits
seed: 1
device: cpu
model: {{name: ncf, gmf_dim: 4, mlp_dim: 4, hidden: [8]}}
data: {{name: interactions, path: {folder}/visits.csv, candidates: 5, columns: {{user: who, item: what, time: at}}}}
optimizer: {{name: adam, lr: 0.02}}
train: {{epochs: 1, batch: {{global: 500}}, evaluate_every: never}}
strategy: {{name: single}}
"""
MOST_BYTES = 2 << 20  # above what the run folder needs


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))


def convoy(*words, limited=False):
    return subprocess.run([str(runs.CONVOY), *map(str, words)], cwd=runs.TOP, env=runs.environment(), timeout=60,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          preexec_fn=limit_files if limited else None)


def refused(code, needed, *words, limited=False):
    """One line, with each of `needed`, and without a time, a rank's label or a repeated beginning."""
    done = convoy(*words, limited=limited)
    said = done.stdout.strip()
    title = f"convoy {' '.join(map(str, words))}\n{said}\n"
    runs.check(done.returncode == code, f"{title}exit {done.returncode}, expected {code}")
    runs.check(len(said.splitlines()) == 1, f"{title}not one line")
    for word in needed:
        runs.check(word in said, f"{title}no '{word}'")
    for word in (" | ", "error:", ".tmp-"):
        runs.check(word not in said, f"{title}has '{word}'")
    start = f"convoy {words[0]}:"
    runs.check(said.count(start) <= 1, f"{title}has '{start}' twice")


def write_array(path, rows):
    """A float32 .npy of rows with two columns."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(rows)}, 2), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header +
                     b"".join(struct.pack("<2f", *row) for row in rows))


with runs.workspace() as work:
    (work / "train.csv").write_text("big,word,kind\n" + "".join(
        f"{5000 + i % 20},{'ab'[i % 2]},{'high' if i % 20 > 9 else 'low'}\n" for i in range(200)))
    (work / "visits.csv").write_text("who,what,at\n" + "".join(
        f"u{u},i{(u * 7 + t * 3) % 400},{t}\n" for u in range(3000) for t in range(8)))
    (work / "other.csv").write_text((work / "train.csv").read_text())
    table, visits = work / "table", work / "visits"
    for run, config in ((table, TABLE), (visits, VISITS)):
        (work / "run.yaml").write_text(config.format(folder=work))
        runs.run(work / "run.yaml", run)
    rows, out, none = work / "rows.csv", work / "out.csv", work / "none"
    rows.write_text("big,word\n" + "5001,a\n" * 300000)
    predict = ["predict", table, "--data", rows, "--to"]

    # A missing file in an option ends with 64, and an output that cannot be written with 73.
    refused(64, ["none does not exist", "convoy runs"], "predict", none, "--data", rows, "--to", out)
    refused(64, [f"--data {none}: no such file"], "predict", table, "--data", none, "--to", out)
    refused(64, ["is a folder"], "predict", table, "--data", work, "--to", out)
    refused(64, [f"--users {none}: no such file"], "recommend", visits, "--to", out, "--users", none)
    refused(64, [f"FILES {none}: no such file"], "vocabulary", none, "--size", 300, "--to", work / "t.json")
    refused(64, ["no file matches"], "vocabulary", f"{none}*", "--size", 300, "--to", work / "t.json")
    refused(64, [f"--topology {none}: no such file"], "explain", work / "run.yaml", "--topology", none)
    refused(64, [f"--calibration {none}: no such file"], "explain", work / "run.yaml", "--calibration", none)
    refused(64, [f"--against {none}: no such folder"], "verify", work / "run.yaml", "--against", none)
    for line in ([*predict], ["recommend", visits, "--to"]):
        refused(73, ["mkdir -p"], *line, none / "out.csv")
        refused(64, [".csv, ", ".npy"], *line, work / "out.parquet")
    refused(64, [".safetensors"], *predict, work / "out.parquet")
    runs.check("safetensors" not in convoy("recommend", visits, "--to", work / "o.parquet").stdout,
               "recommend writes no safetensors")

    # --force replaces an earlier result, never what the command reads.
    ids = work / "ids.csv"
    ids.write_text("who\nu5\n")
    os.link(work / "visits.csv", work / "link.csv")
    for path, line in ((ids, ["recommend", visits, "--users", ids]), (work / "visits.csv", ["recommend", visits]),
                       (work / "link.csv", ["recommend", visits]), (visits / "metrics.jsonl", ["recommend", visits]),
                       (runs.newest_checkpoint(table) / "rank-0.safetensors", ["predict", table, "--data", rows]),
                       (rows, ["predict", table, "--data", rows])):
        content = path.read_bytes()
        refused(64, ["choose another"], *line, "--to", path, "--force")
        runs.check(path.read_bytes() == content, f"{path} was changed")

    # Parts of a run may be links to another disk.
    disk, step = work / "disk", runs.newest_checkpoint(visits)
    disk.mkdir()
    step.rename(disk / step.name)
    step.symlink_to(disk / step.name)
    (visits / "logs").rename(disk / "logs")
    (visits / "logs").symlink_to(disk / "logs")
    for kept in (step / "old.csv", disk / step.name / "old.csv", visits / "logs" / "old.csv", visits / "..old.csv"):
        kept.write_text("kept")
        for run in (visits, f"{visits}@{step.name}", step):
            refused(64, ["is a file of the run"], "recommend", run, "--to", kept, "--force")
        runs.check(kept.read_text() == "kept", f"{kept} was changed")
    out.write_text("an earlier result")
    done = convoy("recommend", visits, "--to", out, "--force")
    runs.check(done.returncode == 0 and out.read_text().startswith("who,"), f"{done.stdout}{done.stderr}")
    out.unlink()

    # Failures of ranks.
    refused(78, ["convoy generate: model mlp does not generate text"], "generate", table, "--prompt", "x")
    refused(78, ["nothing to recommend"], "recommend", table, "--to", out)
    bad = work / "bad.csv"
    bad.write_text("big,word\n5001,z\n")
    refused(65, ["bad.csv:2:6: category 'z'", "--unknown skip"], "predict", table, "--data", bad, "--to", out)

    # --set of what has no effect, and of rows that the run has trained on.
    for key in ("data.scale=none", "data.path=other.csv", "data.evaluate.fraction=0.5", "data.seed=3"):
        refused(64, [f"--set {key}: has no effect", "columns.item"], *predict, out, "--set", key)
    refused(64, ["--set data.length=8: has no effect", "only unknown"], "generate", table, "--prompt", "x",
            "--set", "data.length=8")
    refused(64, ["launch.ranks=2: has no effect on convoy predict"], *predict, out, "--set", "launch.ranks=2")
    refused(64, ["train.batch.global=3: has no effect: convoy predict does not train"], *predict, out, "--set",
            "train.batch.global=3")
    refused(64, ["strategy.name=ddp: has no effect: convoy predict uses the whole model"], *predict, out, "--set",
            "strategy.name=ddp")
    for key in ("train.log_every=1", "train.keep_last=1", "profile.steps=1", "model.init_from=x"):
        refused(64, [f"--set {key}: has no effect: convoy evaluate does not train"], "evaluate", table, "--set", key)
    for key in ("launch.ranks=1", "launch={ranks: 1}"):
        refused(64, ["launch.ranks=1: has no effect on convoy evaluate; type --ranks 1"], "evaluate", table,
                "--set", key)
    for key in ("seed=9", "data.seed=9", "data.evaluate.fraction=0.5", "data.evaluate={fraction: 0.5}",
                "data.samples={how: folds, folds: 4}"):
        refused(64, [f"--set {key}: holds out other rows than the training did"], "evaluate", table, "--set", key)
    refused(64, ["--set data.evaluate.fraction=0.5: holds out other rows"], "evaluate", table, "--set", "data.seed=1",
            "--set", "data.evaluate.fraction=0.5")
    for same in ("data.evaluate.fraction=0.05", "data.seed=1", "seed=1", f"data.evaluate.path={work}/train.csv"):
        done = convoy("evaluate", table, "--set", same)
        runs.check(done.returncode == 0 and "(held-out)" in done.stdout, f"--set {same}: {done.stdout}")
    runs.check(convoy("evaluate", table, "--set", "seed=9", "--split", "all").returncode == 0,
               "all rows, by another seed")

    # Other rows, by the file of the evaluation and by that of the training.
    runs.run(work / "run.yaml", work / "drawn", ["data.holdout=random"])
    done = convoy("evaluate", work / "drawn", "--set", f"data.path={work}/link.csv")
    runs.check(done.returncode == 0 and "(held-out)" in done.stdout, f"other interactions: {done.stdout}")
    other = work / "other.csv"
    done = convoy("evaluate", table, "--json", "--set", f"data.path={other}", "--set", f"data.evaluate.path={other}")
    runs.check(done.returncode == 0 and json.loads(done.stdout)["rows"] == 200, f"each row once: {done.stdout}")
    (work / "run.yaml").write_text(TABLE.format(folder=work))
    runs.run(work / "run.yaml", work / "own", [f"data.evaluate.path={work}/train.csv"])
    own = ["evaluate", work / "own", "--set", f"data.path={other}"]
    refused(78, [f"data.path: does not choose the held-out rows: data.evaluate.path = {work}/train.csv does",
                 "or --split all"], *own)
    for split, count in (("training", 200), ("all", 400)):
        done = convoy(*own, "--split", split)
        runs.check(done.returncode == 0 and f"{count} rows ({split})" in done.stdout, f"--split {split}: {done.stdout}")

    # Another strategy, which has other keys. An ensemble stays one.
    for strategy in ("ddp", "fsdp", "data_parallel"):
        done = convoy("evaluate", table, "--set", f"strategy.name={strategy}")
        runs.check(done.returncode == 0 and f", {strategy} on 1 rank" in done.stdout, f"{strategy}: {done.stdout}")
    runs.run(work / "run.yaml", work / "pair", ["strategy={name: ensemble, members: 2}"])
    refused(64, ["strategy.name=ddp: the run has 2 members, not one model", f"{work}/pair@member0"], "evaluate",
            work / "pair", "--set", "strategy.name=ddp")
    refused(64, ["strategy.members=3: the run has 2 members, not 3 members"], "evaluate", work / "pair", "--set",
            "strategy.members=3")
    refused(64, ["the run has one model, not 2 members"], "evaluate", table, "--set",
            "strategy={name: ensemble, members: 2}")

    # RUN in forms that do not exist.
    for text, words in (("@best", ["has no best checkpoint", "@step-18, ", "type one of these"]),
                        ("@step-7", ["no checkpoint of step 7", "@step-18"]), ("@", ["only @best, @step-N"]),
                        ("@bset", ["only @best, @step-N"]), ("@member0", ["has no members; leave out @member0"])):
        for line in (["evaluate"], ["export", "--to", work / "x"], ["predict", "--data", rows, "--to", out]):
            refused(78, words, line[0], f"{table}{text}", *line[1:])

    # A limit of file sizes, as a full disk: the file is named, and nothing of it remains.
    before = sorted(path.name for path in work.iterdir())
    refused(74, [f"{out}: ", "ulimit -f"], *predict, out, limited=True)
    refused(74, [f"{work / 'out.npy'}: ", "ulimit -f"], *predict, work / "out.npy", limited=True)
    refused(74, [f"{out}: ", "ulimit -f"], "recommend", visits, "--to", out, "--k", 200, limited=True)
    runs.check(sorted(path.name for path in work.iterdir()) == before, "files remain after a failure")
    MOST_BYTES = 500
    refused(74, [str(work / "weights"), "ulimit -f"], "export", visits, "--to", work / "weights", limited=True)
    runs.check(sorted(path.name for path in work.iterdir()) == before, "files remain after a failed export")

    # Arrays: rows with an unknown category are refused. --unknown skip leaves them out and writes the other rows'
    # numbers.
    array = work / "rows.npy"
    write_array(array, [(5001, 0), (5002, 9), (5018, 1)])
    refused(65, ["features, row 1, value 1: is 9", "--unknown skip"], "predict", table, "--data", array, "--to", out)
    done = convoy("predict", table, "--data", array, "--to", out, "--unknown", "skip", "--json")
    runs.check(done.returncode == 0 and json.loads(done.stdout)["skipped"] == 1, f"--unknown skip: {done.stdout}")
    lines = [line.split(",") for line in out.read_text().splitlines()]
    runs.check([line[0] for line in lines] == ["row", "0", "2"] and lines[0][1] == "prediction",
               f"numbered rows: {lines}")
print("each mistake gives one line with its code; the result is named and written whole or not at all")
