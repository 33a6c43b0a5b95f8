"""The peer of `tests/bench/run ranking`: brute force in PyTorch over exported weights: scores of all pairs in blocks,
then torch.topk; writes the lists as CSV, or checks a CSV of convoy's against scores in float64; prints JSON."""
import argparse
import csv
import json
import time

import torch
from safetensors import safe_open
from safetensors.torch import load_file


class NeuMF:
    """A forward of each pair, from the tensors that `convoy export` wrote."""

    def __init__(self, path, dtype):
        weights = {name: value.to(dtype) for name, value in load_file(path).items()}
        self.user, self.item = weights["user.weight"], weights["item.weight"]
        # convoy stores the first layer as two matrices, for the user and for the item. Joins them to one matrix.
        first = torch.cat([weights["first_row.weight"], weights["first_item.weight"]], 1)
        self.hidden = [(first, weights["first_row.bias"])]
        while f"hidden.{len(self.hidden)}.weight" in weights:
            name = f"hidden.{len(self.hidden)}"
            self.hidden.append((weights[f"{name}.weight"], weights[f"{name}.bias"]))
        self.output = weights["output.weight"], weights["output.bias"]
        self.gmf = self.user.size(1) - first.size(1) // 2

    def scores(self, users):
        items = len(self.item)
        user = self.user[users].repeat_interleave(items, 0)
        item = self.item.repeat(len(users), 1)
        h = torch.cat([user[:, self.gmf:], item[:, self.gmf:]], 1)
        for weight, bias in self.hidden:
            h = torch.relu(torch.nn.functional.linear(h, weight, bias))
        both = torch.cat([user[:, :self.gmf] * item[:, :self.gmf], h], 1)
        return torch.nn.functional.linear(both, *self.output).view(len(users), items)


def seen_by_user(path, users):
    """Items of each user, from the columns that convoy made."""
    with safe_open(path, "pt") as file:
        user, item = file.get_tensor("user").long(), file.get_tensor("item").long()
    order = torch.argsort(user, stable=True)
    counts = torch.bincount(user, minlength=users)
    return torch.split(item[order], counts.tolist())


def blocks(model, seen, size):
    """(users, scores) of all users; what they have is −∞."""
    for begin in range(0, len(model.user), size):
        users = torch.arange(begin, min(begin + size, len(model.user)))
        scores = model.scores(users)
        for row, user in enumerate(users):
            scores[row, seen[user]] = -torch.inf
        yield users, scores


def rank(options):
    start = time.perf_counter()
    seen = seen_by_user(options.columns, options.users)
    model = NeuMF(options.weights, torch.float32)
    loaded = time.perf_counter()
    with open(options.to, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["user", "rank", "item", "score"])
        for users, scores in blocks(model, seen, options.block):
            best = torch.topk(scores, options.k)
            for user, items, values in zip(users.tolist(), best.indices.tolist(), best.values.tolist()):
                out.writerows((user, place + 1, item, value) for place, (item, value) in enumerate(zip(items, values)))
    done = time.perf_counter()
    return {"seconds": done - loaded, "with_loading": done - start}


def check(options):
    """A list is right if it is sorted by score, then by id, and no other new item has a better score; scores that
    differ by less than rounding in float32 count as equal."""
    lists = {}
    with open(options.check) as file:
        for row in csv.DictReader(file):
            lists.setdefault(int(row["user"]), []).append(int(row["item"]))
    seen = seen_by_user(options.columns, options.users)
    model = NeuMF(options.weights, torch.float64)
    equal = wrong = 0
    for users, scores in blocks(model, seen, options.block):
        rounding = 4e-6 * scores.nan_to_num(neginf=0).abs().amax(1)
        # Stable: of equal scores the smaller id is first.
        order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :options.k]
        for row, user in enumerate(users.tolist()):
            ours, best = lists[user], order[row].tolist()
            equal += ours == best
            if ours != best:
                gap = (scores[row, ours] - scores[row, best]).abs().max() if len(set(ours)) == options.k else torch.inf
                wrong += bool(gap > rounding[row])
    return {"lists": len(lists), "equal": equal, "wrong": wrong}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--columns", required=True)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--block", type=int, default=16, help="users at once")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--to")
    parser.add_argument("--check")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        print(json.dumps(check(options) if options.check else rank(options)))
