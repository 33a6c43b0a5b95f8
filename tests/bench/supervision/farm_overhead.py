"""200 short trainings as a farm: the supervisor's share of a core, and the cost of a start without loading LibTorch"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import harness

FARM = """\
name: many
device: cpu
model: {{name: mlp, hidden: [64, 32]}}
data: {{name: synthetic, rows: 4096, evaluate_rows: 0, features: [32]}}
optimizer: {{name: adam, lr: 1.0e-3}}
train: {{epochs: 100000, max_steps: {steps}, batch: {{global: 64}}, evaluate_every: never, checkpoint_every: never, \
log_every: 1000}}
strategy:
  name: independent
  cores: 1
  names: "t{{seed}}"
  grid: {{seed: [{seeds}]}}
"""


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load_seconds(core):
    """Returns seconds from start to end of a rank program that only loads."""
    start = time.monotonic()
    subprocess.run(["taskset", "-c", str(core), str(harness.CONVOY.parent / "convoy-rank"), "--version"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    return time.monotonic() - start


def measure(top, count, steps):
    folder = pathlib.Path(tempfile.mkdtemp(dir=top))
    (folder / "farm.yaml").write_text(FARM.format(steps=steps, seeds=", ".join(map(str, range(1, count + 1)))))
    cores = sorted(os.sched_getaffinity(0))[:2]
    start = time.monotonic()
    process = subprocess.Popen([str(harness.CONVOY), "run", str(folder / "farm.yaml"), "--output", str(folder / "run")],
                               cwd=harness.TOP, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = 0
    while process.poll() is None:
        try:
            used = cpu_seconds(process.pid)
        except (OSError, IndexError):
            break
        time.sleep(0.05)
    seconds = time.monotonic() - start
    if process.wait() != 0:
        sys.exit(f"benchmark: the farm ended with {process.returncode}: {folder}")
    trained = [json.loads((path / "summary.json").read_text())["train_seconds"]
               for path in (folder / "run" / "pipelines").iterdir()]
    load = harness.statistics.median(load_seconds(cores[0]) for _ in range(5))
    # Time of each slot outside of training and of loading LibTorch.
    each = seconds * min(len(cores), count) / count - harness.statistics.mean(trained) - load
    harness.say(f"  {count} trainings of {harness.statistics.mean(trained):.2f} s in {seconds:.1f} s; "
                f"LibTorch loads in {load:.2f} s; the supervisor used {used:.2f} s")
    return 100 * used / seconds, 1000 * each


if __name__ == "__main__":
    parser = harness.arguments(__doc__)
    parser.add_argument("--count", type=int, default=200, help="trainings (default %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="of each: about 0.2 s (default %(default)s)")
    options = parser.parse_args()
    # Remove the folders after all rounds: a file system that searches for an inode passes every recently freed
    # one, which would be half of the supervisor's time.
    with tempfile.TemporaryDirectory(prefix="convoy-bench-") as top:
        rounds = [measure(top, options.count, options.steps) for _ in range(options.rounds)]
    ok = harness.check("supervisor, percent of a core", harness.statistics.median(share for share, _ in rounds), 1.0)
    ok &= harness.check("a start beside LibTorch's load, milliseconds",
                          harness.statistics.median(each for _, each in rounds), 50)
    sys.exit(0 if ok else 1)
