"""CSV file of 3.6 million rows and 24 columns, two ranks: time from launch to first step, parsed and from the cache"""
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time

import harness

ROWS, USERS, ITEMS, CONTEXT = 3647614, 211261, 100000, 21
CONFIG = """\
name: own-columns
device: cpu
model: {{name: ncf}}
data:
  name: interactions
  path: {path}
  columns: {{user: visitor, item: page, time: at, context: [{context}]}}
  evaluate: {{users: 20000}}
optimizer: {{name: adam, lr: 1.0e-3}}
train: {{epochs: 1, max_steps: 1, batch: {{per_rank: 256}}, evaluate_every: never, checkpoint_every: never, \
resume: never}}
strategy: {{name: ddp}}
launch: {{ranks: 2, cores_per_rank: 1}}
"""


def write_csv(path, rows):
    """Writes the file. Context texts are drawn from a few thousand prepared ones, because only parsing is measured."""
    draw = random.Random(1)
    contexts = [",".join(f"{draw.uniform(-1, 1):.4f}" for _ in range(CONTEXT)) for _ in range(5000)]
    with open(path, "w") as file:
        file.write("visitor,page,at," + ",".join(f"c{i}" for i in range(CONTEXT)) + "\n")
        for begin in range(0, rows, 100000):
            file.write("".join(f"u{draw.randrange(USERS)},p{draw.randrange(ITEMS)},{1600000000 + row},"
                               f"{contexts[row % 5000]}\n"
                               for row in range(begin, min(begin + 100000, rows))))


def first_step(config):
    return harness.Run(config, [], timeout=600).summary["startup_seconds"]


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="convoy-columns-"))
    try:
        begin = time.monotonic()
        for name, rows in (("all.csv", ROWS), ("few.csv", 1000)):
            write_csv(folder / name, rows)
            (folder / name).with_suffix(".yaml").write_text(
                CONFIG.format(path=folder / name, context=", ".join(f"c{i}" for i in range(CONTEXT))))
        harness.say(f"{(folder / 'all.csv').stat().st_size / 1e6:.0f} MB of CSV written in "
                    f"{time.monotonic() - begin:.0f} s")
        measured = {"few rows": [], "parsed": [], "cached": []}
        for number in range(options.rounds):
            for cache in folder.glob("*.cache.safetensors"):
                cache.unlink()
            first_step(folder / "few.yaml")
            for name, config in (("few rows", "few.yaml"), ("parsed", "all.yaml"), ("cached", "all.yaml")):
                measured[name].append(first_step(folder / config))
            harness.say(f"round {number + 1}: " + "  ".join(f"{name} {values[-1]:.2f} s"
                                                            for name, values in measured.items()))
    finally:
        shutil.rmtree(folder)
    few, parsed, cached = (statistics.median(measured[name]) for name in measured)
    ok = harness.check("first start, s more than with few rows", parsed - few, 10)
    ok &= harness.check("from the cache, s more than with few rows", cached - few, 1)
    sys.exit(0 if ok else 1)
