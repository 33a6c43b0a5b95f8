"""From launch to the end of the first step, two ranks: convoy over gloo and mpi against torchrun"""
import os
import subprocess
import sys
import time

import harness

# Known seconds on two idle cores: torchrun, and one process of Python alone. If this machine runs Python more slowly,
# torchrun's expected value grows by the same factor.
KNOWN_TORCHRUN, KNOWN_ALONE = 3.50, 1.56
ALONE = "python, one process"


def alone():
    start = time.time()
    script = harness.TOP / "tests" / "bench" / "peers" / "startup.py"
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1",
                                            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    return float(done.stdout.split("first step done")[1].split()[0]) - start


def torchrun():
    start = time.time()
    script = harness.TOP / "tests" / "bench" / "peers" / "startup.py"
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
                           str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    return float(done.stdout.split("first step done")[1].split()[0]) - start


def convoy(backend):
    def measure():
        run = harness.Run("configs/tiny/startup.yaml", [f"backend={backend}"], ranks=2)
        return run.summary["startup_seconds"]
    return measure


if __name__ == "__main__":
    options = harness.arguments(__doc__, rounds=5).parse_args()
    convoy("gloo")()  # warm the disk cache for all
    torchrun()
    figures = harness.interleave(options.rounds, {ALONE: alone, "torchrun": torchrun, "convoy gloo": convoy("gloo"), "convoy mpi": convoy("mpi")},
                                 reference="torchrun", 
                                 expected=lambda this: KNOWN_TORCHRUN * max(1, this[ALONE] / KNOWN_ALONE))
    harness.table(figures, "torchrun", "seconds")
    harness.say(f"torchrun's known figure on idle cores: {KNOWN_TORCHRUN} s; {ALONE}: {KNOWN_ALONE} s")
    ok = True
    for backend in ("gloo", "mpi"):
        ok &= harness.verdict(f"launch to first step, {backend}, seconds",
                              harness.statistics.median(figures[f"convoy {backend}"]), 2.0, aim=1.0)
    sys.exit(0 if ok else 1)
