"""Step times of large models: explain measures one block of each kind with two rows and scales. Compared with whole
steps."""
# labels: slow
# timeout: 900
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

# 120 M parameters take 2 GB with gradients and moments, which a comparison does not measure whole.
LARGE = {"gpt": ["model.layers=40", "model.dim=512", "model.heads=8", "model.mlp_ratio=4", "data.length=16"],
         "mlp": [f"model.hidden={[2048] * 31}"]}
UNITS = {"s": 1, "ms": 1e-3, "µs": 1e-6}


def predicted_step(model, keys, *arguments, cwd):
    """Returns seconds for `single`; --calibrate measures the whole model."""
    line = [str(runs.CONVOY), "explain", str(runs.TOP / "configs" / "tiny" / f"{model}.yaml"), "--compare", "single",
            *arguments]
    for key in [*keys, "train.batch.global=8"]:
        line += ["--set", key]
    done = subprocess.run(line, cwd=cwd, env=runs.environment(), timeout=120, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, f"{' '.join(line)}: exit {done.returncode}\n{done.stdout}")
    found = re.search(r"predicted step +([0-9.]+) (s|ms|µs)", done.stdout)
    runs.check(found is not None, done.stdout)
    return float(found[1]) * UNITS[found[2]]


with runs.workspace() as folder:
    for model, keys in LARGE.items():
        # Other load disturbs both measurements, so three attempts. Without scaling the factor would be about 10.
        for attempt in range(3):
            scaled = predicted_step(model, keys, cwd=folder)
            measured = predicted_step(model, keys, "--calibrate", cwd=folder)
            print(f"{model}: {scaled:.3f} s scaled, {measured:.3f} s measured", flush=True)
            if 0.5 < scaled / measured < 2:
                break
        runs.check(0.5 < scaled / measured < 2, f"{model}: {scaled} s scaled, {measured} s measured")
print("scaled step times are right within a factor of two")
