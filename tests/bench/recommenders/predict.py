"""`convoy predict` of a million rows of 24 columns, CSV to CSV through NCF, against pandas and PyTorch"""
# needs: pandas==3.1.1
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
import harness

USERS, ITEMS, CONTEXTS, TRAINED = 6040, 3706, 21, 60000
PEER = "pandas and torch"
CONFIG = """
name: predict-bench
seed: 1
device: cpu
model: {{name: ncf}}
data:
  name: interactions
  path: {folder}/train.csv
  columns: {{context: [{contexts}]}}
  candidates: 20
optimizer: {{name: adam, lr: 1.0e-3}}
train: {{max_steps: 50, batch: {{global: 256}}, evaluate_every: never, checkpoint_every: 50 steps}}
strategy: {{name: single}}
"""


def write_rows(path, rows, seed):
    """user_id, item_id, timestamp and 21 numbers of four decimals: 24 columns."""
    draw = numpy.random.default_rng(seed)
    # Every id occurs in the training file.
    users, items = (numpy.concatenate((numpy.arange(most), draw.integers(0, most, max(0, rows - most))))[:rows]
                    for most in (USERS, ITEMS))
    with open(path, "w") as file:
        file.write(",".join(["user_id", "item_id", "timestamp", *(f"c{i}" for i in range(CONTEXTS))]) + "\n")
        for first in range(0, rows, 100000):
            part = slice(first, min(rows, first + 100000))
            numbers = draw.normal(size=(part.stop - first, CONTEXTS)).round(4)
            for user, item, row in zip(users[part].tolist(), items[part].tolist(), numbers.tolist()):
                file.write(f"u{user},i{item},{first},{','.join(map(str, row))}\n")


def shell(words, cores):
    command = ["taskset", "-c", cores, *map(str, words)]
    done = subprocess.run(command, cwd=harness.TOP, env={**os.environ, **harness.runs.MPI}, timeout=900,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"benchmark: {' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-3000:]}")


def compare(ours, theirs):
    """The largest difference of the predictions; all other columns of ours are the input's bytes."""
    worst = 0.0
    with open(ours) as a, open(theirs) as b:
        for line, other in zip(a, b, strict=True):
            mine, peer = line.rstrip("\n").rsplit(",", 1)[1], other.rstrip("\n").rsplit(",", 1)[1]
            if mine != "prediction":
                worst = max(worst, abs(float(mine) - float(peer)))
    return worst


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--rows", type=int, default=1000000, help="rows to predict (default %(default)s)")
    options = parser.parse_args()
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    with tempfile.TemporaryDirectory(prefix="convoy-bench-") as name:
        folder = pathlib.Path(name)
        write_rows(folder / "train.csv", TRAINED, 1)
        write_rows(folder / "new.csv", options.rows, 2)
        (folder / "run.yaml").write_text(CONFIG.format(folder=folder,
                                                       contexts=", ".join(f"c{i}" for i in range(CONTEXTS))))
        shell([harness.CONVOY, "run", folder / "run.yaml", "--output", folder / "run"], cores)
        shell([harness.CONVOY, "export", folder / "run", "--to", folder / "weights"], cores)
        # Numbers of ids follow their first appearance in the training file.
        lines = [line.split(",", 2) for line in (folder / "train.csv").read_text().splitlines()[1:]]
        ids = {"user_id": list(dict.fromkeys(line[0] for line in lines)),
               "item_id": list(dict.fromkeys(line[1] for line in lines))}
        (folder / "ids.json").write_text(json.dumps(ids))

        def convoy():
            start = time.perf_counter()
            shell([harness.CONVOY, "predict", folder / "run", "--data", folder / "new.csv", "--to", folder / "ours.csv",
                   "--force"], cores)
            return time.perf_counter() - start

        parts = {}

        def peer():
            # Without the start of Python and its imports, while convoy's time is that of the whole command.
            parts.update(harness.peer("predict.py", "--weights", folder / "weights/model.safetensors", "--ids",
                                      folder / "ids.json", "--data", folder / "new.csv", "--to", folder / "theirs.csv",
                                      "--threads", len(cores.split(",")), timeout=900))
            return parts["seconds"]

        measured = harness.interleave(options.rounds, {PEER: peer, "convoy predict": convoy})
        harness.table(measured, PEER, f"seconds for {options.rows} rows")
        harness.say("last round of the peer: " + ", ".join(f"{what} {parts[what]:.2f} s"
                                                           for what in ("read", "compute", "write")))
        worst = compare(folder / "ours.csv", folder / "theirs.csv")
        ok = harness.check("largest difference of a prediction", worst, 1e-5)
        ratio = harness.median_ratio(measured, "convoy predict", PEER)
        ok &= harness.check(f"time of convoy ÷ time of {PEER}", ratio, 0.5, aim=0.25)
        sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
