"""All-reduce of two ranks: mpi compared with a C program on Open MPI, gloo compared with c10d, and local"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

import harness

SIZES = [4096, 450_000, 49_000_000]
PEER = "bare Open MPI"
KNOWN = 44  # its microseconds for 450 KB, of two idle cores
BARE = harness.TOP / "build" / "tests" / "bench" / "bare_all_reduce"


def run(command):
    done = subprocess.run(command, cwd=harness.TOP,
                          env={**os.environ, **harness.runs.MPI, "OMP_NUM_THREADS": "1"}, timeout=120, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"benchmark: {' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def convoy(backend):
    """Returns microseconds by size, as measured by a job of two ranks."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run([str(harness.CONVOY), "bench", "all_reduce", "--ranks", "2", "--sizes", ",".join(map(str, SIZES)), "--json",
             file.name, "--set", f"backend={backend}", "--set", "device=cpu"])
        rows = json.loads(open(file.name).read())["rows"]
    return {row["bytes"]: 1e6 * row["seconds"] for row in rows}


def bare():
    lines = run(["mpirun", "-n", "2", str(BARE), *map(str, SIZES)]).splitlines()
    return {int(size): float(time) for size, time in map(str.split, lines)}


def c10d():
    return {int(size): time for size, time in harness.peer("all_reduce.py", *SIZES).items()}


if __name__ == "__main__":
    options = harness.arguments(__doc__, rounds=7).parse_args()
    subprocess.run(["ninja", "-C", str(harness.TOP / "build"), "bench_bare_all_reduce"], check=True,
                   stdout=subprocess.DEVNULL)
    contestants = {"convoy mpi": lambda: convoy("mpi"), PEER: bare, "convoy gloo": lambda: convoy("gloo"),
                   "c10d gloo": c10d, "convoy local": lambda: convoy("local")}
    seen = []

    def usual(this):
        """Returns the median of Open MPI's times so far: the known 44 us are from a machine twice as fast."""
        seen.append(this[PEER])
        return statistics.median(seen)
    times = harness.interleave(options.rounds, contestants, PEER, usual, number=lambda times: times[450_000])
    ok = True
    for size in SIZES:
        measured = {name: [one[size] for one in values] for name, values in times.items()}
        harness.table({name: measured[name] for name in (PEER, "convoy mpi")}, PEER,
                      f"us, {size} bytes")
        harness.table({name: measured[name] for name in ("c10d gloo", "convoy gloo")}, "c10d gloo", f"us, {size} bytes")
        harness.say(f"{'convoy local':26s}{harness.spread(measured['convoy local'])}")
        ok &= harness.check(f"mpi, {size} bytes, ratio to the bare program",
                              harness.median_ratio(measured, "convoy mpi", PEER), 1.0 if size == 450_000 else 2.0,
                              aim=0.7 if size == 450_000 else 1.2)
        # Allow a twentieth, because two runs of the same program differ by that much.
        ok &= harness.check(f"gloo, {size} bytes, ratio to c10d's own",
                              harness.median_ratio(measured, "convoy gloo", "c10d gloo"), 1.05)
        if size == 450_000:
            harness.say(f"{PEER}: {statistics.median(measured[PEER]):.0f} us here, {KNOWN} us known of two idle cores")
            ok &= harness.check("gloo, 450 KB in host memory, ratio to bare Open MPI",
                                  harness.median_ratio(measured, "convoy gloo", PEER), 1.0, aim=0.7)
            ok &= harness.check("local, 450 KB, microseconds", statistics.median(measured["convoy local"]), 50)
    sys.exit(0 if ok else 1)
