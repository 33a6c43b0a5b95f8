"""The peer of `tests/bench/run images`: torchvision's ImageFolder in a DataLoader with N workers; prints JSON."""
import argparse
import json
import time

import torch
from torchvision import datasets, transforms

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="timed, after one to start the workers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = transforms.Compose([transforms.Resize(options.size), transforms.CenterCrop(options.size),
                                transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    loader = torch.utils.data.DataLoader(datasets.ImageFolder(options.path, steps), options.batch, shuffle=True,
                                         num_workers=options.workers, persistent_workers=True)
    rows = 0
    for epoch in range(options.epochs + 1):
        for images, classes in loader:
            rows += len(images) if epoch else 0
        if epoch == 0:
            begin = time.perf_counter()
    print(json.dumps({"rows_per_second": rows / (time.perf_counter() - begin)}))
