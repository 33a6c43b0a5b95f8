"""Case 22 under every strategy: a NaN in one rank's forward, stage or shard stops the run in that step on all ranks, before
anything of it is saved; and case 3 where layers are shared out."""
# timeout: 300
import os
import sys

import _faults
from _faults import runs

_faults.requirements()

STEP = 20
cores = sorted(os.sched_getaffinity(0))


def strategies():
    """(title, strategy, ranks, rank and block that fail, forwards a step)"""
    yield "ddp", "{name: ddp}", 2, 1, 0, 1
    yield "tensor_parallel", "{name: tensor_parallel}", 2, 1, 0, 1
    for block in (0, 1):
        yield f"pipeline, stage {block}", "{name: pipeline, micro_batches: 4}", 2, block, block, 4
    for shard in ("optimizer", "gradients", "parameters"):
        yield f"fsdp, {shard}", f"{{name: fsdp, shard: {shard}}}", 2, 1, 0, 1
    yield ("hybrid, data and pipeline", "{name: hybrid, mesh: {data: 2, pipeline: 2}, micro_batches: 4}", 4, 3, 1, 4)
    yield ("hybrid, shards and pipeline",
           "{name: hybrid, mesh: {data: {degree: 2, how: fsdp}, pipeline: 2}, micro_batches: 4}", 4, 1, 1, 4)


def check_checkpoints(run):
    saved = run.output / "checkpoints"
    steps = [int(folder.name.split("-")[1]) for folder in saved.glob("step-*")]
    run.check(steps and max(steps) <= STEP, f"checkpoints of steps {steps} were written")


def several_processes(folder, backend):
    for title, strategy, ranks, rank, block, forwards in strategies():
        run = _faults.Run(folder, backend, "nan", rank=rank, block=block, at=STEP * forwards, strategy=strategy, ranks=ranks,
                          title=f"{backend}: {title}: NaN")
        text = run.config.read_text()
        run.config.write_text(text.replace("checkpoint_every: never", "checkpoint_every: 1 step"))
        run.start().ends(70, within=2 + _faults.GRACE, kind="training", step=STEP, says=["finite"])
        check_checkpoints(run)
    for title, strategy, ranks, rank in (
            ("tensor_parallel", "{name: tensor_parallel}", 2, 1),
            ("hybrid", "{name: hybrid, mesh: {data: 2, tensor: 2}}", 4, 2)):
        run = _faults.Run(folder, backend, "throw", rank=rank, at=STEP, strategy=strategy, ranks=ranks,
                          title=f"{backend}: {title}: rank {rank} throws")
        run.start().ends(70, within=1 + _faults.GRACE, kind="training", rank=rank, step=STEP, says=["the model's own words"])


def one_process(folder):
    sets = f"devices: ['cores:{cores[0]}', 'cores:{cores[-1]}']"
    for title, strategy, block, at in (
            ("model_parallel", f"{{name: model_parallel, {sets}, micro_batches: 4}}", 1, STEP * 4),
            ("data_parallel", f"{{name: data_parallel, {sets}}}", 0, STEP)):
        run = _faults.Run(folder, "auto", "nan", rank=0, block=block, at=at, ranks=1, strategy=strategy, title=f"{title}: NaN")
        text = run.config.read_text().replace("  cores_per_rank: 1\n", "").replace("  ranks: 1\n", "")
        run.config.write_text(text.replace("checkpoint_every: never", "checkpoint_every: 1 step"))
        run.start().ends(70, within=2 + _faults.GRACE, kind="training", step=STEP, says=["finite"])
        check_checkpoints(run)


with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo",):
        several_processes(folder, backend)
    if len(cores) > 1:
        one_process(folder)
