"""Run folders for tests of `convoy report`; standard library only."""
import json
import math
import random

FARM = """
name: farm
device: cpu
model: {name: mlp, hidden: [8]}
data: {name: synthetic, kind: classification, rows: 400, evaluate_rows: 100, features: [6], classes: 3}
optimizer: {name: adam, lr: 1.0e-3}
train: {epochs: 2, batch: {global: 40}, evaluate_every: 1 epoch, log_every: 2}
strategy: {name: independent, cores: 1, metric: accuracy, grid: {optimizer.lr: [1.0e-3, 1.0e-2], seed: [1, 2]}}
"""


def farm(work):
    """The configuration of a farm of four pipelines."""
    path = work / "farm.yaml"
    path.write_text(FARM)
    return path


def breakdown(wall, ranks):
    rows = []
    for rank in range(ranks):
        shares = {"start_up": 0.02, "data": 0.03, "forward": 0.25, "backward": 0.4,
                  "communication": 0.1 * (1 + rank) / ranks, "waiting": 0.1 * (ranks - 1 - rank) / ranks,
                  "update": 0.06, "evaluation": 0.03, "checkpoint": 0.01}
        shares["other"] = 1 - sum(shares.values())
        rows.append({"rank": rank, **{name: wall * share for name, share in shares.items()}})
    return {"wall_s": wall, "ranks": rows}


def summary(name, steps, more=()):
    wall = steps * 0.004
    placement = [{"rank": rank, "host": "node0", "device": "cores", "numa": [rank], "sockets": [0],
                  "cores": [4 * rank, 4 * rank + 1], "threads": 2, "why": "its NUMA node"} for rank in range(2)]
    return {"status": "done", "exit_code": 0, "name": name, "strategy": "ddp", "backend": "gloo", "world_size": 2,
            "ranks": [{"rank": rank, "host": "node0", "peak_resident_bytes": 3 << 28} for rank in range(2)],
            "parameters": 12453873, "epochs": 20.0, "steps": steps, "samples": steps * 256, "train_seconds": wall,
            "samples_per_second": 64000.0, "startup_seconds": 1.5, "evaluate_seconds": 3.0, "attempt": 0,
            "attempts": [], "placement": placement, "breakdown": breakdown(wall, 2), "failure": None,
            "topology": [{"host": "node0", "memory_bytes": 1 << 35, "gpus": [],
                          "nodes": [{"socket": 0, "numa": 0, "threads": "0-3"},
                                    {"socket": 0, "numa": 1, "threads": "4-7"}]}],
            "metrics": {"accuracy": {"last": 0.9, "best": 0.93, "best_step": steps // 2}},
            "config": {"name": name, "seed": 1, "model": {"name": "mlp", "hidden": [64]}, "data": {"name": "digits"},
                       "optimizer": {"name": "adam", "lr": 1e-3}, "train": {"batch": {"global": 256}}}, **dict(more)}


def text_of(lines):
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def write(folder, contents, metrics, resources=""):
    """`metrics`, `resources`: texts of the files."""
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(contents))
    (folder / "metrics.jsonl").write_text(metrics)
    if resources:
        (folder / "resources.jsonl").write_text(resources)
    return folder


def records(points, number, draw):
    for i in range(1, points + 1):
        step, seconds = 10 * i, 0.04 * i * (1 + 0.05 * number)
        record = {"kind": "train", "step": step, "epoch": 1 + i * 20 // points, "seconds": seconds,
                  "samples_per_second": 256 * step / seconds, "remaining_seconds": 9.5,
                  "learning_rate": 1e-3 * (1 + number) * (1 - 0.5 * i / points),
                  "gradient_norm": abs(draw.gauss(1, 0.3)),
                  "metrics": {"loss": 0.7 * math.exp(-3 * i / points) + 0.2 + draw.gauss(0, 0.02)}}
        yield record
        if i % (points // 20) == 0:
            value = (0.9 + 0.003 * number) * (1 - math.exp(-5 * i / points))
            yield {**record, "kind": "evaluate",
                   "metrics": {"accuracy": value, "loss": record["metrics"]["loss"] + 0.02}}


def many(folder, count, points):
    """Runs that differ in learning rate and seed, with this number of training records each. Every fourth run has the
    same curves, because making them takes longer than the report."""
    draw = random.Random(1)
    metrics = [text_of(records(points, 5 * number, draw)) for number in range(4)]
    resources = text_of({"time_s": at, "rank": rank, "memory_bytes": int(3e8 + 1e8 * math.tanh(at / 50) + 2e7 * rank),
                         "cpu_s": at * (0.95 - 0.1 * rank)} for at in range(0, 400, 5) for rank in range(2))
    folders = []
    for number in range(count):
        name = f"run-{number:02d}"
        contents = summary(name, points * 10)
        contents["config"].update(seed=number, optimizer={"name": "adam", "lr": 1e-3 * (1 + number)})
        contents["metrics"]["accuracy"]["best"] = 0.9 + 0.003 * number
        folders.append(write(folder / name, contents, metrics[number % 4], resources))
    return folders


def hostile(folder):
    """A run whose texts are HTML, and whose losses are not finite."""
    evil = "</script><script>alert(1);window.hacked=1</script><img src=x onerror=window.hacked=1>"
    failure = {"rank": 1, "step": 3, "cause": evil, "message": evil, "signal": None, "host": evil}
    contents = summary(evil, 100, {"status": "failed", "failure": failure, "backend": evil,
                                   "attempts": [{"attempt": 0, "exit_code": 1, "failure": failure, "checkpoint": -1}]})
    contents["config"]["model"]["name"] = evil
    contents["metrics"] = {evil: {"last": 1.0, "best": 1.0, "best_step": 1}}
    contents["placement"][0].update(host=evil, why=evil)
    contents["breakdown"]["advice"] = evil
    lines = [{"kind": "train", "step": step, "epoch": 1, "seconds": step * 0.1, "samples_per_second": 10.0,
              "metrics": {"loss": loss, evil: 1.0}} for step, loss in enumerate((2.0, "nan", "inf", "-inf", 1.0), 1)]
    return write(folder, contents, text_of(lines) + 'not a record\n[[[[\n{"kind":"train","step":9,"metr')
