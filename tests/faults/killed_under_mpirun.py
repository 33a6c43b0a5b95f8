"""A rank is killed in a job that the user's own mpirun started; mpirun returns 137, the summary names it."""
import signal

import _faults
from _faults import runs

with runs.workspace() as folder:
    for victim in (0, 1):
        run = _faults.Run(folder, "mpi", title=f"mpirun: SIGKILL to rank {victim}")
        run.start(under=_faults.MPIRUN)
        pids = run.ranks()
        run.training(20)
        # It contains the job's secret, and mpirun leaves no time to remove it when it ends the job itself.
        run.check(not list(run.output.glob(".rendezvous-*")), "the rendezvous file is there although all have joined")
        run.signal(pids[victim], signal.SIGKILL)
        run.ends(137, within=5, kind="signal", rank=victim, signal_number=9, says=[f"rank {victim}"])
    # The `convoy` that is a rank's parent ends, so no process can report how the rank ended.
    for victim in (0, 1):
        run = _faults.Run(folder, "mpi", title=f"mpirun: SIGKILL to the convoy of rank {victim}")
        run.start(under=_faults.MPIRUN)
        pids = run.ranks()
        run.training(20)
        run.signal(runs.parent(pids[victim]), signal.SIGKILL)
        run.ends(137, within=5)
        print(f"{run.title}: all ended")
