"""What cost() says that a rank holds, against the tensors that its process really held, for every strategy."""
# timeout: 300
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

MIB = 1 << 20
# 13 M parameters, so that tensors are most of what a process has; moments are there from the second step on.
LARGE = ["model.layers=4", "model.dim=512", "model.heads=8", "train.batch.global=8", "train.max_steps=2",
         "train.evaluate_every=never"]
FSDP_AND_TENSOR = "strategy.mesh={data: {degree: 2, how: fsdp}, pipeline: 1, tensor: 2}"
# Sums over mpi, which makes them in place: what a backend copies is not the strategy's.
CELLS = [
    ("single", []), ("single", ["strategy.recompute=blocks"]),
    ("data_parallel", []), ("ddp", ["strategy.recompute=blocks"]), ("ddp", ["train.batch.global=16"]),
    ("model_parallel", []),
    ("tensor_parallel", []), ("tensor_parallel", ["strategy.recompute=blocks"]),
    ("pipeline", ["strategy.schedule=gpipe"]), ("pipeline", ["strategy.schedule=1f1b", "strategy.recompute=blocks"]),
    ("pipeline", ["strategy.schedule=interleaved"]),
    ("fsdp", ["strategy.shard=optimizer", "backend=mpi"]), ("fsdp", ["strategy.shard=gradients", "backend=mpi"]),
    ("fsdp", ["backend=mpi", "strategy.recompute=blocks"]),
    ("fsdp", ["backend=mpi", "strategy.reshard_after_forward=false"]),
    ("fsdp", ["backend=mpi", "strategy.overlap=false"]),
    ("hybrid", []), ("hybrid", [FSDP_AND_TENSOR, "backend=mpi", "model.dim=768"]),
]
TOLERANCE = 0.05


def costs(summary):
    done = subprocess.run([str(runs.BUILD / "tests" / "costs"), str(summary["world_size"])], cwd=runs.TOP, text=True,
                          input=json.dumps(summary["config"]), capture_output=True)
    runs.check(done.returncode == 0, f"costs of {summary['config']['strategy']}:\n{done.stderr}")
    return json.loads(done.stdout)["ranks"]


def processes(summary):
    """Of each process: the most that its tensors took, and what cost() says of its ranks together."""
    together = {}
    for rank, cost in zip(summary["ranks"], costs(summary)):
        peak, formula = together.get(rank["pid"], (0, 0))
        together[rank["pid"]] = (max(peak, rank["peak_tensor_bytes"]), formula + cost["bytes"])
    return together.values()


with runs.workspace() as work:
    wrong = []
    for number, (name, overrides) in enumerate(CELLS):
        title = " ".join([name, *overrides])
        summary = runs.run(f"configs/gpt_{name}.yaml", work / str(number), [*LARGE, *overrides])
        for peak, formula in processes(summary):
            print(f"{title}: held {peak / MIB:.1f} MiB, cost() {formula / MIB:.1f}: {peak / formula:.3f}", flush=True)
            if abs(peak / formula - 1) > TOLERANCE and title not in wrong:
                wrong.append(title)
    runs.check(not wrong, f"more than {TOLERANCE:.0%} off: {', '.join(wrong)}")
print("ranks hold what cost() says")
