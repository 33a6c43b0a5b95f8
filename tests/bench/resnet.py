"""Step of ResNet-20 in CIFAR's shape, 128 rows, by two ranks: ddp against torch DDP with channels last"""
import sys

import harness

ALONE, PEER = "torch, one rank", "torch DDP"


def torch_ddp(how, options):
    return lambda: harness.peer("resnet.py", "--how", how, "--steps", options.steps,
                                "--warm", options.warm)["step_seconds"]


def convoy(strategy, options, *overrides, ranks=None):
    """Returns a function that measures seconds a step of configs/resnet_cifar_shape.yaml under a strategy."""
    return lambda: harness.step_of("configs/resnet_cifar_shape.yaml", options, f"strategy={{name: {strategy}}}",
                                   "train.evaluate_every=never", *overrides, ranks=ranks)


if __name__ == "__main__":
    options = harness.step_arguments(__doc__, steps=20, warm=20).parse_args()
    measured = harness.interleave(options.rounds, {
        ALONE: torch_ddp("alone", options),
        PEER: torch_ddp("ddp", options),
        "single": convoy("single", options, ranks=1),
        "ddp, gloo": convoy("ddp", options, "backend=gloo"),
        "ddp, mpi": convoy("ddp", options, "backend=mpi"),
    }, reference=PEER)
    harness.table(measured, PEER, "seconds a step")
    ok = harness.check(f"single against {ALONE}", harness.median_ratio(measured, "single", ALONE), 1.0)
    for name in ("ddp, gloo", "ddp, mpi"):
        ok &= harness.check(f"{name} against {PEER}", harness.median_ratio(measured, name, PEER), 0.9, aim=0.8)
    sys.exit(0 if ok else 1)
