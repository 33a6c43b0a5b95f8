"""Pipeline parallelism trains like one rank, over every backend and on core sets; its devices are real; invalid
placements are refused at their key before ranks start."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "gpt.yaml"
SETS = ["train.max_steps=12", "train.log_every=1", "train.checkpoint_every=never", "train.evaluate_every=1 epoch"]


def pipeline(*more):
    return [*SETS, "strategy.name=pipeline", "launch.threads=1", "strategy.micro_batches=4", *more]


def refused(folder, words, *sets, ranks=None):
    output = folder / "never"
    done = subprocess.run(runs.command(CONFIG, output, sets, ranks), cwd=runs.TOP, env=runs.environment(), text=True,
                          timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == 78, f"exit {done.returncode}, expected 78\n{done.stdout}")
    for word in words:
        runs.check(word in done.stdout, f"no '{word}' in\n{done.stdout}")
    runs.check(not output.exists(), f"a run was started:\n{done.stdout}")


with runs.workspace() as folder:
    work = folder / "runs"
    work.mkdir()
    single = runs.run(CONFIG, work / "single", SETS)
    for name, sets, extra in (
        ("gloo", pipeline("backend=gloo"), {"ranks": 2}),
        ("mpi", pipeline("backend=mpi", "strategy.schedule=gpipe"), {"ranks": 3}),
        ("mpirun", pipeline("backend=mpi", "strategy.schedule=interleaved"), {"under": ["mpirun", "-n", "2"]}),
        ("local", pipeline("backend=local", "strategy.stages=[2, 1, 1]"), {"ranks": 3}),
    ):
        done = runs.run(CONFIG, work / name, sets, **extra)
        runs.check(done["parameters"] == single["parameters"], f"{name}: {done['parameters']} parameters")
        runs.check(set(done["metrics"]) == set(single["metrics"]), f"{name}: metrics {list(done['metrics'])}")
        runs.check(done["bytes_sent_per_step"] > 0, f"{name}: nothing was sent")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        done = runs.run(CONFIG, work / "devices",
                        [*SETS, "strategy.name=model_parallel",
                         f"strategy.devices=[cores:{cores[0]}, cores:{cores[1]}]", "strategy.micro_batches=4"])
        devices = done["ranks"][0]["devices"]
        runs.check([device["cores"] for device in devices] == [[cores[0]], [cores[1]]], f"devices are {devices}")
        runs.check([device["blocks"] for device in devices] == [["0-1"], ["2-3"]], f"devices are {devices}")
        runs.check(done["ranks"][0]["cores"] == cores[:2], f"the rank is on {done['ranks'][0]['cores']}")
        runs.run(CONFIG, work / "placed",
                 [*SETS, "strategy.name=model_parallel", "strategy.micro_batches=3",
                  f"strategy.placement=[{{blocks: 0, device: cores:{cores[0]}}}, "
                  f"{{blocks: 1-2, device: cores:{cores[1]}}}, {{blocks: 3, device: cores:{cores[0]}}}]"])
    same = subprocess.run([sys.executable, str(runs.TOP / "tests" / "support" / "same_losses"), str(work)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(same.stdout)
    runs.check(same.returncode == 0, "the losses differ")

    # A checkpoint of one layout resumes in another.
    runs.run(CONFIG, folder / "cut", [*pipeline("backend=gloo"), "train.checkpoint_every=6 steps"], ranks=2)
    halfway = folder / "cut" / "checkpoints" / "step-6"
    runs.run(CONFIG, folder / "whole", [*SETS, f"train.resume={halfway}"])
    first, second = (runs.records(where, "train")[-1]["metrics"]["loss"]
                     for where in (folder / "whole", work / "single"))
    runs.check(abs(first - second) <= 1e-4 * abs(second), f"resumed from stages: {first}, in one go {second}")

    refused(folder, ["strategy.stages", "the model has 4 blocks"], *pipeline(), ranks=5)
    refused(folder, ["strategy.stages.1", "gap"], *pipeline("strategy.stages=[0-1, 3]"), ranks=2)
    refused(folder, ["strategy.stages", "every block needs a stage"], *pipeline("strategy.stages=[1, 1]"), ranks=2)
    refused(folder, ["strategy.devices.0", "may use the cores"], *SETS, "strategy.name=model_parallel",
            "strategy.devices=[cores:999]")
    refused(folder, ["strategy.placement.0.blocks", "the model has 4 blocks"], *SETS, "strategy.name=model_parallel",
            f"strategy.placement=[{{blocks: 0-9, device: cores:{cores[0]}}}]")
    print("stages on ranks and devices: equal to one rank, and bad placements are refused")
