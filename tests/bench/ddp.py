"""A step of an MLP of 25 M parameters, 64 rows a rank, two ranks on a core each: ddp against PyTorch's DDP"""
import sys

import harness

KNOWN_PEER = 0.226  # seconds a step, PyTorch DDP over Gloo, on two cores of such a machine
CONFIG = "configs/mlp_25m.yaml"
SIZES = "1024,3072,3072,3072,1024,10"
STEPS, WARM = 30, 10


def convoy(backend, overlap):
    def measure():
        run = harness.Run(CONFIG, [f"backend={backend}", f"strategy.overlap={str(overlap).lower()}", "launch.cores_per_rank=1",
                                   f"train.max_steps={STEPS + WARM}", "train.log_every=10"], ranks=2)
        return run.step_seconds(skip=WARM)
    return measure


def torch_ddp(*extra):
    return lambda: harness.peer("ddp_mlp.py", "--sizes", SIZES, "--steps", STEPS, "--warm", WARM, *extra)["step_seconds"]


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    contestants = {
        "torch DDP": torch_ddp(),
        "convoy gloo": convoy("gloo", True),
        "convoy gloo, flushed": convoy("gloo", False),
        "convoy mpi": convoy("mpi", True),
        "convoy mpi, flushed": convoy("mpi", False),
        "torch DDP, fused Adam": torch_ddp("--fused"),
    }
    figures = harness.interleave(options.rounds, contestants, reference="torch DDP", expected=KNOWN_PEER)
    harness.table(figures, "torch DDP", "seconds a step")
    harness.say(f"torch DDP's known figure on such a machine: {KNOWN_PEER} s a step")
    median = harness.statistics.median
    ok = True
    for backend, gate in (("gloo", 0.97), ("mpi", 0.88)):
        name = f"convoy {backend}"
        ok &= harness.verdict(f"{backend} against torch DDP", median(harness.ratios(figures, name, "torch DDP")), gate, aim=0.72)
        ok &= harness.verdict(f"{backend} overlapped against flushed at the end",
                              median(harness.ratios(figures, name, name + ", flushed")), 1.0)
    sys.exit(0 if ok else 1)
