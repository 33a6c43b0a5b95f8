"""Stalls told by one table that names who is missing: a loop in a model, a stopped process, a late rank, a rank alone."""
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
import _faults
from _faults import runs

_faults.requirements()


def console(run):
    return (run.folder / "console").read_text()


def place(run, summary, rank):
    found = [p for p in summary["failure"]["ranks"] if p["rank"] == rank]
    run.check(len(found) == 1, f"failure.ranks lacks rank {rank}")
    return found[0]


def endless_loop(folder, backend, strategy="{name: ddp}"):
    run = _faults.Run(folder, backend, "loop", rank=1, at=20, title=f"{backend}: endless loop", strategy=strategy)
    run.start()
    summary = run.ends(110, within=_faults.COLLECTIVE + _faults.GRACE + 1, kind="hang", rank=1, step=20,
                       says=("rank 1 has not come to all-reduce", "forward/backward, step 20"))
    run.check(place(run, summary, 1)["to_blame"] and not place(run, summary, 0)["to_blame"], "the wrong one is to blame")
    run.check((place(run, summary, 0)["collective"] or "").startswith("all_reduce"), "rank 0 does not wait")
    frames = [f for s in summary["failure"]["stacks"] if s["rank"] == 1 for f in s["frames"]]
    run.check(any("FaultyBlock::forward (libconvoy_faulty.so)" in f for f in frames), f"the stack does not name the model: {frames}")
    for text in (console(run), (run.output / "logs" / "stalls.log").read_text()):
        run.check("where the ranks are:" in text and "FaultyBlock::forward" in text, "no table")
    run.check(console(run).count("warning: rank 1 has not come to all-reduce") == 1, "not one warning at half of the limit")


def stopped(folder, backend):
    run = _faults.Run(folder, backend, title=f"{backend}: SIGSTOP")
    run.start()
    pids = run.ranks()
    run.training()
    run.inject(pids[1], signal.SIGSTOP)
    summary = run.ends(110, within=_faults.HEARTBEAT + _faults.GRACE + 1, kind="hang", rank=1, says=("stopped by a signal",))
    run.check(place(run, summary, 1)["stopped"] and not place(run, summary, 1)["answered"], "it is not told as stopped")
    run.check("no stack, since it is stopped" in console(run), "the table does not say why there is no stack")


def late(folder, backend):
    run = _faults.Run(folder, backend, "sleep", rank=1, at=20, seconds=_faults.COLLECTIVE * 0.7, steps=60,
                      title=f"{backend}: late, but in time")
    run.start()
    code = run.process.wait(timeout=90)
    run.check(code == 0, f"exit {code}")
    said = [line for line in console(run).splitlines() if "has not come to" in line]
    run.check(len(said) == 1 and "rank 1 has not come to all-reduce" in said[0] and "step 20" in said[0], f"said: {said}")
    run.clean()


def alone(folder):
    run = _faults.Run(folder, "auto", "loop", rank=0, at=20, title="alone: endless loop", strategy="{name: single}", ranks=1)
    text = run.config.read_text()
    run.config.write_text(text.replace("launch:\n", "launch:\n  step_timeout: 2s\n"))
    run.start()
    run.ends(110, within=2 + _faults.GRACE + 2, kind="hang", rank=0, step=20, says=("launch.step_timeout", "forward/backward"))


with runs.workspace() as folder:
    endless_loop(folder, "gloo")
    stopped(folder, "mpi")
    late(folder, "gloo")
    alone(folder)
