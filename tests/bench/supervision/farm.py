"""Two equal trainings as a farm on two cores, against one after the other and against two processes without a farm"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import harness

FARM = """\
name: two
strategy:
  name: independent
  cores: 1
  max_parallel: {parallel}
  pipelines:
    - {{name: a, config: {config}, set: {{train: {train}}}}}
    - {{name: b, config: {config}, set: {{train: {train}}}}}
"""


# Known speed-up by two bare processes on two idle cores, against one run after the other. If the speed-up is lower
# now, the gate and the aim for the farm's speed-up become lower by the same factor.
KNOWN_BARE = 1.9


class Trainings:
    def __init__(self, steps):
        self.train = (f"{{epochs: 1000, max_steps: {steps}, evaluate_every: never, checkpoint_every: never, "
                      f"log_every: {steps}}}")
        self.steps = steps
        self.config = harness.TOP / "configs" / "fashion_mlp.yaml"
        self.cores = sorted(os.sched_getaffinity(0))[:2]

    def run(self, command, folder):
        done = subprocess.run(command, cwd=harness.TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=900)
        if done.returncode != 0:
            sys.exit(f"benchmark: {' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-3000:]}")
        return folder

    def farm(self, parallel):
        """Returns seconds from the command to its end."""
        def measure():
            folder = pathlib.Path(tempfile.mkdtemp(prefix="convoy-bench-"))
            (folder / "farm.yaml").write_text(FARM.format(parallel=parallel, config=self.config, train=self.train))
            start = time.monotonic()
            self.run(["taskset", "-c", ",".join(map(str, self.cores)), str(harness.CONVOY), "run",
                      str(folder / "farm.yaml"), "--output", str(folder / "run")], folder)
            seconds = time.monotonic() - start
            summary = json.loads((folder / "run" / "summary.json").read_text())
            assert summary["status"] == "done" and len(summary["pipelines"]) == 2, summary
            shutil.rmtree(folder)
            return seconds
        return measure

    def bare(self):
        """Returns the seconds of the same two runs without a farm, each bound to a core."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="convoy-bench-"))
        sets = ["train.epochs=1000", f"train.max_steps={self.steps}", "train.evaluate_every=never",
                "train.checkpoint_every=never", f"train.log_every={self.steps}"]

        def one(core):
            command = ["taskset", "-c", str(core), str(harness.CONVOY), "run", str(self.config),
                       "--output", str(folder / str(core))]
            for item in sets:
                command += ["--set", item]
            return self.run(command, folder)
        start = time.monotonic()
        harness.on_two_cores(one)
        seconds = time.monotonic() - start
        shutil.rmtree(folder)
        return seconds


if __name__ == "__main__":
    parser = harness.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=5000, help="of each training (default %(default)s)")
    options = parser.parse_args()
    trainings = Trainings(options.steps)
    measured = harness.interleave(options.rounds, {"one after the other": trainings.farm(1), "farm": trainings.farm(2),
                                                  "two bare processes": trainings.bare})
    harness.table(measured, "one after the other", "seconds")
    bare = harness.median_ratio(measured, "one after the other", "two bare processes")
    scale = min(1, bare / KNOWN_BARE)
    harness.say(f"two bare processes are {bare:.2f} times as fast as one after the other in a farm; "
                f"known of two idle cores: {KNOWN_BARE}")
    ok = harness.check("as fast as one after the other, times",
                         harness.median_ratio(measured, "one after the other", "farm"), 1.8 * scale, at_most=False,
                         aim=1.95 * scale)
    # A difference within the spread of rounds does not count as slower.
    ok &= harness.check("of the time of two bare processes",
                          harness.median_ratio(measured, "farm", "two bare processes"), 1.03)
    sys.exit(0 if ok else 1)
