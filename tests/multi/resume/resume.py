"""A run that was killed or stopped, and started again, ends with the weights of an undisturbed one, bit for bit."""
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

config = runs.TOP / "configs" / "tiny" / "ncf.yaml"
SETS = ["launch.cores_per_rank=1", "train.epochs=6", "train.checkpoint_every=7 steps", "train.log_every=1"]

def drawing_by_itself(folder):
    """Blocks that draw from LibTorch's generators continue with the numbers of an undisturbed run."""
    config = runs.TOP / "configs" / "tiny" / "plugin_wrong.yaml"
    sets = ["launch.cores_per_rank=1", "strategy={name: ddp}", f"model.plugin={runs.BUILD}/tests/libplugin_wrong.so",
            "model.over=nothing", "model.noise=true", "train.checkpoint_every=10 steps"]
    runs.run(config, folder / "drawing", sets, ranks=2)
    runs.run(config, folder / "resumed", [*sets, f"train.resume={folder}/drawing/checkpoints/step-20"], ranks=2)
    runs.check(runs.weights(folder / "drawing") == runs.weights(folder / "resumed"),
               "weights differ with draws of blocks")
    # Another layout cannot draw the same numbers, and reports it.
    other = [*sets, "strategy={name: single}", f"train.resume={folder}/drawing/checkpoints/step-20"]
    runs.run(config, folder / "alone", other, ranks=1)
    text = (folder / "alone" / "logs" / "rank0.log").read_text()
    runs.check("draws other numbers than a run without interruption" in text, text)
    print("draws of blocks: equal in the same layout, reported in another")


with runs.workspace() as folder:
    drawing_by_itself(folder)
    for backend in ("gloo", "mpi"):
        sets = [*SETS, f"backend={backend}"]
        whole = runs.run(config, folder / f"{backend}-whole", sets, ranks=2)

        killed = folder / f"{backend}-killed"
        process = runs.start(config, killed, sets, ranks=2)
        ranks = runs.rank_pids(process, 2)
        runs.training(killed, step=whole["steps"] // 3)
        if backend == "gloo":
            runs.check(not runs.listeners(ranks), "ranks still listen while they train")
        os.kill(ranks[-1], signal.SIGKILL)
        code = runs.end(process, 10)
        runs.check(code == 137, f"{backend}: exit {code} after a SIGKILL, expected 137")
        failure = runs.summary(killed)["failure"]
        runs.check(failure["signal"] == 9 and failure["rank"] in (0, 1) and failure["step"] > 0,
                   f"{backend}: {failure}")
        again = runs.run(config, killed, sets, ranks=2)
        runs.check(again["status"] == "done" and again["steps"] == whole["steps"], f"{backend}: {again['steps']} steps")
        runs.check(runs.weights(killed) == runs.weights(folder / f"{backend}-whole"),
                   f"{backend}: weights differ after a kill")

        stopped = folder / f"{backend}-stopped"
        at = runs.stopped_and_resumed(backend, config, stopped, sets, whole, after=whole["steps"] // 4)
        runs.check(runs.weights(stopped) == runs.weights(folder / f"{backend}-whole"),
                   f"{backend}: weights differ after a stop")
        print(f"{backend}: killed, stopped at {at}, resumed: equal")
