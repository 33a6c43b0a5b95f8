"""Measured data: an ensemble learns scikit-learn's digits from CSV; predictions agree with the accuracy of the
training, also with reordered columns; an unseen category; wine with and without scaling."""
import csv
import gzip
import importlib.util
import json
import pathlib
import random
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

# The package is only a folder of data here: it is not imported, so it needs none of its dependencies.
FOLDERS = [runs.TOP / ".deps/scikit-learn/sklearn"]
if found := importlib.util.find_spec("sklearn"):
    FOLDERS.append(pathlib.Path(found.submodule_search_locations[0]))
DATA = next((folder / "datasets/data" for folder in FOLDERS if (folder / "datasets/data").is_dir()), None)
if DATA is None:
    print("skipped: no data of scikit-learn; pip install --no-deps --target .deps/scikit-learn scikit-learn")
    sys.exit(77)

CODED = "p20"  # a pixel of 17 levels, taken as categories
CONFIG = """
name: {name}
seed: 7
device: cpu
model: {{name: mlp, hidden: [{hidden}]}}
data: {{name: table, path: {folder}/train.csv, target: {target}, evaluate: {{path: {folder}/held.csv}}, {more}}}
optimizer: {{name: adam, lr: {lr}}}
train: {{epochs: {epochs}, batch: {{global: 32}}, evaluate_every: {epochs} epochs, checkpoint_every: {epochs} epochs}}
strategy: {strategy}
"""


def write(path, columns, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def convoy(*words, code=0):
    done = subprocess.run([runs.CONVOY, *map(str, words)], env=runs.environment(), timeout=120, text=True,
                          capture_output=True)
    runs.check(done.returncode == code,
               f"convoy {' '.join(map(str, words))}\nexit {done.returncode}, expected {code}:\n"
               f"{done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr


def predicted(run, data, to):
    convoy("predict", run, "--data", data, "--to", to)
    with open(to, newline="") as file:
        return list(csv.DictReader(file))


def accuracy_of(rows, target):
    return sum(row["prediction"] == row[target] for row in rows) / len(rows)


def digits(work):
    with gzip.open(DATA / "digits.csv.gz", "rt") as file:
        rows = list(csv.reader(file))
    runs.check(len(rows) == 1797 and len(rows[0]) == 65, f"{len(rows)} rows of {len(rows[0])} columns")
    random.Random(1).shuffle(rows)
    columns = [f"p{i}" for i in range(64)] + ["digit"]
    held, train = rows[:360], rows[360:]
    # Every category of the held-out rows has to occur in training.
    levels = {row[20] for row in train}
    held = [row for row in held if row[20] in levels]
    write(work / "train.csv", columns, train)
    write(work / "held.csv", columns, held)
    (work / "digits.yaml").write_text(CONFIG.format(
        name="digits", folder=work, target="digit", hidden=64, lr="3.0e-3", epochs=15,
        more=f"scale: standard, categorical: [{CODED}]", strategy="{name: ensemble, members: 5}"))
    trained = {name: values["last"] for name, values in runs.run(work / "digits.yaml",
                                                                 work / "digits")["metrics"].items()}
    vote = trained["vote_accuracy"]
    runs.check(vote > 0.95, f"vote of the ensemble: {vote}")

    rows = predicted(work / "digits", work / "held.csv", work / "out.csv")
    runs.check(abs(accuracy_of(rows, "digit") - vote) < 1e-6,
               f"accuracy of the predictions {accuracy_of(rows, 'digit')}, of the training {vote}")
    evaluated = json.loads(convoy("evaluate", work / "digits", "--set", f"data.path={work}/held.csv", "--json"))
    runs.check(evaluated["rows"] == len(held) and abs(evaluated["metrics"]["vote_accuracy"] - vote) < 1e-6,
               f"evaluated anew: {evaluated}")

    order = list(range(65))
    random.Random(2).shuffle(order)
    write(work / "reordered.csv", [columns[i] for i in order], [[row[i] for i in order] for row in held])
    again = predicted(work / "digits", work / "reordered.csv", work / "reordered_out.csv")
    runs.check([row["prediction"] for row in again] == [row["prediction"] for row in rows], "reordered columns")

    unseen = [list(row) for row in held]
    unseen[3][20] = "17"
    write(work / "unseen.csv", columns, unseen)
    said = convoy("predict", work / "digits", "--data", work / "unseen.csv", "--to", work / "unseen_out.csv", code=65)
    runs.check("unseen.csv:5:" in said and f"category '17' of column '{CODED}'" in said and "--unknown skip" in said,
               said)
    runs.check(not (work / "unseen_out.csv").exists(), "no file after a refusal")
    convoy("predict", work / "digits", "--data", work / "unseen.csv", "--to", work / "unseen_out.csv",
           "--unknown", "skip")
    with open(work / "unseen_out.csv", newline="") as file:
        runs.check(len(list(csv.reader(file))) == len(held), "one row is left out")  # the header counts too
    print(f"digits: the vote of 5 members is right for {vote:.4f} of {len(held)} held-out rows, "
          "in training and in predict", flush=True)


def wine(work):
    lines = (DATA / "wine_data.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    random.Random(1).shuffle(rows)
    columns = [f"c{i}" for i in range(len(rows[0]) - 1)] + ["kind"]
    write(work / "train.csv", columns, rows[45:])
    write(work / "held.csv", columns, rows[:45])
    accuracy = {}
    for scale in ("none", "standard"):
        (work / "wine.yaml").write_text(CONFIG.format(
            name="wine", folder=work, target="kind", hidden=32, lr="1.0e-2", epochs=20, more=f"scale: {scale}",
            strategy="{name: single}"))
        done = subprocess.run(runs.command(work / "wine.yaml", work / scale), env=runs.environment(), timeout=120,
                              text=True, capture_output=True)
        runs.check(done.returncode == 0, done.stdout + done.stderr)
        hint = "type --set data.scale=standard" in done.stdout + done.stderr
        runs.check(hint == (scale == "none"),
                   f"scale: {scale}: the hint is {'there' if hint else 'missing'}:\n{done.stderr}")
        accuracy[scale] = runs.summary(work / scale)["metrics"]["accuracy"]["last"]
        out = predicted(work / scale, work / "held.csv", work / f"{scale}.csv")
        runs.check(abs(accuracy_of(out, "kind") - accuracy[scale]) < 1e-6,
                   f"{scale}: {accuracy_of(out, 'kind')}, {accuracy}")
    runs.check(accuracy["standard"] > 0.97 and accuracy["standard"] >= accuracy["none"], f"{accuracy}")
    print(f"wine: accuracy {accuracy['standard']:.3f} with data.scale, {accuracy['none']:.3f} without", flush=True)


with runs.workspace() as work:
    digits(work)
    wine(work)
print("scaling, categories and votes are the same in training, evaluate and predict")
