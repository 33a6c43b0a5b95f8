"""The peer of `tests/bench/run generate`: the GPT of peers/gpt.py, one token at a time with a cache of keys and values
in PyTorch; prints JSON."""
import argparse
import json
import time

import torch
from safetensors.torch import load_file
from torch.nn import functional as F


class Decoder:
    """GPT-2 names and layouts, as `convoy export` writes them. The cache is one tensor per layer, written in place."""

    def __init__(self, path, heads):
        weights = load_file(path)
        self.layers = 1 + max(int(name.split(".")[2]) for name in weights if ".h." in name)
        self.heads = heads
        at = lambda name: weights[f"transformer.{name}"]
        self.tokens, self.positions = at("wte.weight"), at("wpe.weight")
        linear = lambda name: (at(f"{name}.weight").t().contiguous(), at(f"{name}.bias"))  # Conv1D stores [in, out]
        norm = lambda name: (at(f"{name}.weight"), at(f"{name}.bias"))
        self.blocks = [dict(norm1=norm(f"h.{i}.ln_1"), qkv=linear(f"h.{i}.attn.c_attn"),
                            projection=linear(f"h.{i}.attn.c_proj"), norm2=norm(f"h.{i}.ln_2"),
                            up=linear(f"h.{i}.mlp.c_fc"), down=linear(f"h.{i}.mlp.c_proj"))
                       for i in range(self.layers)]
        self.norm = norm("ln_f")
        self.dim = self.tokens.shape[1]
        shape = (self.layers, 2, 1, heads, self.positions.shape[0], self.dim // heads)
        self.cache = torch.empty(shape)

    def logits(self, token, t):
        size = self.dim // self.heads
        h = self.tokens[token] + self.positions[t:t + 1]
        for block, cache in zip(self.blocks, self.cache):
            qkv = F.linear(F.layer_norm(h, (self.dim,), *block["norm1"]), *block["qkv"])
            q, k, v = qkv.view(1, 1, 3, self.heads, size).permute(2, 0, 3, 1, 4)
            cache[0, :, :, t:t + 1], cache[1, :, :, t:t + 1] = k, v
            attended = F.scaled_dot_product_attention(q, cache[0, :, :, :t + 1], cache[1, :, :, :t + 1])
            h = h + F.linear(attended.reshape(1, self.dim), *block["projection"])
            h = h + F.linear(F.gelu(F.linear(F.layer_norm(h, (self.dim,), *block["norm2"]), *block["up"])),
                             *block["down"])
        return F.linear(F.layer_norm(h, (self.dim,), *self.norm), self.tokens)[0]

    def generate(self, prompt, count, temperature):
        out, token = [], torch.tensor([prompt])
        for t in range(count):
            logits = self.logits(token, t)
            if temperature > 0:
                token = torch.multinomial(torch.softmax(logits / temperature, -1), 1)
            else:
                token = logits.argmax(-1, keepdim=True)
            out.append(int(token))
        return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--prompt", type=int, required=True, help="the first token")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--temperature", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        decoder = Decoder(options.weights, options.heads)
        greedy = decoder.generate(options.prompt, options.tokens, 0)  # and warms up
        start = time.perf_counter()
        for _ in range(options.samples):
            decoder.generate(options.prompt, options.tokens, options.temperature)
        seconds = time.perf_counter() - start
    print(json.dumps({"rate": options.samples * options.tokens / seconds, "greedy": greedy}))


if __name__ == "__main__":
    main()
