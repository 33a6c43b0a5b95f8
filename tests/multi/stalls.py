"""Stalls as users see them: one table that names who is missing, with its stack; a rank alone; calls that differ late."""
# timeout: 200
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
import _faults
from _faults import runs

STEP = 20
LATE = _faults.COLLECTIVE + _faults.GRACE + 1


def place(run, summary, rank):
    found = [p for p in summary["failure"].get("ranks", []) if p["rank"] == rank]
    run.check(len(found) == 1, f"failure.ranks lacks rank {rank}")
    return found[0]


def endless_loop(folder, backend):
    run = _faults.Run(folder, backend, f"loop:rank=1:block=0@step={STEP}", title=backend)
    summary = run.start().ends(110, within=LATE, kind="hang", rank=1, step=STEP,
                               says=("rank 1 has not come to all-reduce", f"forward/backward, step {STEP}"))
    guilty, waiting = place(run, summary, 1), place(run, summary, 0)
    run.check(guilty["to_blame"] and not waiting["to_blame"], "the wrong one is to blame")
    run.check((waiting["collective"] or "").startswith("all_reduce"), f"rank 0 does not wait: {waiting}")
    run.check(guilty["seconds"] > _faults.COLLECTIVE - 1, f"in its place for {guilty['seconds']} s")
    frames = [f for s in summary["failure"]["stacks"] if s["rank"] == 1 for f in s["frames"]]
    run.check(any("Injector::forward" in f for f in frames), f"the stack does not lead through the model: {frames}")
    for text in (run.console(), (run.output / "logs" / "stalls.log").read_text()):
        run.check("where the ranks are:" in text and "Injector::forward" in text and "<- here" in text, f"no table in {text}")
    run.check(run.console().count("that is half of its time limit") == 1, "not one warning at half of the limit")


def stopped(folder, backend):
    run = _faults.Run(folder, backend, f"stop:rank=1@step={STEP}", title=backend)
    summary = run.start().ends(110, within=_faults.HEARTBEAT + _faults.GRACE + 1, kind="hang", rank=1, step=STEP,
                               says=("heartbeat", f"it was in loader, step {STEP}", "stopped by a signal"))
    run.check(place(run, summary, 1)["stopped"] and not place(run, summary, 1)["answered"], "it is not told as stopped")
    run.check("no stack, since it is stopped" in run.console(), "the table does not say why there is no stack")


def alone(folder):
    run = _faults.Run(folder, "auto", f"loop@step={STEP}", title="alone", strategy="{name: single}", ranks=1,
                      sets=["launch.step_timeout=2s"])
    run.start().ends(110, within=2 + _faults.GRACE + 2, kind="hang", rank=0, step=STEP,
                     says=("launch.step_timeout", f"loader, step {STEP}"))


# Long after the calls that are compared one by one.
def differs_late(folder, backend, part):
    run = _faults.Run(folder, backend, f"mismatch:{part}:rank=1@step=300", title=backend)
    summary = run.start().ends(None, within=LATE, says=("rank 0", "rank 1"), kind="disagreement")
    run.check(summary["exit_code"] == 76, f"exit {summary['exit_code']}")


def costs(folder, backend):
    run = _faults.Run(folder, backend, title=backend, steps=300, sets=["launch.check_collectives=all"])
    code = runs.end(run.start().process, 60)
    run.check(code == 0, f"exit {code}")
    for rank in runs.summary(run.output)["ranks"]:
        run.check(0 < rank["supervision_cpu_seconds"] < rank["cpu_seconds"], f"supervision: {rank}")


with runs.workspace() as folder:
    _faults.together(lambda: endless_loop(folder, "gloo"), lambda: stopped(folder, "mpi"), lambda: alone(folder))
    costs(folder, "mpi")
    for backend in ("gloo", "mpi"):
        for part in ("shape", "operation"):
            differs_late(folder, backend, part)
