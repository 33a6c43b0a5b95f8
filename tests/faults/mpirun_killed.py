"""Case 20: mpirun itself is SIGKILLed, the user's and the one that convoy started. The ranks end, and the next run of
the same user removes mpirun's leftovers."""
import signal

import _faults
from _faults import runs


def mpirun_below(run):
    def found():
        return runs.named(run.marked(), "mpirun")
    return runs.wait_for(found, 30, f"{run.title}: mpirun")[0]


def killed(folder, own):
    run = _faults.Run(folder, "mpi", title="convoy's mpirun killed" if own else "the user's mpirun killed")
    run.start(under=() if own else _faults.MPIRUN)
    run.ranks()
    run.training(20)
    run.signal(mpirun_below(run), signal.SIGKILL)
    runs.wait_for(lambda: not runs.named(run.marked(), "convoy-rank"), 3, f"{run.title}: the end of the ranks")
    code = runs.end(run.process, 10)
    run.check(code in ((75, 137) if own else (-9,)), f"exit {code}")
    runs.wait_for(lambda: not run.marked(), 3, f"{run.title}: the end of all")
    run.check(not list(run.temporary.glob("ompi.*/pid.*")), "Open MPI's session is left")
    _faults.swept(folder, run)
    run.clean()
    summary = runs.summary(run.output)
    run.check(summary["status"] == "failed", f"the summary says {summary['status']}")
    message = summary["failure"]["message"]
    run.check("mpirun" in message, f"the summary does not name mpirun: {message}")
    print(f"{run.title}: {message[:110]}")


with runs.workspace() as folder:
    for own in (True, False):
        killed(folder, own)
