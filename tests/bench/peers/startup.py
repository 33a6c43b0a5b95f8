"""The peer of `tests/bench/run startup` and `lost_rank`: under torchrun, a script that imports torch, joins Gloo and does one
DDP step. With --lose-rank the first attempt of rank 1 ends after it by SIGKILL, and the others begin a second step."""
import os
import signal
import sys
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
if "--lose-rank" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 1:
        print("rank 1 ends", time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.randn(4, 8)).sum().backward()
dist.destroy_process_group()
