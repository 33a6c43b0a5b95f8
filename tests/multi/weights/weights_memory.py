"""A model of 400 MB read by two ranks: init_from adds at most the largest tensor to the peak of a rank, and an export
does not load the whole model."""
# labels: slow
# timeout: 900
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

try:
    import torch
    from safetensors.torch import save_file
except ImportError as error:
    print(f"skipped: {error}; ./check installs it")
    sys.exit(77)

DIM, LAYERS = 1024, 8
OPTIONS = [f"model={{name: gpt, layers: {LAYERS}, heads: 8, dim: {DIM}}}", "train.max_steps=1", "train.epochs=~",
           "train.evaluate_every=never", "train.checkpoint_every=1 steps", "train.batch.global=2", "launch.threads=1",
           "data={name: synthetic, kind: tokens, rows: 8, evaluate_rows: 0, vocabulary: 16, length: 8}",
           "optimizer={name: sgd, lr: 1e-3}"]


def write(path):
    block = {"ln_1.weight": [DIM], "ln_1.bias": [DIM], "ln_2.weight": [DIM], "ln_2.bias": [DIM],
             "attn.c_attn.weight": [DIM, 3 * DIM], "attn.c_attn.bias": [3 * DIM], "attn.c_proj.weight": [DIM, DIM],
             "attn.c_proj.bias": [DIM], "mlp.c_fc.weight": [DIM, 4 * DIM], "mlp.c_fc.bias": [4 * DIM],
             "mlp.c_proj.weight": [4 * DIM, DIM], "mlp.c_proj.bias": [DIM]}
    shapes = {f"h.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in block.items()}
    shapes.update({"wte.weight": [16, DIM], "wpe.weight": [8, DIM], "ln_f.weight": [DIM], "ln_f.bias": [DIM]})
    state = {f"transformer.{name}": torch.randn(shape) * 0.02 for name, shape in shapes.items()}
    save_file(state, path)
    sizes = [tensor.nbytes for tensor in state.values()]
    return sum(sizes), max(sizes)


def peaks(output):
    return [rank["peak_resident_bytes"] for rank in runs.summary(output)["ranks"]]


with runs.workspace() as work:
    file = work / "large.safetensors"
    total, largest = write(file)
    runs.check(total >= 400e6, f"the model has {total} bytes")
    for strategy in ("fsdp", "tensor_parallel"):
        plain, read = work / f"{strategy}-plain", work / f"{strategy}-read"
        options = [*OPTIONS, f"strategy.name={strategy}"]
        runs.run(runs.TOP / "configs" / "tiny" / "gpt.yaml", plain, options, ranks=2, timeout=300)
        runs.run(runs.TOP / "configs" / "tiny" / "gpt.yaml", read, [*options, f"model.init_from={file}"], ranks=2,
                 timeout=300)
        more = [with_file - without for without, with_file in zip(peaks(plain), peaks(read))]
        print(f"{strategy}: peaks {[round(p / 1e6) for p in peaks(plain)]} MB, "
              f"with init_from {[round(m / 1e6) for m in more]} MB more; the largest tensor has {largest / 1e6:.0f} MB",
              flush=True)
        runs.check(max(more) <= largest, f"{strategy}: init_from adds {max(more)} bytes to a peak")
        export = [str(runs.CONVOY), "export", str(read), "--to", str(work / f"{strategy}-export")]
        script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        done = subprocess.run([sys.executable, "-c", script, *export], text=True, stdout=subprocess.PIPE, check=True)
        peak = int(done.stdout.split()[-1]) * 1024
        print(f"{strategy}: export of {total / 1e6:.0f} MB with a peak of {peak / 1e6:.0f} MB", flush=True)
        runs.check(peak < total, f"{strategy}: the export needed {peak} bytes for {total}")
