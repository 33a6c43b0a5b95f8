"""A rank is killed, or crashes, while it waits in an all-reduce (rank 0, then the last). Its
processes in another session end as well. Also while ranks gather each other's parameters, and for a stage's
rank in the middle of a step."""
import sys

import _faults
from _faults import runs

STEP = 20


def in_all_reduce(folder, backend, fault, victim, number, under=(), more=()):
    # The other rank is late, so that the killed one surely waits in a collective.
    run = _faults.Run(folder, backend, *more, f"sleep:0.5s:rank={1 - victim}@step={STEP}",
                      f"{fault}:rank={victim}@collective={STEP}", title=f"{'mpirun, ' if under else ''}{backend}")
    run.start(under=under).ends(128 + number, within=_faults.within(under or backend == "mpi"), kind="signal",
                                rank=victim, signal_number=number, step=STEP,
                                says=[f"rank {victim}", f"signal {number}", f"step {STEP}"])
    step, collective = run.state(victim)
    run.check(step == STEP and "all_reduce" in collective.replace("-", "_"),
              f"it waited in '{collective}' of step {step}")
    if fault == "segv":
        run.check("backtrace" in run.log(victim) and "SEGV" in run.log(victim), "no backtrace in the victim's log")


def elsewhere(folder, backend, strategy, fault, victim, step):
    run = _faults.Run(folder, backend, fault, strategy=strategy, title=backend)
    run.start().ends(137, within=_faults.within(backend == "mpi"), kind="signal", rank=victim, signal_number=9,
                     step=step)


def in_save(folder, backend):
    """Rank 0 is killed while it saves. Other processes remove its temporary files, which only rank 0 knew."""
    run = _faults.Run(folder, backend, title=f"{backend}, while rank 0 saves", checkpoint="1 steps",
                      sets=["model.hidden=[3000,3000]", "train.batch={global: 2}"])
    run.start()
    victim = run.ranks()[0]
    saved = run.output / "checkpoints"
    runs.wait_for(lambda: list(saved.glob("step-*")) and list(saved.glob(".step-*")), 60, f"{run.title}: a second save")
    run.signal(victim, 9)
    run.ends(137, within=_faults.within(backend == "mpi"), kind="signal", rank=0, signal_number=9)


with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for victim in (0, 1):
            in_all_reduce(folder, backend, "kill", victim, 9)
        in_all_reduce(folder, backend, "kill", 1, 9, more=["orphan:rank=1@step=10"])
        in_all_reduce(folder, backend, "segv", 1, 11)
        elsewhere(folder, backend, "{name: fsdp, shard: parameters}", f"kill:rank=1:block=1@step={STEP}", 1, STEP)
        # The ranks of an ensemble synchronise only to evaluate and to save.
        elsewhere(folder, backend, "{name: ensemble, members: 4, how: processes}", f"kill:rank=1@step={STEP}", 1, STEP)
        elsewhere(folder, backend, "{name: pipeline, micro_batches: 4}", f"kill:rank=0:block=0@step={STEP}", 0, STEP)
    in_save(folder, "gloo")
    for victim in (0, 1):
        in_all_reduce(folder, "mpi", "kill", victim, 9, under=_faults.MPIRUN)
