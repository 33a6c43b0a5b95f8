"""The peers of `tests/bench/run ncf`, `ncf_mlperf` and `gpu_ncf`: the same NeuMF in PyTorch, from a loop over rows to
SparseAdam, DDP and a step as a CUDA graph; prints JSON."""
import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors import safe_open
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks


class Columns:
    """Columns that convoy generated: users, items and 21 context columns of the training split."""

    def __init__(self, path, rows, users, items, device):
        with safe_open(path, "pt") as file:
            self.user = file.get_tensor("user")[:rows].to(device).long()
            self.item = file.get_tensor("item")[:rows].to(device).long()
            context = file.get_tensor("context")[:rows] if "context" in file.keys() else torch.empty(rows, 0)
            self.context = context.to(device)
        self.rows, self.users, self.items = rows, users, items


class NeuMF(nn.Module):
    def __init__(self, users, items, context, options):
        super().__init__()
        self.gmf = options.gmf
        self.user = nn.Embedding(users, options.gmf + options.mlp, sparse=options.sparse)
        self.item = nn.Embedding(items, options.gmf + options.mlp, sparse=options.sparse)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.01)
        sizes = (2 * options.mlp + context, *options.hidden)
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.output = nn.Linear(options.gmf + sizes[-1], 1)

    def forward(self, user, item, context):
        user, item = self.user(user), self.item(item)
        h = self.mlp(torch.cat([user[:, self.gmf:], item[:, self.gmf:], context], 1))
        return self.output(torch.cat([user[:, :self.gmf] * item[:, :self.gmf], h], 1)).squeeze(1)


class PerRow(torch.utils.data.Dataset):
    """Reads one instance a call, like a first version of a loop: a positive, then its negatives."""

    def __init__(self, columns, negatives):
        self.columns, self.negatives = columns, negatives

    def __len__(self):
        return self.columns.rows * (1 + self.negatives)

    def __getitem__(self, index):
        c = self.columns
        row, number = divmod(index, 1 + self.negatives)
        item = c.item[row] if number == 0 else torch.randint(c.items, ())
        return c.user[row], item, c.context[row], torch.tensor(float(number == 0))


def per_row_batches(columns, options):
    """Shuffles positives; a batch contains each with its negatives."""
    width = 1 + options.negatives
    order = torch.randperm(columns.rows)[:options.batch * (options.warm + options.steps)]
    instances = (order[:, None] * width + torch.arange(width)).flatten().tolist()
    return torch.utils.data.DataLoader(torch.utils.data.Subset(PerRow(columns, options.negatives), instances),
                                       batch_size=options.batch * width)


def whole_batches(columns, options, rank):
    """Does the same with index tensors. A negative may be a positive of its user, which saves the peer the look-up. On
    a GPU columns, order and draws are all on the device."""
    width, device = 1 + options.negatives, options.device
    order = torch.randperm(columns.rows, generator=torch.Generator().manual_seed(1)).to(device)
    target = torch.zeros(options.batch, width, device=device)
    target[:, 0] = 1
    target = target.flatten()
    for step in range(options.warm + options.steps + 1):  # one more batch for recording
        begin = (step * options.ranks + rank) * options.batch % (columns.rows - options.batch)
        rows = order[begin:begin + options.batch]
        item = torch.randint(columns.items, (options.batch, width), device=device)
        item[:, 0] = columns.item[rows]
        wide = rows.repeat_interleave(width)
        yield columns.user[wide], item.flatten(), columns.context[wide], target


def optimizers(model, options):
    if not options.sparse:
        if options.device == "cuda":
            return [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=options.graph)]
        return [torch.optim.Adam(model.parameters(), lr=1e-3, fused=options.fused or None)]
    tables = [model.user.weight, model.item.weight]
    rest = [p for name, p in model.named_parameters() if not name.startswith(("user", "item"))]
    return [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam(rest, lr=1e-3, fused=True)]


def plain_step(model, updates, loss_of, batch):
    user, item, context, target = batch
    for update in updates:
        update.zero_grad()
    loss_of(model(user, item, context), target).backward()
    for update in updates:
        update.step()


def graph_step(model, updates, loss_of, first):
    """Returns a step as one launch; each batch is copied into the recorded one's memory."""
    inputs = [tensor.clone() for tensor in first]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            plain_step(model, updates, loss_of, inputs)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    for update in updates:
        update.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        user, item, context, target = inputs
        loss_of(model(user, item, context), target).backward()
        for update in updates:
            update.step()

    def step(batch):
        for to, tensor in zip(inputs, batch):
            to.copy_(tensor)
        graph.replay()
    return step


def train(rank, options, port, results):
    if options.ranks > 1:
        ranks.join(rank, options, port)
    else:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    columns = Columns(options.columns, options.rows, options.users, options.items, options.device)
    plain = NeuMF(options.users, options.items, columns.context.size(1), options).to(options.device)
    updates = optimizers(plain, options)
    model = DistributedDataParallel(plain) if options.ranks > 1 else plain
    loss_of = nn.BCEWithLogitsLoss()
    batches = iter(per_row_batches(columns, options) if options.per_row else whole_batches(columns, options, rank))
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    make = graph_step(model, updates, loss_of, next(batches)) if options.graph else None
    for step in range(options.warm + options.steps):
        if step == options.warm:
            wait()
            start = time.perf_counter()
        batch = next(batches)
        if make is not None:
            make(batch)
        else:
            plain_step(model, updates, loss_of, batch)
    wait()
    seconds = time.perf_counter() - start
    if rank == 0:
        instances = options.steps * options.ranks * options.batch * (1 + options.negatives)
        results.put({"instances_per_second": instances / seconds, "step_seconds": seconds / options.steps,
                     "parameters": sum(p.numel() for p in plain.parameters())})
    if options.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--columns", required=True, help="the cache of columns that convoy made")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--items", type=int, required=True)
    parser.add_argument("--negatives", type=int, default=4)
    parser.add_argument("--gmf", type=int, default=8)
    parser.add_argument("--mlp", type=int, default=32)
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 16, 8])
    parser.add_argument("--batch", type=int, default=256, help="positives of each rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of a single process")
    parser.add_argument("--per-row", action="store_true", help="one __getitem__ an instance, by DataLoader")
    parser.add_argument("--sparse", action="store_true", help="sparse gradients and SparseAdam for the tables")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--graph", action="store_true", help="on a GPU: the step as a CUDA graph")
    options = parser.parse_args()
    if options.graph and (options.device != "cuda" or options.sparse):
        parser.error("--graph is for --device cuda and dense Adam: sparse gradients are made unique on the host")
    if options.device == "cuda" and (options.ranks > 1 or options.per_row):
        parser.error("--device cuda is for one rank and whole batches")
    if options.ranks == 1:
        results = mp.get_context("spawn").SimpleQueue()
        train(0, options, 0, results)
        print(json.dumps(results.get()))
    else:
        ranks.run(train, options)
