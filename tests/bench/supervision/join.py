"""64 ranks that only join, from launch until all joined; compared with as many processes that only load LibTorch"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import harness

RANKS = 64
LIMIT = 20.0  # seconds


def joined(backend):
    def measure():
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [str(harness.CONVOY), "bench", "all_reduce", "--ranks", str(RANKS), "--sizes", "4",
                       "--json", file.name, "--set", f"backend={backend}", "--set", "device=cpu"]
            done = subprocess.run(command, cwd=harness.TOP, env={**os.environ, **harness.runs.MPI}, timeout=300,
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                sys.exit(f"benchmark: {' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-3000:]}")
            return json.loads(open(file.name).read())["joined_seconds"]
    return measure


def loaded():
    """Starts as many rank programs, which end after loading LibTorch because they find no job."""
    start = time.monotonic()
    program = [str(harness.TOP / "build" / "convoy-rank")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CONVOY_")}
    ranks = [subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean)
             for _ in range(RANKS)]
    for rank in ranks:
        rank.wait(timeout=120)
    return time.monotonic() - start


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    measured = harness.interleave(options.rounds, {"LibTorch loaded": loaded, "joined, gloo": joined("gloo"),
                                                  "joined, mpi": joined("mpi")})
    harness.table(measured, "LibTorch loaded", "seconds")
    ok = True
    for backend in ("gloo", "mpi"):
        ok &= harness.check(f"{RANKS} ranks joined, {backend}, seconds",
                              statistics.median(measured[f"joined, {backend}"]), LIMIT)
    sys.exit(0 if ok else 1)
