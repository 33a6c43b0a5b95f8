"""A run that loses a rank once restarts and ends with the weights of an undisturbed one, bit for bit.
A run whose ranks crash at the same step three times ends."""
# timeout: 300
import signal
import sys
import time

import _faults
from _faults import runs

STEPS = 60


def run_of(folder, backend, *faults, title="", most=1, checkpoint="10 steps", **options):
    return _faults.Run(folder, backend, *faults, title=title or backend, steps=STEPS, checkpoint=checkpoint,
                       sets=[f"launch.max_restarts={most}", "launch.backoff=0.2s"], **options)


def recovers(folder, backend, fault, code, expected):
    run = run_of(folder, backend, fault).start()
    ended = runs.end(run.process, 60)
    run.check(ended == 0, f"exit {ended}")
    run.clean()
    summary = runs.summary(run.output)
    run.check(summary["status"] == "done" and summary["failure"] is None and summary["attempt"] == 1,
              "not done by the second")
    (first,) = summary["attempts"]
    run.check(first["attempt"] == 0 and first["exit_code"] == code and first["failure"]["step"] == 25
              and first["checkpoint"] == 20, f"the first attempt's end: {first}")
    (happened,) = summary["injected"]
    run.check(happened["fault"] == fault and happened["attempt"] == 0, f"injected: {happened}")
    run.check("restart 1 of 1" in run.console() and "from the checkpoint after step 20" in run.console(), "not told")
    run.check(runs.weights(run.output) == expected, "weights differ from an undisturbed run")
    print(f"{run.title}: recovered, equal")


def gives_up(folder, backend):
    run = run_of(folder, backend, "kill:rank=1:always@step=25", most=100).start()
    summary = run.ends(93, within=_faults.GRACE + 2, kind="no_progress", rank=1, step=25, says=["step 25", "signal 9"])
    run.check([end["failure"]["signal"] for end in summary["attempts"]] == [9, 9, 9], "each attempt's cause is kept")
    run.check([end["attempt"] for end in summary["attempts"]] == [0, 1, 2], "attempts are counted")


def used_up(folder):
    run = run_of(folder, "gloo", "throw:rank=0:always@step=5", most=1, checkpoint="never").start()
    summary = run.ends(70, within=_faults.GRACE + 2, kind="training", rank=0, step=5)
    run.check(len(summary["attempts"]) == 2, f"{len(summary['attempts'])} attempts")


def stopped_between(folder):
    run = run_of(folder, "gloo", "throw@step=5", most=1)
    run.sets += ["launch.backoff=60s"]
    run.start()
    runs.wait_for(lambda: "start again in" in run.console(), 60, "the pause")
    time.sleep(0.2)
    run.signal(run.process.pid, signal.SIGTERM)
    summary = run.ends(143, within=1, kind="stopped", says=["between two attempts"])
    run.check(summary["attempts"][0]["failure"]["cause"] == "training", "the first cause is kept")


def stopped_while_failing(folder, backend, number):
    """A rank that does not end keeps the attempt for launch.failure_grace; a request to stop in that time counts."""
    run = run_of(folder, backend, title=f"{backend}: {number.name} while the attempt ends", most=1)
    run.sets += ["train.max_steps=1000000"]
    run.start()
    ranks = run.ranks()
    run.training(20)
    run.signal(ranks[0], signal.SIGSTOP)
    run.signal(ranks[1], signal.SIGKILL)
    runs.wait_for(lambda: "failed: rank 1" in run.console(), 10, "the failure")
    time.sleep(0.3)
    run.signal(run.process.pid, number)
    summary = run.ends(143, within=8, kind="stopped", says=["between two attempts"])
    run.check(summary["attempts"][0]["failure"]["signal"] == 9, "the first cause is kept")


def convoy_killed(folder):
    """A convoy is killed. mpirun then sends SIGTERM to the other convoys, which is no request to stop."""
    run = run_of(folder, "mpi", title="mpi: the convoy of rank 1 killed")
    run.sets += ["train.max_steps=3000"]
    run.start()
    rank = run.ranks()[1]
    run.training(20)
    run.signal(runs.parent(rank), signal.SIGKILL)
    code = runs.end(run.process, 60)
    summary = runs.summary(run.output)
    run.check(code == 0 and len(summary["attempts"]) == 1, f"exit {code}, {summary['failure']}")
    run.clean()
    print(f"{run.title}: restarted")


def not_under_mpirun(folder):
    run = run_of(folder, "mpi", "kill:rank=1@step=25", title="mpirun")
    run.start(under=_faults.MPIRUN).ends(137, within=5, kind="signal", rank=1, signal_number=9, step=25)
    run.check("launch.max_restarts has no effect here" in run.console(), "it does not say that mpirun cannot")


with runs.workspace() as folder:
    undisturbed = run_of(folder, "gloo", title="undisturbed").start()
    code = runs.end(undisturbed.process, 60)
    undisturbed.check(code == 0, f"exit {code}")
    expected = runs.weights(undisturbed.output)
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for rank in (0, 1):
            recovers(folder, backend, f"kill:rank={rank}@step=25", 137, expected)
        gives_up(folder, backend)
    recovers(folder, "gloo", "nan:rank=1@step=25", 70, expected)
    used_up(folder)
    stopped_between(folder)
    stopped_while_failing(folder, "gloo", signal.SIGTERM)
    stopped_while_failing(folder, "mpi", signal.SIGQUIT)
    for _ in range(3):
        convoy_killed(folder)
    not_under_mpirun(folder)
