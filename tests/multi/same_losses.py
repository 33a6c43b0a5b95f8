"""tests/support/same_losses: runs with equal losses pass, and every kind of difference is found."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

SETS = ["train.max_steps=6", "train.log_every=1", "train.evaluate_every=never"]
CONFIG = runs.TOP / "configs" / "tiny" / "mlp.yaml"


def compared(folder, code, *words):
    done = subprocess.run([sys.executable, str(runs.TOP / "tests" / "support" / "same_losses"), str(folder)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == code, f"exit {done.returncode}, expected {code}\n{done.stdout}")
    for word in words:
        runs.check(word in done.stdout, f"no '{word}' in\n{done.stdout}")


with runs.workspace() as work:
    runs.run(CONFIG, work / "single", SETS)
    compared(work, 1, "nothing to compare")
    runs.run(CONFIG, work / "ddp", [*SETS, "strategy.name=ddp"], ranks=2)
    compared(work, 0, "single", "ddp")

    # One loss changed, one step left out, a word instead of a number, a failed run: each is found alone.
    path = work / "ddp" / "metrics.jsonl"
    good = path.read_text()
    lines = [json.loads(line) for line in good.splitlines()]
    for change, word in ((lambda record: record["metrics"].update(loss=record["metrics"]["loss"] * 1.001),
                          "above 0.0001"),
                         (lambda record: record["metrics"].update(loss="nan"), "above 0.0001"),
                         (lambda record: record["metrics"].pop("loss"), "lacks steps [4]")):
        changed = json.loads(json.dumps(lines))
        change(next(record for record in changed if record["kind"] == "train" and record["step"] == 4))
        path.write_text("".join(json.dumps(record) + "\n" for record in changed))
        compared(work, 1, word)
    path.write_text(good)
    compared(work, 0)
    summary = runs.summary(work / "ddp")
    (work / "ddp" / "summary.json").write_text(json.dumps({**summary, "status": "failed"}))
    compared(work, 1, "status: failed")
    (work / "single").rename(work / "other")
    compared(work, 1, "no run named single")
print("equal losses are distinguished from others")
