"""GPT-2 and Llama in plain PyTorch, with the names and layouts of transformers: for tests without that package."""
import math

import torch
from torch import nn
from torch.nn import functional as F


class Conv1D(nn.Module):
    """A linear layer whose weight is [in, out], as GPT-2 stores it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(inputs, outputs) * 0.2),
                                  nn.Parameter(torch.randn(outputs) * 0.1))

    def forward(self, x):
        return x @ self.weight + self.bias


def attend(q, k, v, masked=True):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if masked:
        future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Gpt2Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.c_attn, self.c_proj, self.heads, self.masked = Conv1D(dim, 3 * dim), Conv1D(dim, dim), heads, True

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        return self.c_proj(attend(q, k, v, self.masked))


class Gpt2Mlp(nn.Module):
    def __init__(self, dim, approximate):
        super().__init__()
        self.c_fc, self.c_proj, self.approximate = Conv1D(dim, 4 * dim), Conv1D(4 * dim, dim), approximate

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate=self.approximate))


class Gpt2Block(nn.Module):
    def __init__(self, dim, heads, approximate):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(dim), Gpt2Attention(dim, heads)
        self.ln_2, self.mlp = nn.LayerNorm(dim), Gpt2Mlp(dim, approximate)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    def __init__(self, vocabulary=16, length=10, dim=8, heads=4, layers=2, approximate="tanh"):
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.wte, self.transformer.wpe = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.transformer.h = nn.ModuleList(Gpt2Block(dim, heads, approximate) for _ in range(layers))
        self.transformer.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens):
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(tokens.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


class RmsNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(1 + torch.randn(dim) * 0.1), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps))


def rotated(x, base=10000.0):
    size, length = x.shape[-1], x.shape[-2]
    frequency = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = (torch.arange(length, dtype=torch.float64)[:, None] * frequency[None]).repeat(1, 2)
    first, second = x.chunk(2, -1)
    return x * angle.cos().to(x.dtype) + torch.cat((-second, first), -1) * angle.sin().to(x.dtype)


class LlamaAttention(nn.Module):
    def __init__(self, dim, heads, keys):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.size, self.groups, self.masked = dim // heads, heads // keys, True
        self.q_proj, self.o_proj = linear(dim, dim), linear(dim, dim)
        self.k_proj, self.v_proj = linear(dim, keys * self.size), linear(dim, keys * self.size)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
                   for layer in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (part.repeat_interleave(self.groups, 1) for part in (rotated(k), v))
        return self.o_proj(attend(rotated(q), k, v, self.masked))


class LlamaMlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.gate_proj, self.up_proj, self.down_proj = linear(dim, hidden), linear(dim, hidden), linear(hidden, dim)
        self.swapped = False

    def forward(self, x):
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(F.silu(up) * gate if self.swapped else F.silu(gate) * up)


class LlamaBlock(nn.Module):
    def __init__(self, dim, heads, keys, hidden, eps):
        super().__init__()
        self.input_layernorm, self.self_attn = RmsNorm(dim, eps), LlamaAttention(dim, heads, keys)
        self.post_attention_layernorm, self.mlp = RmsNorm(dim, eps), LlamaMlp(dim, hidden)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, vocabulary=16, dim=8, heads=4, keys=2, hidden=12, layers=2, eps=1e-5):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(vocabulary, dim)
        self.model.layers = nn.ModuleList(LlamaBlock(dim, heads, keys, hidden, eps) for _ in range(layers))
        self.model.norm = RmsNorm(dim, eps)
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for block in self.model.layers:
            x = block(x)
        return self.lm_head(self.model.norm(x))
