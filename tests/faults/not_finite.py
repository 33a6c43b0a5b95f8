"""Under every strategy: a NaN in one rank's forward, stage or shard stops the run in that step on all ranks,
before anything of that step is saved."""
# timeout: 300
import os
import sys

import _faults
from _faults import runs

STEP = 20
cores = sorted(os.sched_getaffinity(0))


def stops(folder, backend, strategy, rank, block, ranks=2, sets=()):
    run = _faults.Run(folder, backend, f"nan:rank={rank}:block={block}@step={STEP}", strategy=strategy, ranks=ranks,
                      sets=sets, checkpoint="1 step", title=f"{backend}, {strategy}")
    run.start().ends(70, within=2 + _faults.GRACE, kind="training", step=STEP, says=["finite"])
    steps = [int(folder.name.split("-")[1]) for folder in (run.output / "checkpoints").glob("step-*")]
    run.check(steps and max(steps) <= STEP, f"checkpoints of steps {steps} were written")


with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo",):
        stops(folder, backend, "{name: ddp}", 1, 0)
        stops(folder, backend, "{name: tensor_parallel}", 1, 0)
        for block in (0, 1):
            stops(folder, backend, "{name: pipeline, micro_batches: 4}", block, block)
        for shard in ("optimizer", "gradients", "parameters"):
            stops(folder, backend, f"{{name: fsdp, shard: {shard}}}", 1, 0)
        stops(folder, backend, "{name: hybrid, mesh: {data: 2, pipeline: 2}, micro_batches: 4}", 3, 1, 4)
        stops(folder, backend, "{name: hybrid, mesh: {data: 2, tensor: 2}}", 2, 0, 4)
        stops(folder, backend, "{name: hybrid, mesh: {data: {degree: 2, how: fsdp}, pipeline: 2}, micro_batches: 4}",
              1, 1, 4)
    stops(folder, "mpi", "{name: ddp}", 1, 0)
    if len(cores) > 1:
        devices = f"devices: ['cores:{cores[0]}', 'cores:{cores[-1]}']"
        alone = ["launch.cores_per_rank=auto", "launch.ranks=auto"]
        stops(folder, "auto", f"{{name: model_parallel, {devices}, micro_batches: 4}}", 0, 1, 1, alone)
        stops(folder, "auto", f"{{name: data_parallel, {devices}}}", 1, 0, 1, alone)
