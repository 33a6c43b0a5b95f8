"""The peer of `tests/bench/run pipeline`, `fsdp` and `data_parallel`: the GPT of configs/gpt_single.yaml in PyTorch;
prints JSON.

--how alone | compiled | ddp | fully_shard | 1f1b. One core and one thread a rank, Gloo between ranks; AdamW fused where
the peer can."""
import argparse
import math
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import ranks

VOCABULARY = 256  # bytes
SETTINGS = {"lr": 1e-3, "weight_decay": 0.1, "clip_norm": 1.0, "warmup": 20}


class Transformer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.projection = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h):
        batch, length, dim = h.shape
        q, k, v = self.qkv(self.attention_norm(h)).view(
            batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, dim)
        h = h + self.dropout(self.projection(attended))
        return h + self.dropout(self.down(F.gelu(self.up(self.mlp_norm(h)))))


class Gpt(nn.Module):
    """Blocks [begin, end) of the model: 0 is the embedding, layers + 1 the output, whose weight is the embedding's."""

    def __init__(self, options, begin=0, end=None):
        super().__init__()
        layers, dim = options.layers, options.dim
        end = layers + 2 if end is None else end
        self.first, self.last = begin == 0, end == layers + 2
        self.tokens = nn.Embedding(VOCABULARY, dim) if self.first or self.last else None
        self.positions = nn.Parameter(torch.randn(options.length, dim) * 0.02) if self.first else None
        self.dropout = nn.Dropout(options.dropout)
        self.blocks = nn.ModuleList(Transformer(dim, options.heads, options.dropout)
                                    for block in range(begin, end) if 0 < block < layers + 1)
        self.norm = nn.LayerNorm(dim) if self.last else None
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and name != "positions":
                residual = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(parameter, 0, 0.02 / (math.sqrt(2 * layers) if residual else 1))

    def forward(self, h):
        if self.first:
            h = self.dropout(self.tokens(h) + self.positions[: h.shape[1]])
        for block in self.blocks:
            h = block(h)
        return F.linear(self.norm(h), self.tokens.weight) if self.last else h


def loss_of(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def adamw(model):
    """Returns the fused AdamW: one loop over all parameters, the fastest on the CPU."""
    decayed = [p for name, p in model.named_parameters() if not ("bias" in name or "norm" in name)]
    rest = [p for name, p in model.named_parameters() if "bias" in name or "norm" in name]
    groups = [{"params": decayed, "weight_decay": SETTINGS["weight_decay"]}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=SETTINGS["lr"], fused=True)


class Update:
    """Applies clipping, learning rate and AdamW, as in the configuration."""

    def __init__(self, model, steps):
        self.model, self.steps, self.step = model, steps, 0
        self.optimizer = adamw(model)

    def clip(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), SETTINGS["clip_norm"])

    def __call__(self):
        self.clip()
        self.step += 1
        warm = min(1.0, self.step / SETTINGS["warmup"])
        rate = SETTINGS["lr"] * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * self.step / self.steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()


class StageUpdate(Update):
    """Updates a stage: sums the norm and the tied weight's gradient over both stages."""

    def clip(self):
        dist.all_reduce(self.model.tokens.weight.grad)
        gradients = [p.grad for p in self.model.parameters()]
        own = [g for g in gradients if self.model.first or g is not self.model.tokens.weight.grad]
        square = torch.stack(torch._foreach_norm(own)).square().sum()
        dist.all_reduce(square)
        scale = (SETTINGS["clip_norm"] / (square.sqrt() + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale)


def whole_step(options, rank):
    model = Gpt(options)
    if options.how == "compiled":
        model.compile()
    elif options.how == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    elif options.how == "fully_shard":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (options.ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    update = Update(model, options.warm + options.steps)

    def step(tokens, target):
        loss_of(model(tokens), target).backward()
        update()
    return step


def pipelined_step(options, rank):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    border = 1 + options.layers // options.ranks
    model = Gpt(options, *((0, border) if rank == 0 else (border, None)))
    with torch.no_grad():
        dist.broadcast(model.tokens.weight, 0)
    micro = options.batch // options.micro_batches
    tokens = torch.zeros(micro, options.length, dtype=torch.long)
    hidden = torch.zeros(micro, options.length, options.dim)
    shapes = {"input_args": (tokens,), "output_args": (hidden,)} if rank == 0 else \
        {"input_args": (hidden,), "output_args": (torch.zeros(micro, options.length, VOCABULARY),)}
    stage = PipelineStage(model, rank, options.ranks, torch.device("cpu"), **shapes)
    schedule = Schedule1F1B(stage, options.micro_batches, loss_fn=loss_of)
    update = StageUpdate(model, options.warm + options.steps)

    def step(tokens, target):
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=target, losses=[])
        update()
    return step


def train(rank, options, port, results):
    ranks.join(rank, options, port)
    text = torch.frombuffer(bytearray(open(options.text, "rb").read()), dtype=torch.uint8)
    pipelined = options.how == "1f1b"
    step = (pipelined_step if pipelined else whole_step)(options, rank)
    rows = options.batch if pipelined else options.batch // options.ranks  # rows of this rank; stages see the same ones
    generator = torch.Generator().manual_seed(1 if pipelined else 1 + rank)
    times = []
    for _ in range(options.warm + options.steps):
        begin = time.perf_counter()
        at = (torch.randint(len(text) - options.length - 1, (rows, 1), generator=generator) +
              torch.arange(options.length + 1))
        sequences = text[at].long()
        step(sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous())
        times.append(time.perf_counter() - begin)
    if rank == 0:
        timed = times[options.warm:]
        results.put({"step_seconds": sum(timed) / len(timed), "median": statistics.median(timed)})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["alone", "compiled", "ddp", "fully_shard", "1f1b"], required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro_batches", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=5)
    options = parser.parse_args()
    options.ranks = 1 if options.how in ("alone", "compiled") else 2
    ranks.run(train, options)
