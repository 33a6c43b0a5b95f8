"""c10d alone: all_reduce of processes on a core or GPU each, timed as `convoy bench` does. Prints {bytes:
microseconds}."""
import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist

ROUNDS, ROUND_SECONDS, MOST = 5, 0.02, 2000


class Rank:
    def __init__(self, options):
        self.number = options.rank
        if options.backend == "nccl":
            torch.cuda.set_device(self.number)
            self.device = torch.device("cuda", self.number)
        else:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[self.number % len(cores)]})
            self.device = torch.device("cpu")
        torch.set_num_threads(1)
        dist.init_process_group(options.backend, init_method=f"tcp://127.0.0.1:{options.port}", rank=self.number,
                                world_size=options.ranks, timeout=datetime.timedelta(seconds=60))

    def finish(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, tensor, iterations):
        dist.barrier()
        self.finish()
        start = time.perf_counter()
        for _ in range(iterations):
            dist.all_reduce(tensor)
        self.finish()
        slowest = torch.tensor([(time.perf_counter() - start) / iterations], dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.item()

    def microseconds(self, size):
        tensor = torch.zeros(size // 4, device=self.device)
        self.timed(tensor, 2)
        iterations = min(max(int(ROUND_SECONDS / self.timed(tensor, 3)), 1), MOST)
        return 1e6 * statistics.median(self.timed(tensor, iterations) for _ in range(ROUNDS))


def start_ranks(options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--rank", str(number), "--port", str(port)],
                              env=environment) for number in range(options.ranks)]
    return max(abs(rank.wait(timeout=120)) for rank in ranks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="+", help="in bytes")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, help="this is one of them")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.rank is None:
        sys.exit(start_ranks(options))
    rank = Rank(options)
    times = {size: rank.microseconds(size) for size in options.sizes}
    if options.rank == 0:
        print(json.dumps(times), flush=True)
    dist.destroy_process_group()
