"""Ranks of a peer: processes of torch over Gloo, a core and a thread each. No peer itself."""
import json
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(train, options):
    """Runs train(rank, options, port, results) in options.ranks processes, and prints as JSON what one puts into
    results."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, (options, port, results), nprocs=options.ranks)
    print(json.dumps(results.get()))


def join(rank, options, port):
    """Binds this process to a core, and connects it with the others."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    torch.manual_seed(1)
