"""The peer of `tests/bench/run resnet`: ResNet-20 of CIFAR's shape in PyTorch on synthetic images; prints JSON.

--how alone | ddp. One core and one thread a rank, Gloo between ranks; channels last, fused SGD with momentum."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import ranks


class Convolution(nn.Sequential):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second = Convolution(inputs, outputs, stride), Convolution(outputs, outputs)
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x):
        h = self.second(F.relu(self.first(x)))
        if self.more:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return F.relu(h + x)


def resnet(depth=20):
    blocks, layers, inputs = (depth - 2) // 6, [Convolution(3, 16), nn.ReLU()], 16
    for stage, outputs in enumerate((16, 32, 64)):
        for block in range(blocks):
            layers.append(Residual(inputs, outputs, 2 if stage and block == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def train(rank, options, port, results):
    ranks.join(rank, options, port)
    layout = torch.contiguous_format if options.contiguous else torch.channels_last
    model = resnet().to(memory_format=layout)
    if options.how == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    images = torch.randn(4096, 3, 32, 32).to(memory_format=layout)
    classes = torch.randint(10, (4096,))
    generator = torch.Generator().manual_seed(1 + rank)
    rows = options.batch // options.ranks
    for step in range(options.warm + options.steps):
        if step == options.warm:
            begin = time.perf_counter()
        at = torch.randint(4096, (rows,), generator=generator)
        F.cross_entropy(model(images[at]), classes[at]).backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        results.put({"step_seconds": (time.perf_counter() - begin) / options.steps})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["alone", "ddp"], required=True)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--contiguous", action="store_true", help="not channels last")
    options = parser.parse_args()
    options.ranks = 1 if options.how == "alone" else 2
    ranks.run(train, options)
