"""The real TensorBoard reads every number, text and histogram of a run, also of one that was resumed."""
# labels: slow
# timeout: 900
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import event_files
import runs

TINY = runs.TOP / "configs" / "tiny"
# Runs in a Python with tensorboard.
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
all = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0, "histograms": 0, \
"compressedHistograms": 1})
all.Reload()
from tensorboard.util import tensor_util
tags = all.Tags()
read = {"scalars": {tag: [[e.step, e.value] for e in all.Scalars(tag)] for tag in tags["scalars"]},
        "histograms": {tag: [[e.step, e.histogram_value.num, sum(e.histogram_value.bucket)] \
for e in all.Histograms(tag)]
                       for tag in tags["histograms"]},
        "texts": {tag: tensor_util.make_ndarray(all.Tensors(tag)[-1].tensor_proto).ravel()[0].decode()
                  for tag in tags["tensors"]}}
print(json.dumps(read))
"""


def tensorboard_python():
    """A Python with tensorboard, installed once into .deps; skips the test where it cannot be installed."""
    home = runs.TOP / ".deps" / "tensorboard"
    python = home / "bin" / "python3"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "tensorboard",
                           "prometheus_client"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(f"skipped: {done.stdout.strip().splitlines()[-1]}")
        sys.exit(77)
    return python


def read(python, folder):
    done = subprocess.run([python, "-c", READ, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs.check(done.returncode == 0, f"TensorBoard cannot read {folder}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def compare(found, output, title):
    wanted = event_files.expected_scalars(runs.records(output))
    values = {(tag, step): value for tag, points in found["scalars"].items() for step, value in points
              if not tag.startswith("resources/")}
    points = sum(len(points) for tag, points in found["scalars"].items() if not tag.startswith("resources/"))
    runs.check(points == len(values), f"{title}: a step is there twice")
    runs.check(set(values) == set(wanted), f"{title}: {sorted(set(values) ^ set(wanted))[:5]}")
    different = [key for key, value in wanted.items() if not event_files.same(values[key], value)]
    runs.check(not different, f"{title}: other values of {different[:5]}")


python = tensorboard_python()
with runs.workspace() as folder:
    output = folder / "ncf"
    prometheus = folder / "ncf.prom"
    runs.run(TINY / "ncf.yaml", output, ["log.histograms=10", f"log.prometheus={prometheus}"])
    found = read(python, output / "tensorboard")
    compare(found, output, "ncf")
    runs.check("resources/memory_bytes" in found["scalars"], f"resources: {sorted(found['scalars'])}")
    runs.check("name: tiny-ncf" in found["texts"]["configuration"], f"texts: {found['texts']}")
    runs.check(found["histograms"], "no histograms")
    for tag, points in found["histograms"].items():
        for step, count, in_buckets in points:
            runs.check(count == in_buckets, f"{tag}, step {step}: {count} values, {in_buckets} in buckets")

    output = folder / "resumed"
    sets = ["train.checkpoint_every=10 steps", "train.log_every=1"]
    runs.run(TINY / "mlp.yaml", output, sets, inject=["kill:rank=0@step=17"], expect=None)
    runs.run(TINY / "mlp.yaml", output, sets)
    compare(read(python, output / "tensorboard"), output, "resumed")

    parse = ("import sys; from prometheus_client.parser import text_string_to_metric_families as parse;"
             "print(sorted(f.name for f in parse(open(sys.argv[1]).read())))")
    done = subprocess.run([python, "-c", parse, prometheus], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    runs.check(done.returncode == 0 and "'convoy_step'" in done.stdout, f"prometheus_client: {done.stdout[-2000:]}")
    print("TensorBoard reads every number, and prometheus_client every metric")
