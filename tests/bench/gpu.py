"""On GPUs: step of an MLP of 25 M parameters, and NCCL's all-reduce, against PyTorch's; also staged gloo"""
import json
import os
import subprocess
import sys
import tempfile

import harness
import torch

CONFIG = "configs/mlp_25m.yaml"
MODEL = "1024,3072,3072,3072,1024,10"
STEPS, WARM = 300, 100
SIZES = [4096, 450_000, 49_000_000]


def step(ranks):
    def measure():
        run = harness.Run(CONFIG,
                          ["device=cuda", "optimizer={name: sgd, lr: 1.0e-4}", f"train.max_steps={STEPS + WARM}",
                           "train.log_every=50", "launch.cores_per_rank=auto"], ranks=ranks)
        return run.step_seconds(skip=WARM)
    return measure


def torch_step(ranks):
    return lambda: harness.peer("ddp_mlp.py", "--sizes", MODEL, "--steps", STEPS, "--warm", WARM, "--optimizer", "sgd",
                                "--ranks", ranks, "--device", "cuda")["step_seconds"]


def all_reduce(backend, ranks, size):
    """Returns microseconds for tensors on the GPUs."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [str(harness.CONVOY), "bench", "all_reduce", "--ranks", str(ranks), "--sizes", str(size),
                   "--json", file.name, "--set", f"backend={backend}", "--set", "device=cuda"]
        done = subprocess.run(command, cwd=harness.TOP, env={**os.environ, **harness.runs.MPI}, timeout=120,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"benchmark: {' '.join(command)}\nended with {done.returncode}:\n{done.stdout}")
        return 1e6 * json.loads(open(file.name).read())["rows"][0]["seconds"]


def steps(rounds, ranks):
    peer = f"torch, {ranks} GPUs" if ranks > 1 else "torch, one GPU"
    ours = peer.replace("torch", "convoy")
    measured = harness.interleave(rounds, {peer: torch_step(ranks), ours: step(ranks)})
    harness.table(measured, peer, "seconds a step")
    return harness.check(f"step of {ours}, ratio to torch", harness.median_ratio(measured, ours, peer), 1.0)


def collectives(rounds, ranks):
    ok = True
    for size in SIZES:
        measured = harness.interleave(rounds, {
            "c10d nccl": lambda: harness.peer("all_reduce.py", size, "--backend", "nccl", "--ranks", ranks)[str(size)],
            "convoy nccl": lambda: all_reduce("nccl", ranks, size),
            "convoy gloo, staged": lambda: all_reduce("gloo", ranks, size),
            "convoy mpi, staged": lambda: all_reduce("mpi", ranks, size)})
        harness.table(measured, "c10d nccl", f"us, {size} bytes, {ranks} GPUs")
        ok &= harness.check(f"nccl, {size} bytes, ratio to c10d's own",
                              harness.median_ratio(measured, "convoy nccl", "c10d nccl"), 1.05)
    return ok


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0:
        sys.exit("benchmark: this machine has no GPU: nothing has run")
    harness.say(f"{gpus} × {torch.cuda.get_device_name(0)}")
    ok = steps(options.rounds, 1)
    if gpus == 1:
        harness.say("one GPU: NCCL takes one rank per GPU, so collectives and ddp have not run")
    else:
        ok &= steps(options.rounds, gpus)
        ok &= collectives(options.rounds, gpus)
    sys.exit(0 if ok else 1)
