"""A model throws, or its process ends with 0 before the training does; the earliest failure is the
cause. Also with sharded layers, with pipeline stages, and with all ranks in one process."""
import os
import sys

import _faults
from _faults import runs

STEP = 20
PIPELINE = "{name: pipeline, micro_batches: 4}"


def throws(folder, backend, rank, block, name, strategy="{name: ddp}", ranks=2, under=(), more=(), sets=()):
    run = _faults.Run(folder, backend, *more, f"throw:rank={rank}:block={block}@step={STEP}", strategy=strategy,
                      ranks=ranks, sets=sets, title=f"{'mpirun, ' if under else ''}{backend}, {strategy}")
    run.start(under=under).ends(70, within=_faults.within(under), kind="training", rank=rank, step=STEP,
                                says=["the exception that", f"block {block} ({name}), forward, step {STEP}"])


def ends_with_0(folder, backend, rank, under=()):
    run = _faults.Run(folder, backend, f"exit:rank={rank}@step={STEP}", title=f"{'mpirun, ' if under else ''}{backend}")
    run.start(under=under).ends(70, within=_faults.within(under), kind="training", rank=rank, step=STEP,
                                says=["ended with 0 before the training was done"])


with runs.workspace() as folder:
    backends = sys.argv[1:] or ("gloo", "mpi")
    for backend in backends:
        for rank in (0, 1):
            throws(folder, backend, rank, 0, "hidden.0")
            ends_with_0(folder, backend, rank)
            if backend == "gloo":
                throws(folder, backend, rank, rank, ("hidden.0", "output")[rank], PIPELINE)
    for shard in ("optimizer", "gradients", "parameters"):
        throws(folder, "gloo", 1, 0, "hidden.0", f"{{name: fsdp, shard: {shard}}}")
    throws(folder, "gloo", 1, 0, "hidden.0", "{name: tensor_parallel}")
    throws(folder, "gloo", 2, 0, "hidden.0", "{name: hybrid, mesh: {data: 2, tensor: 2}}", ranks=4)
    throws(folder, "gloo", 3, 1, "output", "{name: hybrid, mesh: {data: 2, pipeline: 2}, micro_batches: 4}", ranks=4)
    throws(folder, "gloo", 2, 0, "hidden.0",
           "{name: hybrid, mesh: {data: {degree: 2, how: fsdp}, pipeline: 2}, micro_batches: 4}", ranks=4)
    for rank in (0, 1):
        throws(folder, "mpi", rank, 0, "hidden.0", under=_faults.MPIRUN)
    # Both throw in one step, rank 0 half a second after rank 1.
    run = _faults.Run(folder, "gloo", f"throw:rank=1@step={STEP}", f"sleep:0.5s:rank=0@step={STEP}",
                      f"throw:rank=0@step={STEP}")
    run.start().ends(70, within=_faults.within(), kind="training", rank=1, step=STEP, says=["throw:rank=1"])
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        devices = f"devices: ['cores:{cores[0]}', 'cores:{cores[1]}']"
        alone = ["launch.cores_per_rank=auto", "launch.ranks=auto"]
        throws(folder, "auto", 0, 1, "output", f"{{name: model_parallel, {devices}, micro_batches: 4}}", ranks=1,
               sets=alone)
        throws(folder, "auto", 1, 0, "hidden.0", f"{{name: data_parallel, {devices}}}", ranks=1, sets=alone)
        # In a process of several ranks only a crash shows the rank.
        replicas = {"strategy": f"{{name: data_parallel, {devices}}}", "ranks": 1, "sets": alone}
        run = _faults.Run(folder, "auto", f"segv:rank=1@step={STEP}", title="a process of two ranks", **replicas)
        run.start().ends(139, within=_faults.within(), kind="signal", rank=1, signal_number=11, step=STEP,
                         says=["rank 1 on"])
        run = _faults.Run(folder, "auto", f"kill:rank=1@step={STEP}", title="a process of two ranks", **replicas)
        run.start().ends(137, within=_faults.within(), kind="signal", signal_number=9,
                         says=["the process of ranks 0-1", "; rank 0: ", f"; rank 1: loader, step {STEP}"])
        failure = runs.summary(run.output)["failure"]
        run.check(failure["rank"] is None, f"a rank is blamed: {failure}")
