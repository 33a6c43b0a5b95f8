"""On a stop request to any process, all ranks stop after the same step with a valid checkpoint. After
a second request, or if a rank does not finish its step, they are killed."""
import signal
import sys
import time

import _faults
from _faults import runs

# mpirun forwards TERM to the processes after this time, and KILL after the same time again.
PATIENCE = 4
PATIENT = ["mpirun", "--mca", "odls_base_sigkill_timeout", str(PATIENCE), *_faults.MPIRUN[1:]]


def stopped(folder, backend, number=signal.SIGTERM, under=(), to_rank=None):
    run = _faults.Run(
        folder, backend, title=f"{backend}: {signal.Signals(number).name} to "
        f"{'the convoy of rank ' + str(to_rank) if to_rank is not None else 'mpirun' if under else 'convoy'}")
    run.start(under=under)
    pids = run.ranks()
    run.training(20)
    run.signal(run.process.pid if to_rank is None else runs.parent(pids[to_rank]), number)
    # mpirun returns the code of its ranks, or 1 if it got the request itself.
    waits = 2 * PATIENCE if under == PATIENT else 0
    summary = run.ends(None if under else 143, within=waits + _faults.GRACE + (3 if under else 0), kind="stopped")
    run.check(summary["exit_code"] == 143, f"summary: exit {summary['exit_code']}")
    saved = runs.newest_checkpoint(run.output)
    steps = int(saved.name.split("-")[1])
    run.check(steps == summary["steps"] and steps >= 20, f"{saved.name} after {summary['steps']} steps")
    states = [run.state(rank)[0] for rank in (0, 1)]
    run.check(states == [steps - 1, steps - 1], f"the last steps of the ranks: {states}")
    # A checkpoint is valid if the next run can resume from it.
    run.sets = [f"train.max_steps={steps + 3}"]
    again = run.start()
    run.check(again.process.wait(timeout=60) == 0, "the next run does not resume from it")
    run.check(f"after step {steps}" in run.console(), "the next run starts at another step")


def at_once(folder, backend):
    # Ranks that join a job which has ended must not set its summary back to `running`.
    run = _faults.Run(folder, backend, title=f"{backend}: asked before the ranks are there")
    run.start()
    runs.wait_for(lambda: "mpirun" in run.console() or (run.output / "summary.json").exists(), 10, "the beginning")
    run.signal(run.process.pid, signal.SIGTERM)
    run.ends(143, within=_faults.GRACE + 2, kind="stopped")


def twice(folder, backend):
    # The sleeping rank prevents the others from stopping; the grace period has not passed.
    run = _faults.Run(folder, backend, "sleep:60s:rank=1@step=20", sets=["launch.grace=30s"],
                      title=f"{backend}: asked twice")
    run.start()
    run.happened()
    run.process.send_signal(signal.SIGTERM)
    time.sleep(0.7)
    run.signal(run.process.pid, signal.SIGTERM)
    run.ends(143, within=1, kind="stopped", says=["stop requested twice"])


def deaf(folder, backend):
    run = _faults.Run(folder, backend, "loop:rank=1@step=20", title=f"{backend}: a rank that does not stop")
    run.start()
    run.happened()
    state = run.output / "logs" / "rank1.state"
    runs.wait_for(lambda: b"injected loop" in state.read_bytes(), 5, "the phase that names the loop")
    run.signal(run.process.pid, signal.SIGTERM)
    run.ends(143, within=_faults.GRACE + 1, kind="stopped", says=["launch.grace"])


def silent(folder, backend):
    run = _faults.Run(folder, backend, "stop:rank=1@step=20", sets=["launch.grace=60s", "launch.collective=30s"],
                      title=f"{backend}: a rank that is silent")
    run.start()
    run.happened()
    run.signal(run.process.pid, signal.SIGTERM)
    run.ends(143, within=_faults.HEARTBEAT + 2, kind="stopped", says=["before all ranks had saved", "heartbeat"])


with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        stopped(folder, backend)
        at_once(folder, backend)
        twice(folder, backend)
        deaf(folder, backend)
        silent(folder, backend)
    stopped(folder, "gloo", signal.SIGINT)
    stopped(folder, "gloo", signal.SIGUSR1)
    stopped(folder, "mpi", under=PATIENT)
    stopped(folder, "mpi", signal.SIGUSR1, under=_faults.MPIRUN)
    for rank in (0, 1):
        stopped(folder, "mpi", under=_faults.MPIRUN, to_rank=rank)
