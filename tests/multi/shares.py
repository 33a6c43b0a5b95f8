"""Batches that do not divide, on 1 to 3 ranks: every row is trained and evaluated once, and the result is the same run."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

config = runs.TOP / "configs" / "tiny" / "mlp.yaml"
SETS = ["train.epochs=2", "train.batch.global=37", "launch.threads=1", "precision=fp64"]

with runs.workspace() as folder:
    one = runs.run(config, folder / "1", SETS)
    for ranks in (2, 3):
        many = runs.run(config, folder / str(ranks), [*SETS, "strategy.name=ddp", "backend=gloo"], ranks=ranks)
        for key in ("samples", "steps", "parameters"):
            runs.check(many[key] == one[key], f"{ranks} ranks: {key} {many[key]}, one rank {one[key]}")
        for name, value in one["metrics"].items():
            other = many["metrics"][name]["last"]
            runs.check(abs(other - value["last"]) <= 1e-9 * max(1.0, abs(value["last"])),
                       f"{ranks} ranks: {name} {other}, one rank {value['last']}")
    # A finished run is never done again, nor written over.
    written = {path: path.stat().st_mtime_ns for path in (folder / "1").rglob("*") if path.is_file()}
    done = runs.subprocess.run(runs.command(config, folder / "1", SETS), cwd=runs.TOP, env=runs.environment(), timeout=60,
                               stdout=runs.subprocess.PIPE, text=True)
    runs.check(done.returncode == 0 and "already done" in done.stdout, f"an equal configuration: {done}")
    now = {path: path.stat().st_mtime_ns for path in (folder / "1").rglob("*") if path.is_file()}
    runs.check(now == written, "a run that is done was written to")
    runs.run(config, folder / "1", ["train.epochs=3", *SETS[1:]], expect=73)
    print("1, 2 and 3 ranks agree on", one["metrics"])
