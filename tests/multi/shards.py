"""fsdp by real ranks: one rank's losses over gloo, mpi and local, for each kind of sharding; checkpoints that other
strategies resume; fp16 and activation checkpointing from the command line; refusals."""
# timeout: 300
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "gpt.yaml"
SETS = ["train.max_steps=12", "train.log_every=1", "train.checkpoint_every=never", "train.evaluate_every=1 epoch"]


def fsdp(shard, *more):
    return [*SETS, "strategy.name=fsdp", f"strategy.shard={shard}", "launch.threads=1", *more]


def refused(folder, words, *sets, ranks=2):
    output = folder / "never"
    done = subprocess.run(runs.command(CONFIG, output, sets, ranks), cwd=runs.TOP, env=runs.environment(), text=True,
                          timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == 78, f"exit {done.returncode}, expected 78\n{done.stdout}")
    for word in words:
        runs.check(word in done.stdout, f"no '{word}' in\n{done.stdout}")
    return output


with runs.workspace() as folder:
    work = folder / "runs"
    work.mkdir()
    single = runs.run(CONFIG, work / "single", SETS)
    for name, sets, extra in (
        ("gloo", fsdp("parameters", "backend=gloo"), {"ranks": 2}),
        ("mpi", fsdp("gradients", "backend=mpi", "strategy.micro_batches=2"), {"ranks": 3}),
        ("mpirun", fsdp("parameters", "backend=mpi", "strategy.recompute=blocks"), {"under": ["mpirun", "-n", "2"]}),
        ("local", fsdp("optimizer", "backend=local", "strategy.recompute=[blocks.0]"), {"ranks": 3}),
    ):
        done = runs.run(CONFIG, work / name, sets, **extra)
        runs.check(done["parameters"] == single["parameters"], f"{name}: {done['parameters']} parameters")
        runs.check(set(done["metrics"]) == set(single["metrics"]), f"{name}: metrics {list(done['metrics'])}")
        runs.check(done["bytes_sent_per_step"] > 0, f"{name}: nothing was sent")
    same = subprocess.run([sys.executable, str(runs.TOP / "tests" / "support" / "same_losses"), str(work)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(same.stdout)
    runs.check(same.returncode == 0, "the losses differ")

    # A sharded checkpoint resumes on one rank, and a checkpoint of one rank resumes sharded.
    last = runs.records(work / "single", "train")[-1]["metrics"]["loss"]
    for writer, reader in ((fsdp("parameters", "backend=gloo"), SETS), (SETS, fsdp("gradients", "backend=gloo"))):
        title = "shards to one" if reader is SETS else "one to shards"
        first = folder / f"{title} first".replace(" ", "-")
        runs.run(CONFIG, first, [*writer, "train.checkpoint_every=6 steps"], ranks=None if writer is SETS else 2)
        halfway = first / "checkpoints" / "step-6"
        rest = folder / title.replace(" ", "-")
        runs.run(CONFIG, rest, [*reader, f"train.resume={halfway}"], ranks=None if reader is SETS else 2)
        loss = runs.records(rest, "train")[-1]["metrics"]["loss"]
        runs.check(abs(loss - last) <= 1e-4 * abs(last), f"{title}: {loss}, in one go {last}")

    # fp16: reported once, and counted.
    line = runs.command(CONFIG, folder / "half", fsdp("parameters", "precision=fp16", "backend=gloo",
                                                      "strategy.loss_scale.initial=1.0e8"), 2)
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), timeout=120, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, f"fp16: exit {done.returncode}\n{done.stdout}")
    runs.check(done.stdout.count("fp16 is slow") == 1, f"fp16: said once?\n{done.stdout}")
    skipped = [record["metrics"]["skipped_updates"] for record in runs.records(folder / "half", "train")]
    runs.check(skipped[0] == 1 and skipped[-1] < 12, f"fp16: skipped updates {skipped}")

    for what in ("parameters", "diloco"):
        new = refused(folder, ["strategy.sync.what", f"is {what}: ", "shard one copy"], "strategy.name=fsdp",
                      f"strategy.sync.what={what}")
    new = refused(folder, ["strategy.shard", "'params'", "parameters"], "strategy.name=fsdp", "strategy.shard=params")
    new = refused(folder, ["strategy.recompute", "none, blocks"], "strategy.name=fsdp", "strategy.recompute=all")
    new = refused(folder, ["recompute", "'blocks.7'", "did you mean blocks."], "strategy.name=fsdp",
                  "strategy.recompute=[blocks.7]")
    runs.check(not new.exists(), "a folder was made although nothing started")
    print("shards on ranks: equal to one rank")
