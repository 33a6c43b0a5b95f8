"""A rank is stopped, computes for ever, loses its network or sleeps longer than a collective may
take. One report names it, and the collective in which the others wait. A rank that sleeps half as long causes a
warning and completes. A job that was suspended as a whole continues. Ranks that do not exit after their results are
ended."""
# timeout: 300
import contextlib
import os
import signal
import sys
import time

import _faults
from _faults import runs

STEP = 20


def title(backend, under):
    return f"{'mpirun, ' if under else ''}{backend}"


def entry_of(run, summary, rank):
    found = [one for one in summary["failure"]["ranks"] if one["rank"] == rank]
    run.check(len(found) == 1, f"failure.ranks lacks rank {rank}")
    return found[0]


def check_report(run, summary, rank):
    """Checks that the report is in the console, in logs/ and in the summary, and blames the right rank."""
    for text in (run.console(), (run.output / "logs" / "stalls.log").read_text()):
        run.check("where the ranks are:" in text, "no stall report")
    blamed = [one["rank"] for one in summary["failure"]["ranks"] if one["to_blame"]]
    run.check(blamed == [rank], f"{blamed} are blamed")


def lost(folder, backend, fault, rank, under=()):
    # The other rank's collective has more time, so the heartbeat detects it first.
    run = _faults.Run(folder, backend, f"{fault}:rank={rank}@step={STEP}", title=title(backend, under),
                      sets=["launch.collective=30s"])
    run.start(under=under)
    summary = run.ends(None if under else 110, within=_faults.within(under, _faults.HEARTBEAT), kind="hang", rank=rank,
                       step=STEP, says=[f"rank {rank}", "heartbeat"])
    check_report(run, summary, rank)
    if fault == "stop":
        run.check(entry_of(run, summary, rank)["stopped"] and "no stack, since it is stopped" in run.console(),
                  "it is not reported as stopped")


def late(folder, backend, fault, rank, under=()):
    run = _faults.Run(folder, backend, f"{fault}@step={STEP}", title=title(backend, under))
    run.start(under=under)
    summary = run.ends(None if under else 110, within=_faults.within(under, _faults.COLLECTIVE), kind="hang", rank=rank,
                       step=STEP, says=[f"rank {rank} has not reached all-reduce"])
    check_report(run, summary, rank)
    run.check((entry_of(run, summary, 1 - rank)["collective"] or "").startswith("all_reduce"),
              "the other does not wait")
    frames = [frame for stack in summary["failure"]["stacks"] if stack["rank"] == rank for frame in stack["frames"]]
    run.check(any("Injector::" in frame for frame in frames), f"the stack does not show where it is: {frames}")
    run.check(run.console().count(f"warning: rank {rank} has not reached all-reduce") == 1,
              "not one warning at half of it")


def slow(folder, backend, rank):
    run = _faults.Run(folder, backend, f"sleep:{_faults.COLLECTIVE / 2 + 0.7}s:rank={rank}@step={STEP}", steps=2 * STEP,
                      title=backend)
    run.start()
    code = runs.end(run.process, 60)
    run.check(code == 0, f"exit {code}")
    said = [line for line in run.console().splitlines() if "has not reached" in line]
    run.check(len(said) == 1 and f"rank {rank} has not reached all-reduce" in said[0] and f"step {STEP}" in said[0],
              f"{said}")
    run.clean()
    print(f"{run.title}: one warning, and done")


def suspended(folder, backend, all_of_it=True):
    """Suspends a job, as `scontrol suspend` or a frozen container does, or its convoy alone. A process that was
    suspended blames no other. Ranks wait for convoy to save and, here, to check each collective: that time does not
    count."""
    run = _faults.Run(folder, backend, title=f"{backend}: {'all of it' if all_of_it else 'convoy'} suspended",
                      checkpoint="never" if all_of_it else "5 steps",
                      sets=[] if all_of_it else ["launch.check_collectives=all"]).start()
    run.training(STEP)
    everybody = run.marked() if all_of_it else [run.process.pid]
    limit = max(_faults.HEARTBEAT, _faults.COLLECTIVE)
    for number, pause in ((signal.SIGSTOP, limit + 1.5), (signal.SIGCONT, 0)):
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(pause)
    run.training(max(run.state(rank)[0] for rank in (0, 1)) + 20)
    run.signal(run.process.pid, signal.SIGTERM)
    run.ends(143, within=_faults.GRACE, kind="stopped")


def alone(folder):
    run = _faults.Run(folder, "auto", f"loop:block=0@step={STEP}", title="alone", strategy="{name: single}", ranks=1,
                      sets=["launch.step_timeout=2s"])
    run.start().ends(110, within=_faults.within((), 3), kind="hang", rank=0, step=STEP,
                     says=["launch.step_timeout", "forward/backward"])


def lingers(folder, backend):
    """Ranks that never exit after their results, because a plugin's object waits in its destructor."""
    plugin = runs.BUILD / "tests" / "libplugin_wrong.so"
    run = _faults.Run(folder, backend, title=f"{backend}: ranks that do not exit", steps=STEP,
                      checkpoint=f"{STEP} steps",
                      sets=["launch.max_restarts=2",
                            f"model={{plugin: {plugin}, name: wrong, over: nothing, stays: 1000}}"])
    run.start()
    runs.wait_for(lambda: (run.output / "checkpoints" / "latest").exists(), 60, "the last checkpoint")
    run.failed_at = time.time()
    run.ends(110, within=_faults.within((), _faults.COLLECTIVE), kind="hang", rank=0, step=STEP - 1,
             says=["did not exit", "launch.collective"])
    run.check(len(runs.summary(run.output)["attempts"]) == 1, "a complete run was restarted")


def together(case, *calls):
    _faults.together(*(lambda call=call: case(folder, *call) for call in calls))


with runs.workspace() as folder:
    backends = sys.argv[1:] or ("gloo", "mpi")
    for rank in (0, 1):
        sleeps = f"sleep:60s:rank={rank}"
        together(lost, *((backend, "stop", rank) for backend in backends), ("mpi", "stop", rank, _faults.MPIRUN))
        together(late, *((backend, sleeps, rank) for backend in backends), ("mpi", sleeps, rank, _faults.MPIRUN))
    together(lost, ("gloo", "drop-heartbeat", 0), ("mpi", "drop-heartbeat", 1))
    together(lost, ("gloo", "cut-network", 1), ("mpi", "cut-network", 0))
    together(slow, *((backend, rank) for rank, backend in enumerate(backends)))
    together(suspended, *((backend,) for backend in backends), ("gloo", False))
    late(folder, "gloo", "loop:rank=1:block=0", 1)
    alone(folder)
    together(lingers, *((backend,) for backend in backends))
