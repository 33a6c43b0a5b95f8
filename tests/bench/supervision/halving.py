"""Successive halving on 81 trials against the full grid: its share of the time, and the best metric that it finds"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import harness

FARM = """\
name: trials
seed: {seed}
device: cpu
model: {{name: mlp, hidden: [64]}}
data: {{name: synthetic, kind: classification, rows: 20000, evaluate_rows: 4000, features: [32], classes: 20, \
noise: 1.5}}
optimizer: {{name: adam, lr: 1.0e-3}}
train: {{epochs: 27, batch: {{global: 64}}}}
log: {{level: warning, tensorboard: false}}
strategy:
  name: independent
  cores: 1
  metric: accuracy
  names: "t{{index}}"
  grid:
    optimizer.lr: [1.0e-5, 3.0e-5, 1.0e-4, 3.0e-4, 1.0e-3, 3.0e-3, 1.0e-2, 3.0e-2, 1.0e-1]
    model.hidden: [[64], [128], [256, 64]]
    train.batch.global: [32, 64, 256]
"""
HALVING = "  halving: {eta: 3, first: 1 epoch}\n"


def farm(top, text):
    """Returns the time and the best accuracy of the trials that trained to their end."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=top))
    (folder / "farm.yaml").write_text(text)
    start = time.monotonic()
    done = subprocess.run([str(harness.CONVOY), "run", str(folder / "farm.yaml"), "--output", str(folder / "run")],
                          cwd=harness.TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"benchmark: the farm ended with {done.returncode}: {done.stdout[-2000:]}")
    rows = json.loads((folder / "run" / "summary.json").read_text())["leaderboard"]["rows"]
    return seconds, max(row["value"] for row in rows if row["status"] == "done"), len(rows)


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    shares, gaps = [], []
    with tempfile.TemporaryDirectory(prefix="convoy-bench-") as top:
        for number in range(options.rounds):
            text = FARM.format(seed=number + 1)
            seconds, best, trials = farm(top, text)
            halved, found, _ = farm(top, text + HALVING)
            shares.append(halved / seconds)
            gaps.append(100 * (best - found) / best)
            harness.say(f"  seed {number + 1}: {trials} trials in {seconds:.1f} s, best accuracy {best:.4f}; "
                        f"halving in {halved:.1f} s finds {found:.4f}")
    ok = harness.check("time of halving ÷ time of the grid", harness.statistics.median(shares), 0.35)
    ok &= harness.check("percent below the best accuracy of the grid", harness.statistics.median(gaps), 1.0)
    sys.exit(0 if ok else 1)
