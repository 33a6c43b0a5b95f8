"""The peer of `tests/bench/run tensor`: PyTorch's tensor parallel over Gloo on the same MLP, a core a rank; prints
JSON."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ranks


def train(rank, options, port, results):
    ranks.join(rank, options, port)
    layers = []
    for a, b in zip(options.sizes, options.sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    if options.ranks > 1:
        # In pairs: the first leaves its output sharded, the second takes it sharded and sums.
        plan = {str(2 * i): ColwiseParallel() if i % 2 == 0 else RowwiseParallel()
                for i in range(len(options.sizes) - 1)}
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
        nn.functional.cross_entropy(model(data[begin:begin + options.batch]),
                                    target[begin:begin + options.batch]).backward()
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
    ranks.run(train, options)
