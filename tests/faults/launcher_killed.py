"""Case 10: the launcher is SIGKILLed; all that it started is gone within two seconds, also what has left its session.

Its mpirun gets TERM then, once for each thread of the launcher that dies, and takes the second for impatience: what it
leaves behind for that, the next run of the same user sweeps once it is a minute old."""
import os
import signal
import sys
import time

import _faults
from _faults import runs

_faults.requirements()


def swept(folder, run):
    """The sweep takes what is old and held by nobody."""
    sessions = list(run.temporary.glob("ompi.*/pid.*"))
    # Its processes are gone for all to see before the last of their threads has let go of its memory.
    runs.wait_for(lambda: len(run.segments()) == len(_faults.shared_memory() - run.memory_before), 5, "unused segments")
    segments = run.segments()
    for name in segments:
        run.check(name.startswith("vader_segment."), f"left in shared memory: {name}")
    long_ago = time.time() - 3600
    for path in [*sessions, *(f"/dev/shm/{name}" for name in segments)]:
        os.utime(path, (long_ago, long_ago))
    after = _faults.Run(folder, "mpi", title="mpi: the run after", steps=3)
    after.start(TMPDIR=str(run.temporary))
    after.check(after.process.wait(timeout=60) == 0, "it failed")


with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for fault in ("none", "loop", "detach"):
            run = _faults.Run(folder, backend, fault, rank=1, title=f"{backend}: launcher killed, rank 1 {fault}").start()
            run.ranks()
            run.training(20)
            time.sleep(0.2)
            run.inject(run.process.pid, signal.SIGKILL)
            run.process.wait()
            runs.wait_for(lambda: not run.marked() or time.time() > run.failed_at + 2, 5, "the end")
            run.check(not run.marked(), "somebody lives on after 2 s")
            took = time.time() - run.failed_at
            if backend == "mpi":
                swept(folder, run)
            run.clean()
            run.check(runs.summary(run.output)["status"] in ("running", "failed"), "the summary tells of an end")
            print(f"{run.title}: all gone after {took:.2f} s")
