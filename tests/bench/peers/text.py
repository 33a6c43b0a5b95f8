"""The peers of `tests/bench/run images` for text: sequences of a memory-mapped file, in a DataLoader, or sliced and
stacked by the training loop, as small trainers of GPTs do; prints JSON."""
import argparse
import json
import time

import numpy
import torch


class Sequences(torch.utils.data.Dataset):
    """Sequence i: its bytes as tokens, and the bytes one position later as targets."""

    def __init__(self, path, length):
        self.bytes, self.length = numpy.memmap(path, dtype=numpy.uint8, mode="r"), length

    def __len__(self):
        return (len(self.bytes) - 1) // self.length

    def __getitem__(self, number):
        begin = number * self.length
        window = torch.from_numpy(self.bytes[begin:begin + self.length + 1].astype(numpy.int64))
        return window[:-1], window[1:]


def stacked(path, length, batch):
    """Yields batches at random positions, each stacked from slices."""
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    while True:
        begins = torch.randint(len(data) - length, (batch,)).tolist()
        yield (torch.stack([torch.from_numpy(data[at:at + length].astype(numpy.int64)) for at in begins]),
               torch.stack([torch.from_numpy(data[at + 1:at + 1 + length].astype(numpy.int64)) for at in begins]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--warm", type=int, default=100)
    parser.add_argument("--stacked", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stacked:
        loader = stacked(options.path, options.length, options.batch)
    else:
        loader = torch.utils.data.DataLoader(Sequences(options.path, options.length), options.batch, shuffle=True,
                                             drop_last=True, num_workers=options.workers,
                                             persistent_workers=options.workers > 0)
    steps = 0
    while steps < options.warm + options.steps:
        for tokens, target in loader:
            if steps == options.warm:
                begin = time.perf_counter()
            steps += 1
            if steps == options.warm + options.steps:
                break
    print(json.dumps({"rows_per_second": options.steps * options.batch / (time.perf_counter() - begin)}))
