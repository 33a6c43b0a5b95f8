"""convoy predict: classes with their probabilities, an ensemble's vote, interactions, arrays; columns in another order,
missing and unknown ones; a run without its training data; nothing half-written."""
import csv
import json
import math
import os
import random
import struct
import subprocess
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

KINDS, COLOURS = ["oak", "ash", "elm, wych"], ["red", "green", "blue"]
TABLE = """
name: trees
seed: 3
device: cpu
model: {{name: mlp, hidden: [32]}}
data: {{name: table, path: {folder}/train.csv, target: kind, scale: standard, categorical: [colour], missing: fill}}
optimizer: {{name: adam, lr: 1.0e-2}}
train: {{epochs: 25, batch: {{global: 32}}, evaluate_every: 25 epochs, checkpoint_every: 25 epochs}}
strategy: {strategy}
"""
CLICKS = """
name: clicks
seed: 3
device: cpu
model: {{name: ncf}}
data: {{name: interactions, path: {folder}/clicks.csv, candidates: 5, columns: {{context: [hour, device]}}, \
scale: standard, categorical: [device]}}
optimizer: {{name: adam, lr: 1.0e-2}}
train: {{epochs: 2, batch: {{global: 32}}, checkpoint_every: 2 epochs, evaluate_every: never}}
strategy: {{name: single}}
"""
draw = random.Random(5)


def tree(kind):
    """Columns with units far apart: without scaling the small one would not count."""
    number = KINDS.index(kind)
    return {"tall": f"{draw.gauss(3000 + 500 * number, 300):.1f}",
            "thick": f"{draw.gauss(0.2 + 0.1 * number, 0.03):.4f}",
            "colour": COLOURS[number] if draw.random() < 0.9 else draw.choice(COLOURS), "kind": kind}


def write_table(path, rows, columns):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def predict(run, data, to, *words, code=0, cwd=None):
    line = [runs.CONVOY, "predict", run, "--data", data, "--to", to, *words]
    done = subprocess.run(line, env=runs.environment(), timeout=120, text=True, capture_output=True, cwd=cwd)
    runs.check(done.returncode == code, f"{' '.join(map(str, line))}\nexit {done.returncode}, expected {code}:\n"
                                        f"{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def table_cases(work):
    trees = [tree(draw.choice(KINDS)) for _ in range(400)]
    trees[7]["tall"] = ""
    write_table(work / "train.csv", trees, ["tall", "thick", "colour", "kind"])
    (work / "single.yaml").write_text(TABLE.format(folder=work, strategy="{name: single}"))
    (work / "ensemble.yaml").write_text(TABLE.format(folder=work, strategy="{name: ensemble, members: 3}"))
    runs.run(work / "single.yaml", work / "single")
    runs.run(work / "ensemble.yaml", work / "ensemble")
    (work / "train.csv").rename(work / "gone.csv")  # a prediction does not need the training data

    new = [{"id": str(i), **tree(KINDS[i % 3])} for i in range(300)]
    new[5]["thick"] = "NA"
    write_table(work / "new.csv", new, ["id", "colour", "kind", "thick", "tall"])
    said = predict(work / "single", work / "new.csv", work / "out.csv")
    runs.check("found by name: tall, thick, colour" in said and "copied: id, kind" in said,
               f"notes about columns:\n{said}")
    out = read_table(work / "out.csv")
    runs.check([list(row.values())[:5] for row in out] == [[row[c] for c in ("id", "colour", "kind", "thick", "tall")]
                                                           for row in new], "columns and order are kept")
    right = sum(row["prediction"] == row["kind"] for row in out) / len(out)
    runs.check(right > 0.9, f"accuracy {right} of new rows")
    for row in out:
        probabilities = {kind: float(row[f"probability_{kind}"]) for kind in KINDS}
        runs.check(abs(sum(probabilities.values()) - 1) < 1e-5, f"probabilities {probabilities}")
        runs.check(max(probabilities, key=probabilities.get) == row["prediction"], f"{row}")

    # The same rows with the columns in the order of training.
    write_table(work / "ordered.csv", new, ["tall", "thick", "colour"])
    predict(work / "single", work / "ordered.csv", work / "ordered_out.csv", "--probabilities", "best")
    ordered = read_table(work / "ordered_out.csv")
    runs.check([row["prediction"] for row in ordered] == [row["prediction"] for row in out], "order of columns")
    runs.check(list(ordered[0])[3:] == ["prediction", "probability"], f"columns {list(ordered[0])}")

    # Members of an ensemble, and their vote.
    predict(work / "ensemble", work / "new.csv", work / "vote.csv")
    votes = read_table(work / "vote.csv")
    for row in votes:
        members = [row[f"member{i}"] for i in range(3)]
        most = max(set(members), key=members.count)
        runs.check(members.count(most) < 2 or row["prediction"] == most, f"vote of {members}: {row['prediction']}")
    predict(f"{work / 'ensemble'}@member1", work / "new.csv", work / "member.csv")
    runs.check([row["prediction"] for row in read_table(work / "member.csv")] == [row["member1"] for row in votes],
               "one member alone")

    # Arrays hold the probabilities.
    predict(work / "single", work / "new.csv", work / "out.npy")
    raw = (work / "out.npy").read_bytes()
    size = struct.unpack("<H", raw[8:10])[0]
    runs.check(b"'shape': (300, 3)" in raw[:10 + size], f"header {raw[:10 + size]}")
    values = struct.unpack(f"<{900}f", raw[10 + size:])
    classes = sorted(KINDS)
    for i, row in enumerate(out):
        for k, kind in enumerate(classes):
            runs.check(math.isclose(values[3 * i + k], float(row[f"probability_{kind}"]), rel_tol=1e-5, abs_tol=1e-9),
                       f"row {i}")

    # Each refusal says what to type.
    bad = [dict(row) for row in new]
    bad[200]["colour"] = "pink"
    write_table(work / "pink.csv", bad, ["tall", "thick", "colour"])
    said = predict(work / "single", work / "pink.csv", work / "pink_out.csv", code=65)
    runs.check("pink.csv:202:" in said and "category 'pink'" in said and "--unknown skip" in said, said)
    runs.check(not (work / "pink_out.csv").exists() and not list(work.glob(".pink*")), "nothing half-written")
    said = predict(work / "single", work / "pink.csv", work / "pink_out.csv", "--unknown", "skip")
    runs.check("1 row is left out" in said and len(read_table(work / "pink_out.csv")) == 299, said)
    predict(work / "single", work / "pink.csv", work / "pink_out.npy", "--unknown", "skip", code=64)
    write_table(work / "few.csv", new, ["tall", "kind"])
    said = predict(work / "single", work / "few.csv", work / "few_out.csv", code=65)
    runs.check("has no column thick, colour" in said, said)
    before = (work / "out.csv").read_bytes()
    said = predict(work / "single", work / "new.csv", work / "out.csv", code=73)
    runs.check("--force" in said and (work / "out.csv").read_bytes() == before, said)
    predict(work / "single", work / "new.csv", work / "out.csv", "--force")
    runs.check((work / "out.csv").read_bytes() == before, "--force writes the same again")
    predict(work / "single", work / "none.csv", work / "x.csv", code=64)


def interaction_cases(work):
    lines = [f"u{u},i{i},{t},{draw.random() * 24:.2f},{draw.choice(['phone', 'web'])}"
             for u in range(30) for t, i in enumerate(draw.sample(range(40), 6))]
    (work / "clicks.csv").write_text("user_id,item_id,timestamp,hour,device\n" + "\n".join(lines) + "\n")
    (work / "clicks.yaml").write_text(CLICKS.format(folder=work))
    runs.run(work / "clicks.yaml", work / "clicks")
    (work / "pairs.csv").write_text("device,hour,item_id,user_id\nphone,3.5,i1,u1\nweb,20,i2,u2\nweb,1,i3,stranger\n")
    said = predict(work / "clicks", work / "pairs.csv", work / "pairs_out.csv", code=65)
    runs.check("pairs.csv:4:10: user 'stranger' does not occur in the training data" in said, said)
    predict(work / "clicks", work / "pairs.csv", work / "pairs_out.csv", "--unknown", "skip")
    rows = read_table(work / "pairs_out.csv")
    runs.check(len(rows) == 2 and all(0 < float(row["prediction"]) < 1 for row in rows), f"scores {rows}")


def memory_case(work):
    """Peak memory does not grow with the rows."""
    def peak(rows):
        write_table(work / "many.csv", ({"tall": "3000.5", "thick": "0.25", "colour": "red"} for _ in range(rows)),
                    ["tall", "thick", "colour"])
        answer = json.loads(subprocess.run(
            [runs.CONVOY, "predict", work / "single", "--data", work / "many.csv", "--to", work / "many_out.csv",
             "--force", "--json"], env=runs.environment(), timeout=300, text=True, capture_output=True,
            check=True).stdout)
        runs.check(answer["rows"] == rows, f"{answer}")
        return answer["peak_bytes"]
    few, many = peak(100000), peak(1500000)
    runs.check(many - few < 48 << 20, f"peak memory {few >> 20} MiB for 0.1 M rows, {many >> 20} MiB for 1.5 M rows")
    print(f"peak memory: {few >> 20} MiB for 0.1 M rows, {many >> 20} MiB for 1.5 M rows")


with runs.workspace() as work:
    table_cases(work)
    interaction_cases(work)
    memory_case(work)
print("predictions keep columns, follow the training's preparation, and are written whole or not at all")
