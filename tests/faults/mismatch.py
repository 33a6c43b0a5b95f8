"""A rank calls another operation, or the same with another shape or type, or builds another model. Both
are printed, and nothing hangs."""
import os
import sys

import _faults
from _faults import runs

STEP = 2


def strategy_of(backend):
    if backend != "local":
        return {}
    cores = sorted(os.sched_getaffinity(0))
    return {"strategy": f"{{name: data_parallel, devices: ['cores:{cores[0]}', 'cores:{cores[-1]}']}}", "ranks": 1,
            "sets": ["launch.cores_per_rank=auto", "launch.ranks=auto"]}


def collective(folder, backend, part):
    run = _faults.Run(folder, backend, f"mismatch:{part}:rank=1@step={STEP}", title=backend, **strategy_of(backend))
    summary = run.start().ends(76, within=_faults.COLLECTIVE + _faults.GRACE, kind="disagreement", step=STEP)
    message = summary["failure"]["message"]
    run.check("rank 0" in message and "rank 1" in message, "not both calls are printed")


def model(folder, backend, **strategy):
    run = _faults.Run(folder, backend, "mismatch:parameters:rank=1", title=backend, rendezvous=_faults.RENDEZVOUS,
                      **(strategy or strategy_of(backend)))
    run.start().ends(76, within=_faults.RENDEZVOUS, kind="disagreement", says=["different models", "injected"])
    run.check(not runs.records(run.output) if (run.output / "metrics.jsonl").exists() else True, "a step was done")


with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi", "local"):
        for part in ("operation", "shape", "dtype"):
            collective(folder, backend, part)
        model(folder, backend)
    for strategy in ("{name: tensor_parallel}", "{name: fsdp, shard: parameters}"):
        model(folder, "gloo", strategy=strategy)
