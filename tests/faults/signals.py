"""Every signal, sent to convoy, to a rank and to the convoy of a rank under mpirun: it requests a stop, does nothing,
or ends the process, as in docs/launching.md. Signals that the caller ignores stay ignored."""
import contextlib
import os
import pathlib
import re
import signal
import struct
import sys
import time

import _faults
from _faults import runs

STOP = "TERM INT HUP USR1 USR2 ALRM VTALRM XCPU PWR".split()
NOTHING = "PIPE URG WINCH CONT IO PROF STKFLT XFSZ CHLD".split()
REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
STACKS = signal.SIGRTMIN + 6  # signals of a rank's thread
AT_ONCE = ["QUIT"]
ENDS = "ILL TRAP ABRT BUS FPE SEGV SYS KILL".split()
HALTS = "STOP TSTP TTIN TTOU".split()
STKFLT = 16


def number(name):
    return STKFLT if name == "STKFLT" else getattr(signal, f"SIG{name}")


def started(folder, title, ignored=(), under=(), **more):
    run = _faults.Run(folder, "mpi" if under else "auto", title=title, ranks=2 if under else 1,
                      strategy="{name: ddp}" if under else "{name: single}", **more)
    before = {number(name): signal.signal(number(name), signal.SIG_IGN) for name in ignored}
    try:
        run.start(under=under)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    goes_on(run)
    return run


def step(run):
    with contextlib.suppress(OSError, struct.error):
        return run.state(0)[0]
    return -1


def goes_on(run):
    at = max(step(run), 5)
    runs.wait_for(lambda: step(run) > at + 5 or run.process.poll() is not None, 60, f"{run.title}: steps")
    run.check(run.process.poll() is None, f"ended with {run.process.returncode}")


def stopped(run, within=_faults.GRACE, code=143):
    summary = run.ends(code, within=within, kind="stopped")
    run.check(summary["exit_code"] == 143, f"summary: exit {summary['exit_code']}")
    return summary


def saved(run):
    summary = runs.summary(run.output)
    newest = runs.newest_checkpoint(run.output)
    run.check(newest.name == f"step-{summary['steps']}", f"{newest.name} after {summary['steps']} steps")


def rank_of(run):
    return runs.named(run.marked(), "convoy-rank")[0]


def asks_to_stop(folder, name, to="convoy"):
    run = started(folder, f"SIG{name} to {to}")
    run.signal(run.process.pid if to == "convoy" else rank_of(run), number(name))
    stopped(run)
    saved(run)


def does_nothing(folder, to):
    run = started(folder, f"{len(NOTHING)} signals and {len(REAL_TIME)} real-time ones to {to}")
    pid = run.process.pid if to == "convoy" else rank_of(run)
    for one in [*map(number, NOTHING), *REAL_TIME]:
        if one != STACKS or to == "convoy":
            os.kill(pid, one)
    goes_on(run)
    run.signal(run.process.pid, signal.SIGTERM)
    stopped(run)


def at_once(folder):
    run = started(folder, "SIGQUIT to convoy")
    run.signal(run.process.pid, signal.SIGQUIT)
    stopped(run, within=1)


def stays_ignored(folder):
    """As under nohup, and in the background of a script. The ranks inherit ignored signals."""
    run = started(folder, "SIGHUP and SIGINT ignored by the caller", ignored=["HUP", "INT", "QUIT"])
    rank = rank_of(run)
    for pid in (run.process.pid, rank):
        ignored = int(re.search(r"SigIgn:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1), 16)
        for name in ("HUP", "INT", "QUIT"):
            run.check(ignored >> number(name) - 1 & 1, f"SIG{name} is not ignored by {pid}")
            os.kill(pid, number(name))
    goes_on(run)
    run.signal(run.process.pid, signal.SIGTERM)
    stopped(run)


def deaf_to_children(folder):
    run = started(folder, "SIGCHLD ignored by the caller", ignored=["CHLD"], steps=200)
    run.check(run.process.wait(timeout=30) == 0, "it does not see its rank end")


def ends_it(folder, name):
    """No process is left to write the final status: readers of the summary see that its owner is gone."""
    run = started(folder, f"SIG{name} to convoy")
    run.signal(run.process.pid, number(name))
    run.check(run.process.wait(timeout=5) == -number(name), "it did not end by the signal")
    runs.wait_for(lambda: not run.marked(), 3, f"{run.title}: all gone")
    seen = runs.subprocess.run([runs.CONVOY, "top", run.output, "--once"], stdout=runs.subprocess.PIPE,
                               text=True).stdout
    run.check("gone" in seen and "ended without a result" in seen, f"top says {seen}")
    run.sets = ["train.max_steps=3"]
    again = run.start()
    run.check(again.process.wait(timeout=60) == 0 and runs.summary(run.output)["status"] == "done",
              "it does not continue")


def at_once_under_mpirun(folder, *names):
    """To the convoy of another rank than that of the supervisor."""
    run = started(folder, f"{' and '.join(names)} to the convoy of rank 1 under mpirun", under=_faults.MPIRUN,
                  sets=["launch.grace=30s"])
    pids = run.ranks()
    convoy = runs.parent(pids[1])
    if len(names) > 1:
        run.signal(pids[0], signal.SIGSTOP)  # no rank can end its step
    for name in names:
        with contextlib.suppress(ProcessLookupError):
            run.signal(convoy, number(name))
        time.sleep(0.7 if len(names) > 1 else 0)
    runs.wait_for(lambda: run.process.poll() is not None and not run.marked(), 15, f"{run.title}: all gone")
    summary = stopped(run, within=_faults.GRACE + 4, code=None)
    wanted = "requested twice" if len(names) > 1 else "requested at once"
    run.check(wanted in summary["failure"]["message"], f"it says {summary['failure']['message']}")


def in_own_mpirun(folder):
    """convoy's own mpirun sends TERM to the other convoys after a failure, so there it is no request to stop."""
    run = _faults.Run(folder, "mpi", title="SIGTERM to the convoy of rank 1 in convoy's mpirun, then to the rank")
    run.start()
    goes_on(run)
    rank = run.ranks()[1]
    for _ in range(2):
        os.kill(runs.parent(rank), signal.SIGTERM)
        time.sleep(0.7)
    goes_on(run)
    run.signal(rank, signal.SIGTERM)
    stopped(run)
    saved(run)


def halts(folder):
    run = started(folder, "SIGTSTP and SIGCONT to convoy")
    os.kill(run.process.pid, signal.SIGTSTP)
    time.sleep(0.5)
    os.kill(run.process.pid, signal.SIGCONT)
    goes_on(run)
    run.signal(run.process.pid, signal.SIGTERM)
    stopped(run)


def nobody_reads():
    """With SIGPIPE ignored, an output without a reader is not reported as a full disk."""
    line = f"trap '' PIPE; {{ sleep 0.2; {runs.CONVOY} list models; echo $? >&2; }} | true"
    done = runs.subprocess.run(["bash", "-c", line], timeout=20, text=True, capture_output=True)
    runs.check(done.stderr == "0\n", f"convoy list models | true: {done.stderr}")


def under_mpirun(folder, name, to):
    run = started(folder, f"SIG{name} to {to} under mpirun", under=_faults.MPIRUN)
    pids = run.ranks()
    convoys = [runs.parent(pid) for pid in pids]
    for pid in {"mpirun": [run.process.pid], "the convoy of rank 1": convoys[1:],
                "all": [run.process.pid, *convoys]}[to]:
        with contextlib.suppress(ProcessLookupError):
            run.signal(pid, number(name))
    # mpirun kills all processes a second after its TERM, and does not wait for their children.
    runs.wait_for(lambda: run.process.poll() is not None and not run.marked(), 15, f"{run.title}: all gone")
    stopped(run, within=_faults.GRACE + 4, code=None)
    saved(run)
    run.check(not (run.output / "failure.json").exists(), "a stopped run has left failure.json")


names = {number(name) for name in STOP + NOTHING + AT_ONCE + ENDS + HALTS}
missing = set(range(1, 32)) - names
runs.check(not missing, f"no word about signals {missing}")

with runs.workspace() as folder:
    jobs = [lambda name=name: asks_to_stop(folder, name) for name in STOP if name not in ("TERM", "INT", "USR1")]
    jobs += [lambda name=name: asks_to_stop(folder, name, "a rank") for name in ("HUP", "XCPU", "USR2", "ALRM")]
    jobs += [lambda to=to: does_nothing(folder, to) for to in ("convoy", "a rank")]
    jobs += [lambda: at_once(folder), lambda: halts(folder), lambda: ends_it(folder, "ABRT")]
    for at in range(0, len(jobs), 4):
        _faults.together(*jobs[at:at + 4])
    # Only the main thread can ignore signals.
    stays_ignored(folder)
    deaf_to_children(folder)
    nobody_reads()
    if "gloo" not in sys.argv[1:]:
        for name, to in (("INT", "mpirun"), ("INT", "all"), ("HUP", "the convoy of rank 1")):
            under_mpirun(folder, name, to)
        at_once_under_mpirun(folder, "QUIT")
        at_once_under_mpirun(folder, "TERM", "TERM")
        in_own_mpirun(folder)
