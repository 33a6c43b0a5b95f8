"""One of four gloo ranks is killed: seconds until the next step, and until a new rank takes part; torchrun's restart"""
import os
import statistics
import subprocess
import sys
import tempfile

import harness

NCF = "configs/ncf_story.yaml"  # 12.45 M weights with two moments, which a new rank receives
SETS = ["strategy={name: ddp}", "backend=gloo", "launch.bind=none", "launch.min_ranks=2", "launch.max_restarts=1",
        "train.max_steps=400", "train.epochs=~", "train.batch={global: 1024}", "train.evaluate_every=never",
        "train.checkpoint_every=never"]
LOST, NEW, TORCHRUN = "convoy: lost rank", "convoy: new rank", "torchrun: lost rank"


def torchrun():
    """Seconds from the end of a rank until the workers that torchrun starts again have done a step of a tiny model."""
    script = harness.TOP / "tests" / "bench" / "peers" / "startup.py"
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4",
                                   "--standalone", "--max-restarts", "1", str(script),
                                   "--lose-rank", folder + "/store"], timeout=180,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
        at = {words.rsplit(maxsplit=1)[0]: float(words.split()[-1]) for words in done.stdout.splitlines() if words}
        if {"first step done", "rank 1 ends"} <= at.keys():
            return at["first step done"] - at["rank 1 ends"]
        harness.say(f"  {TORCHRUN}: it failed otherwise, and is repeated")
    sys.exit(f"benchmark: torchrun ended with {done.returncode}:\n{done.stdout[-500:]}{done.stderr[-2000:]}")


class Convoy:
    """One run gives both times: after a loss the supervisor replaces the rank."""

    def lost(self):
        self.changes = harness.Run(NCF, SETS, ranks=4, inject=["kill:rank=1@step=20"]).summary["membership"]
        return next(change["seconds"] for change in self.changes if change["left"])

    def new(self):
        return next(change["seconds"] for change in self.changes if change.get("joined"))


if __name__ == "__main__":
    options = harness.arguments(__doc__, rounds=5).parse_args()
    measured = {TORCHRUN: [], LOST: [], NEW: []}
    for _ in range(options.rounds):
        convoy = Convoy()
        for name, measure in {TORCHRUN: torchrun, LOST: convoy.lost, NEW: convoy.new}.items():
            measured[name].append(measure())
    harness.table(measured, TORCHRUN, "seconds")
    ok = harness.check("until the next step, seconds", statistics.median(measured[LOST]), 3.0, aim=1.0)
    ok &= harness.check("until a new rank takes part, seconds", statistics.median(measured[NEW]), 5.0, aim=2.0)
    sys.exit(0 if ok else 1)
