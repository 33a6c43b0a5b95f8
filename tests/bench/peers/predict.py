"""The peer of `tests/bench/run predict`: pandas reads and writes the CSV, PyTorch computes the NCF of a convoy export;
prints JSON."""
import argparse
import json
import time

import pandas
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

CHUNK = 1 << 16  # rows of a forward: the fastest of 2^13 … 2^20 here


class Ncf(nn.Module):
    """As in docs/python.md."""

    def __init__(self, weights):
        super().__init__()
        mlp = 32
        self.gmf = weights["user.weight"].shape[1] - mlp
        self.weights = weights
        self.hidden = sorted({name.split(".")[1] for name in weights if name.startswith("hidden.")}, key=int)

    def forward(self, user, item, context):
        w = self.weights
        u, v = F.embedding(user, w["user.weight"]), F.embedding(item, w["item.weight"])
        x = (F.linear(torch.cat((u[:, self.gmf:], context), 1), w["first_row.weight"], w["first_row.bias"])
             + F.linear(v[:, self.gmf:], w["first_item.weight"]))
        for name in self.hidden:
            x = F.linear(F.relu(x), w[f"hidden.{name}.weight"], w[f"hidden.{name}.bias"])
        gmf = u[:, :self.gmf] * v[:, :self.gmf]
        return F.linear(torch.cat((gmf, F.relu(x)), 1), w["output.weight"], w["output.bias"]).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    for name in ("weights", "ids", "data", "to"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    start = time.perf_counter()
    model = Ncf(load_file(options.weights)).eval()
    ids = json.loads(open(options.ids).read())
    frame = pandas.read_csv(options.data, dtype={"user_id": str, "item_id": str})
    read = time.perf_counter()
    numbers = {name: pandas.Index(ids[name]).get_indexer(frame[name]) for name in ("user_id", "item_id")}
    columns = [name for name in frame.columns if name.startswith("c")]
    user, item = (torch.from_numpy(numbers[name]) for name in ("user_id", "item_id"))
    context = torch.from_numpy(frame[columns].to_numpy(dtype="float32"))
    with torch.inference_mode():
        parts = [torch.sigmoid(model(user[i:i + CHUNK], item[i:i + CHUNK], context[i:i + CHUNK]))
                 for i in range(0, len(frame), CHUNK)]
    computed = time.perf_counter()
    frame["prediction"] = torch.cat(parts).numpy()
    frame.to_csv(options.to, index=False)
    done = time.perf_counter()
    print(json.dumps({"seconds": done - start, "read": read - start, "compute": computed - read,
                      "write": done - computed}))


if __name__ == "__main__":
    main()
