"""The peer of `tests/bench/run ddp` and `gpu`: PyTorch's DistributedDataParallel over Gloo or NCCL, same MLP; prints
JSON."""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks


def build(sizes):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i + 2 < len(sizes):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def train(rank, options, port, results):
    on_gpu = options.device == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=options.ranks)
    torch.manual_seed(1)
    model = build(options.sizes).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    if options.ranks > 1:
        model = DistributedDataParallel(model)
    if options.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, fused=options.fused or None)
    data = torch.randn(64 * options.batch, options.sizes[0], device=device)
    target = torch.randint(options.sizes[-1], (64 * options.batch,), device=device)
    loss_of = nn.CrossEntropyLoss()
    times = []
    for step in range(options.warm + options.steps):
        begin = (step % 64) * options.batch
        start = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model(data[begin:begin + options.batch]), target[begin:begin + options.batch]).backward()
        optimizer.step()
        if on_gpu and step + 1 in (options.warm, options.warm + options.steps):
            torch.cuda.synchronize()  # the host is ahead of the device, so only the sum over all steps counts
        times.append(time.perf_counter() - start)
    if rank == 0:
        timed = times[options.warm:]
        results.put({"step_seconds": sum(timed) / len(timed), "median": statistics.median(timed),
                     "parameters": parameters})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=lambda s: [int(x) for x in s.split(",")], required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--fused", action="store_true")
    options = parser.parse_args()
    ranks.run(train, options)
