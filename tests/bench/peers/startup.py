"""The peer of `tests/bench/run startup` and `lost_rank`: under torchrun, a script that imports torch, joins Gloo and
does one DDP step. With --lose-rank FILE the first attempt of rank 1 ends after it by SIGKILL, and the others begin a
second step."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
if "--lose-rank" in sys.argv:
    # With torchrun's store the ranks of the second attempt often find the addresses of the first, and fail.
    store = dist.FileStore(f"{sys.argv[-1]}-{attempt}", int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
else:
    dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
if dist.get_rank() == 0:
    print(f"first step done {time.time()}", flush=True)
if "--lose-rank" in sys.argv and attempt == "0":
    if dist.get_rank() == 1:
        print(f"rank 1 ends {time.time()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.randn(4, 8)).sum().backward()
dist.destroy_process_group()
