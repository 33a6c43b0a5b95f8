"""The peers of `tests/bench/run ensemble`: ten MLPs 784-64-64-10 bagged on Fashion-MNIST in PyTorch; prints JSON. --how
vmap: torch.func over stacked parameters, one fused Adam for all. serial: one member after the other. torchensemble:
that package's BaggingClassifier by two joblib workers. Each reads all rows of a bootstrap in batches and updates.
The last epoch is timed, without start-up; the vote of all members is evaluated afterwards."""
import argparse
import contextlib
import copy
import gzip
import json
import logging
import os
import pathlib
import sys
import time

import torch
from torch import nn

TOP = pathlib.Path(__file__).resolve().parents[3]
SIZES = [784, 64, 64, 10]


def idx(path, header):
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def fashion(folder, part):
    images = idx(folder / f"{part}-images-idx3-ubyte.gz", 16).view(-1, 784)
    return images, idx(folder / f"{part}-labels-idx1-ubyte.gz", 8).long()


class Mlp(nn.Sequential):
    def __init__(self):
        layers = []
        for a, b in zip(SIZES, SIZES[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        super().__init__(*layers[:-1])


def bootstraps(members, rows):
    return torch.randint(rows, (members, rows))


def vmap(options, images, labels):
    """Returns the seconds of the last epoch, and the members."""
    models = [Mlp() for _ in range(options.members)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    optimizer = torch.optim.Adam(parameters.values(), lr=options.lr, fused=True)

    def loss(one, x, y):
        return nn.functional.cross_entropy(torch.func.functional_call(base, one, (x,)), y)
    gradients = torch.func.vmap(torch.func.grad(loss))
    draws = bootstraps(options.members, len(labels))
    for _ in range(options.epochs):
        start = time.perf_counter()
        order = torch.stack([draw[torch.randperm(len(labels))] for draw in draws])
        for begin in range(0, len(labels), options.batch):
            rows = order[:, begin:begin + options.batch]
            x = prepared(images[rows])
            for name, gradient in gradients({n: p.detach() for n, p in parameters.items()}, x, labels[rows]).items():
                parameters[name].grad = gradient
            optimizer.step()
        seconds = time.perf_counter() - start
    for number, model in enumerate(models):
        model.load_state_dict({name: value[number].detach() for name, value in parameters.items()})
    return seconds, models


def prepared(x):
    return x if x.is_floating_point() else x.float().div_(255)


def serial(options, images, labels):
    models = [Mlp() for _ in range(options.members)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=options.lr, fused=True) for model in models]
    draws = bootstraps(options.members, len(labels))
    for _ in range(options.epochs):
        start = time.perf_counter()
        for model, optimizer, draw in zip(models, optimizers, draws):
            order = draw[torch.randperm(len(labels))]
            for begin in range(0, len(labels), options.batch):
                rows = order[begin:begin + options.batch]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(prepared(images[rows])), labels[rows]).backward()
                optimizer.step()
        seconds = time.perf_counter() - start
    return seconds, models


class Epochs(logging.Handler):
    """Records when TorchEnsemble begins an epoch."""

    def __init__(self):
        super().__init__()
        self.began = []

    def emit(self, record):
        if "training epoch" in record.getMessage():
            self.began.append(time.perf_counter())


def torchensemble(options, images, labels):
    sys.path.insert(0, str(options.packages))
    os.environ["PYTHONPATH"] = str(options.packages)  # its worker processes import the package from there
    from torchensemble import BaggingClassifier
    from torch.utils.data import DataLoader, TensorDataset
    data = DataLoader(TensorDataset(images.float().div_(255), labels), batch_size=options.batch, shuffle=True)
    model = BaggingClassifier(estimator=Mlp, n_estimators=options.members, cuda=False, n_jobs=options.jobs)
    epochs = Epochs()
    logger = logging.getLogger("torchensemble-peer")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(epochs)
    model.logger = logger
    model.set_criterion(nn.CrossEntropyLoss())
    model.set_optimizer("Adam", lr=options.lr)
    with contextlib.redirect_stdout(sys.stderr):
        model.fit(data, epochs=options.epochs, log_interval=10**9, save_model=False)
    return time.perf_counter() - epochs.began[-1], list(model.estimators_)


def vote(models, images, labels):
    with torch.no_grad():
        chosen = torch.stack([model(images.float().div(255)).argmax(-1) for model in models])
        counts = torch.zeros(len(labels), 10).scatter_add_(1, chosen.T, torch.ones(chosen.T.shape))
    return (counts.argmax(-1) == labels).float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=["vmap", "serial", "torchensemble"], required=True)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=1, help="the last one is timed")
    parser.add_argument("--floats", action="store_true", help="images are kept as floats, not as bytes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--packages", type=pathlib.Path, default=TOP / ".deps" / "torchensemble")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    images, labels = fashion(options.data, "train")
    seconds, models = {"vmap": vmap, "serial": serial, "torchensemble": torchensemble}[options.how](
        options, prepared(images) if options.floats else images, labels)
    print(json.dumps({"samples_per_second": options.members * len(labels) / seconds, "seconds": seconds,
                      "vote_accuracy": vote(models, *fashion(options.data, "t10k"))}))
