"""Case 10: the launcher is SIGKILLed; all that it started is gone within two seconds, and the next one says so."""
import signal
import sys
import time

import _faults
from _faults import runs

_faults.requirements()

with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for fault in ("none", "loop"):
            run = _faults.Run(folder, backend, fault, rank=1, title=f"{backend}: launcher killed, rank 1 {fault}").start()
            run.ranks()
            run.training(20)
            time.sleep(0.2)
            run.inject(run.process.pid, signal.SIGKILL)
            run.process.wait()
            runs.wait_for(lambda: not run.marked() or time.time() > run.failed_at + 2, 5, "the end")
            run.check(not run.marked(), "somebody lives on after 2 s")
            took = time.time() - run.failed_at
            run.clean()
            run.check(runs.summary(run.output)["status"] in ("running", "failed"), "the summary tells of an end")
            print(f"{run.title}: all gone after {took:.2f} s")
