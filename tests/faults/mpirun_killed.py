"""mpirun itself is SIGKILLed, the user's and the one that convoy started. The ranks end, and the next run of
the same user removes mpirun's leftovers."""
import signal
import time

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


def killed_early(folder):
    """One rank has joined, and another has not started yet."""
    run = _faults.Run(folder, "gloo", title="mpirun killed before all ranks had joined", ranks=3)
    run.start(under=["mpirun", "-n", "3", "--bind-to", "none", "sh", "-c",
                     'test "$OMPI_COMM_WORLD_RANK" != 2 || sleep 100; exec "$@"', "sh"])
    runs.wait_for(lambda: len(runs.named(run.marked(), "convoy")) >= 2 and list(run.output.glob(".rendezvous-*")), 30,
                  f"{run.title}: two convoys")
    time.sleep(1)
    run.signal(mpirun_below(run), signal.SIGKILL)
    runs.end(run.process, 10)
    runs.wait_for(lambda: not runs.named(run.marked(), "convoy"), 5, f"{run.title}: the end of convoy")
    for name in ("sh", "sleep"):  # they do not know that mpirun has ended
        for pid in runs.named(run.marked(), name):
            run.signal(pid, signal.SIGKILL)
    _faults.swept(folder, run)
    run.clean()
    summary = runs.summary(run.output)
    run.check(summary["exit_code"] == 75 and "mpirun" in summary["failure"]["message"], f"{summary['failure']}")
    print(f"{run.title}: {summary['failure']['message'][:110]}")


with runs.workspace() as folder:
    killed_early(folder)
    for own in (True, False):
        killed(folder, own)
