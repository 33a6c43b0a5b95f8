"""Sharded embeddings: dense Adam's values over gloo and mpi, checkpoints that other numbers of ranks read, refusals."""
# timeout: 120
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "ncf.yaml"
ROWS = 12  # floats of a row of the tables: 4 for the factorisation and 8 for the MLP
TABLES = ROWS * (200 + 150)

with runs.workspace() as work:
    for backend, ranks in (("gloo", 3), ("mpi", 2)):
        # Shares of 34, 33 and 33 rows, a step that ends an accumulation early, clipping.
        sets = ["model.rows=sharded", f"backend={backend}", "strategy.sync.every=2", "optimizer.clip_norm=0.5"]
        words = [str(runs.CONVOY), "verify", str(CONFIG), "--ranks", str(ranks), "--steps", "9"]
        done = subprocess.run(words + [word for item in sets for word in ("--set", item)], cwd=runs.TOP, timeout=60,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=runs.environment())
        runs.check(done.returncode == 0 and "agree" in done.stdout,
                   f"verify over {backend}: {done.returncode}\n{done.stdout}")

    # Two ranks, then three with rows, then one with dense embeddings: each resumes from the checkpoint of the previous
    # one.
    common = ["train.epochs=1", "train.checkpoint_every=10 steps"]
    whole = runs.run(CONFIG, work / "whole", [*common, "model.rows=false"], ranks=1)
    layouts = [(["model.rows=sharded", "backend=mpi", "train.max_steps=10"], 2),
               (["model.rows=sharded", "backend=gloo", "train.max_steps=20"], 3), (["model.rows=false"], 1)]
    done, before = [], []
    for number, (sets, ranks) in enumerate(layouts):
        output = work / f"part{number}"
        done.append(runs.run(CONFIG, output, [*common, *sets, *before], ranks=ranks))
        before = [f"train.resume={runs.newest_checkpoint(output)}"]
    first, second, third = done
    runs.check(first["parameters"] == whole["parameters"] > TABLES,
               f"{first['parameters']}, whole {whole['parameters']}")
    runs.check((first["steps"], second["steps"], third["steps"]) == (10, 20, 40),
               f"{first['steps']}, {second['steps']} and {third['steps']} steps")
    losses = [one["metrics"]["loss"]["last"] for one in (third, whole)]
    runs.check(abs(losses[0] - losses[1]) < 2e-3, f"loss {losses[0]} of three layouts, {losses[1]} of one")

    new = work / "new"
    runs.refused("another word", 78, ["model.rows", "sharded"], runs.command(CONFIG, new, ["model.rows=some"]))
    runs.refused("a strategy without", 78, ["model.rows", "fsdp"],
                 runs.command(CONFIG, new, ["model.rows=sharded", "strategy.name=fsdp"]))
print(f"loss {losses[0]:.5f} of three layouts one after the other, {losses[1]:.5f} of one")
