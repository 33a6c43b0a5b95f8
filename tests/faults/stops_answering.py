"""Cases 5, 6 and 7: a rank is stopped, computes for ever, loses its network or sleeps longer than a collective may take:
it is named, and so is the collective; one that sleeps half as long gets a warning and completes."""
# timeout: 300
import sys

import _faults
from _faults import runs

STEP = 20
LOST = _faults.HEARTBEAT + _faults.GRACE + 1
LATE = _faults.COLLECTIVE + _faults.GRACE + 1


def title(backend, under):
    return f"{'mpirun, ' if under else ''}{backend}"


def lost(folder, backend, fault, rank, under=()):
    run = _faults.Run(folder, backend, f"{fault}:rank={rank}@step={STEP}", title=title(backend, under))
    run.start(under=under).ends(110 if not under else None, within=LOST, kind="hang", rank=rank, step=STEP,
                                says=[f"rank {rank}", "heartbeat"])


def late(folder, backend, fault, rank, under=()):
    run = _faults.Run(folder, backend, f"{fault}@step={STEP}", title=title(backend, under))
    summary = run.start(under=under).ends(110 if not under else None, within=LATE, kind="hang", step=STEP,
                                          says=[f"rank {rank}"])
    message = summary["failure"]["message"].replace("-", "_")
    run.check("all_reduce" in message, "the collective is not named")
    run.check(summary["failure"]["rank"] in (rank, None), f"rank {summary['failure']['rank']} is named as the culprit")


def slow(folder, backend, rank):
    run = _faults.Run(folder, backend, f"sleep:{_faults.COLLECTIVE / 2 + 0.7}s:rank={rank}@step={STEP}", steps=2 * STEP,
                      title=title(backend, ()))
    run.start()
    code = runs.end(run.process, 60)
    run.check(code == 0, f"exit {code}")
    warnings = sum(run.log(one).count("half of its time limit") for one in (0, 1))
    run.check(warnings == 1, f"{warnings} warnings of a collective that takes long")
    run.clean()
    print(f"{run.title}: one warning, and done")


def each(case, *calls):
    _faults.together(*(lambda call=call: case(*call) for call in calls))


with runs.workspace() as folder:
    backends = sys.argv[1:] or ("gloo", "mpi")
    for rank in (0, 1):
        each(lost, *((folder, backend, "stop", rank) for backend in backends))
        each(late, *((folder, backend, f"sleep:60s:rank={rank}", rank) for backend in backends))
    each(slow, *((folder, backend, rank) for rank, backend in enumerate(backends)))
    each(lost, (folder, "gloo", "drop-heartbeat", 0), (folder, "mpi", "drop-heartbeat", 1))
    each(late, (folder, "gloo", "loop:rank=1:block=0", 1))
    for rank in (0, 1):
        each(lost, (folder, "mpi", "stop", rank, _faults.MPIRUN))
        each(late, (folder, "mpi", f"sleep:60s:rank={rank}", rank, _faults.MPIRUN))
