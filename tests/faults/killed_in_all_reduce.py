"""Cases 1 and 2: a rank is killed, or crashes, while it waits in an all-reduce; rank 0, then the last."""
import signal
import sys

import _faults
from _faults import runs

_faults.requirements()


def case(folder, backend, victim, number):
    # The other rank is late, so that the victim surely waits in a collective.
    run = _faults.Run(folder, backend, "sleep", rank=1 - victim, at=20, seconds=4,
                      title=f"{backend}: {signal.Signals(number).name} to rank {victim} in an all-reduce").start()
    pids = run.ranks()
    run.training(20)
    runs.wait_for(lambda: run.state(victim)[1], 4, f"{run.title}: its collective")
    step, collective = run.state(victim)
    run.check(step == 20 and collective, f"waits in '{collective}' of step {step}")
    run.inject(pids[victim], number)
    run.ends(128 + number, within=1 + _faults.GRACE, kind="signal", rank=victim, signal_number=int(number), step=20,
             says=[f"rank {victim}", f"signal {int(number)}", "step 20"])
    if number == signal.SIGSEGV:
        log = (run.output / "logs" / f"rank{victim}.log").read_text(errors="replace")
        run.check("backtrace" in log and "SEGV" in log, "no backtrace in the victim's log")


with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for victim in (0, 1):
            case(folder, backend, victim, signal.SIGKILL)
        case(folder, backend, 1, signal.SIGSEGV)
