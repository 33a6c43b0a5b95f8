"""Batches that do not divide, on 1 to 3 ranks: every row is trained and evaluated once, with equal results."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

SETS = ["train.epochs=2", "train.batch.global=37", "launch.threads=1", "precision=fp64", "optimizer.eps=1e-5"]
TINY = runs.TOP / "configs" / "tiny"

with runs.workspace() as folder:
    for model in ("gpt", "mlp"):  # gpt has dropout and counts tokens
        one = runs.run(TINY / f"{model}.yaml", folder / f"{model}1", SETS)
        for ranks in (2, 3):
            many = runs.run(TINY / f"{model}.yaml", folder / f"{model}{ranks}",
                            [*SETS, "strategy.name=ddp", "backend=gloo"], ranks=ranks)
            for key in ("samples", "tokens", "steps", "parameters"):
                runs.check(many[key] == one[key], f"{model}, {ranks} ranks: {key} {many[key]}, one rank {one[key]}")
            for name, value in one["metrics"].items():
                other = many["metrics"][name]["last"]
                runs.check(abs(other - value["last"]) <= 1e-9 * max(1.0, abs(value["last"])),
                           f"{model}, {ranks} ranks: {name} {other}, one rank {value['last']}")
        runs.check(one["tokens"] == (10 * one["samples"] if model == "gpt" else None),
                   f"{model}: tokens {one['tokens']}")
        print(f"{model}: 1, 2 and 3 ranks agree on", one["metrics"])

    # A completed run is never repeated, nor overwritten.
    mlp = TINY / "mlp.yaml"
    written = {path: path.stat().st_mtime_ns for path in (folder / "mlp1").rglob("*") if path.is_file()}
    done = runs.subprocess.run(runs.command(mlp, folder / "mlp1", SETS), cwd=runs.TOP, env=runs.environment(),
                               timeout=60, stdout=runs.subprocess.PIPE, text=True)
    runs.check(done.returncode == 0 and "already done" in done.stdout, f"an equal configuration: {done}")
    now = {path: path.stat().st_mtime_ns for path in (folder / "mlp1").rglob("*") if path.is_file()}
    runs.check(now == written, "a completed run was written to")
    runs.run(mlp, folder / "mlp1", ["train.epochs=3", *SETS[1:]], expect=73)
