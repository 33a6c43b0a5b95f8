"""Step of an MLP with layers of 4096, 128 rows: tensor_parallel by one rank and by two, against PyTorch's"""
import sys

import harness

CONFIG, SIZES, ROWS = "configs/bench/mlp_wide.yaml", "4096,4096,4096,4096,10", 128
ALONE, PEER = "torch, one rank", "torch, two ranks"


def convoy(backend, ranks, options):
    return lambda: harness.step_of(CONFIG, options, f"backend={backend}", f"train.batch.global={ROWS}", ranks=ranks)


def peer(ranks, options):
    return lambda: harness.peer("tensor_mlp.py", "--sizes", SIZES, "--batch", ROWS, "--ranks", ranks,
                                "--steps", options.steps, "--warm", options.warm)["step_seconds"]


if __name__ == "__main__":
    options = harness.step_arguments(__doc__, steps=12, warm=3).parse_args()
    measured = harness.interleave(options.rounds, {
        ALONE: peer(1, options), PEER: peer(2, options), "convoy, one rank": convoy("gloo", 1, options),
        "gloo, two ranks": convoy("gloo", 2, options), "mpi, two ranks": convoy("mpi", 2, options),
    }, reference=PEER)
    harness.table(measured, PEER, "seconds a step")
    harness.say(f"{PEER}: {harness.median_ratio(measured, ALONE, PEER):.3f} times as quick as its one rank")
    ok = True
    for name in ("gloo, two ranks", "mpi, two ranks"):
        ok &= harness.check(f"{name}: one rank's step ÷ that of two",
                              harness.median_ratio(measured, "convoy, one rank", name), 1.6, at_most=False, aim=1.8)
    sys.exit(0 if ok else 1)
