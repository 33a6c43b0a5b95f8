"""A program of a user fails like convoy-rank: missing or not executable, an exception, an early end,
a kill, a crash, a hang, other calls, a request to stop, under mpirun, and a restart."""
import os
import signal
import sys
import time

import _faults
from _faults import runs

JOB = runs.BUILD / "tests" / "job"
STEP = 3


class Program(_faults.Run):
    def __init__(self, folder, *arguments, title="", sets=(), program=JOB):
        super().__init__(folder, "auto", title=f"program: {title or ' '.join(arguments)}", sets=sets)
        words = ", ".join(map(str, [program, *arguments]))
        keys = ("model:", "data:", "optimizer:", "train:", "        log_every", "strategy:", "backend:")
        lines = [line for line in self.config.read_text().splitlines() if not line.startswith(keys)]
        self.config.write_text(f"program: [{words}]\n" + "\n".join(lines) + "\n")
        self.failed_at = time.time()  # near enough: a step takes milliseconds

    def ranks_there(self):
        return runs.wait_for(lambda: (lambda p: p if len(p) == 2 else None)(runs.named(self.marked(), "job")), 60,
                             "two ranks")


def failing(folder, action, code, kind, rank=1, within=20, under=(), signal_number=None, step=STEP, says=(), sets=(),
            known=True):
    run = Program(folder, "--steps", "100000", "--at", str(STEP), "--rank", str(rank), "--do", action,
                  title=f"{'mpirun, ' if under else ''}{action} on rank {rank}", sets=sets)
    run.start(under=under)
    return run, run.ends(code, within=within, kind=kind, rank=rank if known else None, signal_number=signal_number,
                         step=step, says=says)


def killed_after_job(folder):
    """A program may continue after its job. If mpirun is killed then, the run has failed, although the results are
    complete."""
    script = folder / "works_on"
    script.write_text(f'#!/bin/sh\n{JOB} "$@" && sleep 30\n')
    script.chmod(0o755)
    run = Program(folder, "--steps", "30", "--pause", "0.01", title="convoy's mpirun killed after the job",
                  program=script, sets=["backend=mpi"])
    run.start()
    runs.wait_for(lambda: run.console().count("added") >= 2, 60, "the results")
    time.sleep(0.5)
    run.signal(runs.named(run.marked(), "mpirun")[0], signal.SIGKILL)
    code = runs.end(run.process, 10)
    summary = runs.summary(run.output)
    run.check(code in (75, 137) and summary["status"] == "failed", f"exit {code}, {summary['status']}")
    run.check("mpirun" in summary["failure"]["message"], f"no word of mpirun: {summary['failure']['message']}")
    run.sweep()  # ends the shell's sleep
    print(f"{run.title}: exit {code}: {summary['failure']['message'][:110]}")


with runs.workspace() as folder:
    for code, name in ((127, "missing"), (126, "plain")):
        (folder / "plain").write_text("no program")
        run = Program(folder, title=name, program=folder / name)
        run.start().ends(code, within=1)
        run.check(name in run.console() and "rendezvous" not in run.console(), "the message does not name the program")
    for rank in (0, 1):
        run, summary = failing(folder, "throw", 70, "training", rank, says=["the program broke"])
        run.check(f"rank {rank}" in run.console() and f"step {STEP}" in run.console(), "rank and step are not named")
        failing(folder, "kill", 137, "signal", rank, signal_number=9, says=[f"rank {rank}", f"step {STEP}"])
    failing(folder, "catch", 70, "training", says=["an exception left the scope of the Job"])
    failing(folder, "exit", 70, "training", says=["before the end of its job"])
    failing(folder, "return", 70, "training", says=["before the end of its job"])
    failing(folder, "leave", 70, "training", says=["ended with 0 before the training was done"])
    run, _ = failing(folder, "crash", 139, "signal", signal_number=11)
    run.check("backtrace" in run.log(1) and "SEGV" in run.log(1), "no backtrace in the victim's log")
    run, _ = failing(folder, "hang", 110, "hang", within=20 + _faults.COLLECTIVE,
                     says=["rank 1 has not reached all-reduce"])
    run.check("where the ranks are:" in run.console(), "no table of the ranks")
    run, _ = failing(folder, "mesh", 76, "disagreement", known=False, step=None, within=20 + _faults.COLLECTIVE)
    run.check("Job::mesh" in run.console() and "Job::sum" in run.console(), "the two calls are not named")
    run, _ = failing(folder, "end", 76, "disagreement", known=False, step=None, within=20 + _faults.COLLECTIVE)
    run.check("barrier 'end of training'" in run.console() and "no rank may leave the loop" in run.console(),
              "the early end is not named")
    failing(folder, "throw", None, "training", under=_faults.MPIRUN, says=["the program broke"])
    failing(folder, "kill", 137, "signal", under=_faults.MPIRUN, signal_number=9)

    for under in ((), ["mpirun", "--mca", "odls_base_sigkill_timeout", "6", *_faults.MPIRUN[1:]]):
        run = Program(folder, "--steps", "100000", "--pause", "0.01",
                      title=f"{'mpirun, ' if under else ''}asked to stop")
        run.start(under=under)
        run.ranks_there()
        run.training(STEP)
        run.signal(run.process.pid, signal.SIGTERM)
        summary = run.ends(None if under else 143, within=_faults.GRACE + (15 if under else 0), kind="stopped")
        run.check(summary["exit_code"] == 143 and summary["steps"] >= STEP,
                  f"{summary['exit_code']}, {summary.get('steps')}")

    # A restart starts from the beginning, because this program saves nothing.
    run = Program(folder, "--steps", "200", "--pause", "0.01", title="restart",
                  sets=["launch.max_restarts=1", "launch.backoff=0"])
    run.start()
    victims = run.ranks_there()
    run.training(STEP)
    os.kill(victims[-1], signal.SIGKILL)
    code = runs.end(run.process, 60)
    summary = runs.summary(run.output)
    run.check(code == 0 and summary["steps"] == 200 and len(summary["attempts"]) == 1, f"exit {code}")
    run.clean()
    killed_after_job(folder)
print("a program fails as convoy-rank does")
