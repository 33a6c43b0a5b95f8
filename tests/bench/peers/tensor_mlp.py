"""The peer of `tests/bench/run tensor`: PyTorch's tensor parallel over Gloo on the same MLP, a core a rank; prints JSON."""
import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def train(rank, options, port, results):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    torch.manual_seed(1)
    layers = []
    for a, b in zip(options.sizes, options.sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    if options.ranks > 1:
        # In pairs: the first leaves its output sharded, the second takes it sharded and sums.
        plan = {str(2 * i): ColwiseParallel() if i % 2 == 0 else RowwiseParallel() for i in range(len(options.sizes) - 1)}
        parallelize_module(model, init_device_mesh("cpu", (options.ranks,)), plan)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(1)  # all ranks see the same rows
    data = torch.randn(4 * options.batch, options.sizes[0], generator=generator)
    target = torch.randint(options.sizes[-1], (4 * options.batch,), generator=generator)
    times = []
    for step in range(options.warm + options.steps):
        begin = step % 4 * options.batch
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data[begin:begin + options.batch]), target[begin:begin + options.batch]).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    if rank == 0:
        timed = times[options.warm:]
        results.put({"step_seconds": sum(timed) / len(timed)})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=lambda s: [int(x) for x in s.split(",")], required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm", type=int, default=3)
    options = parser.parse_args()
    if len(options.sizes) % 2 == 0:
        parser.error("an even number of layers is cut in pairs: give an odd number of sizes")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, (options, port, results), nprocs=options.ranks)
    print(json.dumps(results.get()))
