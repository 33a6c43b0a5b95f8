"""On GPUs, through the launcher: a step as one graph, alone and with its collectives, threads that share a GPU by
streams, and a pipeline that exceeds its gpu_memory. Skipped without enough GPUs."""
import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "ensemble.yaml"
SETS = ["device=cuda", "train.epochs=4"]


def gpus():
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def close(a, b, tolerance=1e-4):
    return abs(a - b) <= tolerance * max(1, abs(b))


def graphs(folder, strategy, ranks):
    losses = {}
    for graph in ("never", "always", "auto"):
        done = runs.run(CONFIG, folder / f"{strategy}-{graph}",
                        [*SETS, f"strategy={{name: {strategy}, graph: {graph}}}"], ranks=ranks)
        losses[graph] = done["metrics"]["loss"]["last"]
        runs.check(close(losses[graph], losses["never"]), f"{strategy}: {losses}")
        told = {rank.get("graph") for rank in done["ranks"]}
        runs.check(len(told) == 1, f"{strategy}, {graph}: ranks differ: {told}")
        if graph == "always":
            runs.check("launched as one graph" in told.pop(), f"{strategy}: {done['ranks']}")
    print(strategy, "as one launch:", losses)


def streams(folder):
    one = runs.run(CONFIG, folder / "stacked", [*SETS, "precision=fp64", "strategy.how=stacked"], ranks=1)
    shared = runs.run(CONFIG, folder / "threads", [*SETS, "precision=fp64", "strategy.how=threads", "backend=local"],
                      ranks=4)
    for mine, other in zip(shared["metrics"]["loss"]["members"], one["metrics"]["loss"]["members"]):
        runs.check(close(mine, other, 1e-9), f"on streams {mine}, as a stack {other}")
    print("four threads on one GPU or more: the same members")


def outgrows(folder):
    large = {"name": "large", "gpus": 1, "gpu_memory": "64 MB",
             "config": {"model": {"name": "mlp", "hidden": [20000, 20000]}}}
    small = {"name": "small", "gpus": 1, "gpu_memory": "64 MB", "share": 0.5, "config": {}}
    large["share"] = 0.5
    base = json.loads(json.dumps({
        "name": "limited", "device": "cuda", "model": {"name": "mlp", "hidden": [16]},
        "data": {"name": "synthetic", "kind": "classification", "rows": 500, "features": [12], "classes": 5},
        "optimizer": {"name": "adam", "lr": 1e-3}, "train": {"epochs": 1, "batch": {"global": 40}},
        "strategy": {"name": "independent", "pipelines": [large, small]}}))
    (folder / "farm.yaml").write_text(json.dumps(base))
    farm = runs.run(folder / "farm.yaml", folder / "farm", expect=1)
    ends = {entry["name"]: entry for entry in farm["pipelines"]}
    runs.check(ends["small"]["status"] == "done", f"small: {ends['small']}")
    failure = runs.summary(folder / "farm" / "pipelines" / "large")["failure"]
    runs.check(failure["cause"] == "memory" and "gpu_memory" in failure["message"], f"large: {failure}")
    print("beyond its gpu_memory:", failure["message"][:120])


if gpus() == 0:
    print("skipped: no GPU here")
    sys.exit(77)
with runs.workspace() as folder:
    graphs(folder, "single", 1)
    if gpus() > 1:
        graphs(folder, "ddp", 2)
    streams(folder)
    outgrows(folder)
