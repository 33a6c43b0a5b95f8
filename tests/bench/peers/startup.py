"""The peer of `tests/bench/run startup`: under torchrun, a script that imports torch, joins Gloo and does one DDP step."""
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
if dist.get_rank() == 0:
    print("first step done", time.time(), flush=True)
dist.destroy_process_group()
