"""The 12-million-parameter NeuMF on a GPU, against PyTorch with its step as a CUDA graph; also PyTorch's SparseAdam"""
import statistics
import sys

import harness
import ncf
import torch

CONFIG = "configs/ncf_story_gpu.yaml"
BATCH, WIDTH = 512, ncf.WIDTH
GRAPH, SPARSE, CONVOY = "torch, CUDA graph, dense Adam", "torch, SparseAdam", "convoy"
NO_GPU = 69  # convoy's exit code for a missing device; 1 is a missed gate


def convoy(steps, warm):
    run = harness.Run(CONFIG,
                      [*ncf.SETTINGS, f"train.max_steps={steps + warm}", f"train.log_every={max(1, min(100, warm))}"])
    return BATCH * WIDTH / run.step_seconds(skip=warm)


def peer(steps, warm, *more):
    sizes = [text for name, value in ncf.SIZES.items() for text in ("--" + name, value)]
    return lambda: harness.peer("ncf.py", "--columns", ncf.columns(), *sizes, "--device", "cuda", "--batch", BATCH,
                                "--steps", steps, "--warm", warm, *more)["instances_per_second"]


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    if not torch.cuda.is_available():
        print("benchmark: this machine has no GPU: nothing has run", file=sys.stderr)
        sys.exit(NO_GPU)
    harness.say(torch.cuda.get_device_name(0))
    # Makes the columns.
    harness.Run("configs/ncf_story.yaml", [*ncf.SETTINGS, "strategy={name: single}", "train.max_steps=2"], ranks=1)
    measured = harness.interleave(options.rounds, {
        GRAPH: peer(2000, 200, "--graph"),
        SPARSE: peer(500, 50, "--sparse"),
        CONVOY: lambda: convoy(4000, 400)})
    harness.table(measured, GRAPH, "instances a second")
    ok = harness.check(f"{CONVOY} ÷ {GRAPH}", harness.median_ratio(measured, CONVOY, GRAPH), 1.2, at_most=False)
    ok &= harness.check("seconds of an epoch of 18.2 million instances",
                          18.2e6 / statistics.median(measured[CONVOY]), 2)
    sys.exit(0 if ok else 1)
