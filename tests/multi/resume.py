"""A run that was killed, or asked to stop, and started again ends with the weights of an undisturbed one, bit for bit."""
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

config = runs.TOP / "configs" / "tiny" / "ncf.yaml"
SETS = ["launch.cores_per_rank=1", "train.epochs=6", "train.checkpoint_every=7 steps", "train.log_every=1"]

with runs.workspace() as folder:
    for backend in ("gloo", "mpi"):
        sets = [*SETS, f"backend={backend}"]
        whole = runs.run(config, folder / f"{backend}-whole", sets, ranks=2)

        killed = folder / f"{backend}-killed"
        process = runs.start(config, killed, sets, ranks=2)
        ranks = runs.rank_pids(process, 2)
        runs.training(killed, step=whole["steps"] // 3)
        os.kill(ranks[-1], signal.SIGKILL)
        code = runs.end(process, 10)
        runs.check(code == 137, f"{backend}: exit {code} after a SIGKILL, expected 137")
        failure = runs.summary(killed)["failure"]
        runs.check(failure["signal"] == 9 and failure["rank"] in (0, 1) and failure["step"] > 0, f"{backend}: {failure}")
        again = runs.run(config, killed, sets, ranks=2)
        runs.check(again["status"] == "done" and again["steps"] == whole["steps"], f"{backend}: {again['steps']} steps")
        runs.check(runs.weights(killed) == runs.weights(folder / f"{backend}-whole"), f"{backend}: other weights after a kill")

        stopped = folder / f"{backend}-stopped"
        at = runs.stopped_and_resumed(backend, config, stopped, sets, whole, after=whole["steps"] // 4)
        runs.check(runs.weights(stopped) == runs.weights(folder / f"{backend}-whole"), f"{backend}: other weights after a stop")
        print(f"{backend}: killed, stopped at {at}, resumed: equal")
