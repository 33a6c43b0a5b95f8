"""The launcher is SIGKILLed. All its processes end within two seconds, also those in other sessions. mpirun
then gets TERM once for each thread of the launcher that dies. It treats the second one as a second request, and
leaves its session folder and shared memory. The guard removes the folder after the processes; the next run of the
same user removes the rest once it is a minute old."""
import signal
import sys
import time

import _faults
from _faults import runs

with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for faults in ([], ["loop:rank=1@step=20"], ["orphan:rank=1@step=20"]):
            run = _faults.Run(folder, backend, *faults, title=f"{backend}: launcher killed").start()
            run.ranks()
            run.training(20)
            time.sleep(0.2)
            run.signal(run.process.pid, signal.SIGKILL)
            run.process.wait()
            late = lambda: time.time() > run.failed_at + 2
            sessions = lambda: list(run.temporary.glob("ompi.*/pid.*"))
            runs.wait_for(lambda: not run.marked() or late(), 5, "the end")
            run.check(not run.marked(), "a process still lives after 2 s")
            took = time.time() - run.failed_at
            if backend == "mpi":
                runs.wait_for(lambda: not sessions() or late(), 5, "the end of Open MPI's session")
                run.check(not sessions(), "Open MPI's session is left after 2 s")
                _faults.swept(folder, run)
            # A kill in the middle of a write leaves the incomplete file next to the complete one.
            for half in run.output.glob(".summary.json.*"):
                half.unlink()
            run.clean()
            run.check(runs.summary(run.output)["status"] in ("running", "failed"), "the summary tells of an end")
            print(f"{run.title}: all gone after {took:.2f} s")
