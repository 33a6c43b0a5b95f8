"""Weights in both directions, with the layouts of GPT-2 and Llama in plain PyTorch: export from every layout, init_from
under every strategy, verify --against with mistakes, and refusals. Needs no transformers."""
# timeout: 600
import json
import pathlib
import resource
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

sys.path.insert(0, str(runs.TOP / "tools"))
try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.nn import functional as F
except ImportError:
    print("skipped: this Python has no torch or no safetensors; ./check installs both")
    sys.exit(77)
import python_models
from dump_reference import dump_reference

TINY = runs.TOP / "configs" / "tiny"
GPT = ["model={name: gpt, layers: 2, heads: 4, dim: 8, activation: gelu_tanh}", "launch.threads=1"]
LLAMA = ["model={name: llama, layers: 2, heads: 4, kv_heads: 2, dim: 8, mlp_dim: 12}", "launch.threads=1"]
STEP = ["train.max_steps=2", "train.epochs=~", "train.evaluate_every=never", "train.checkpoint_every=2 steps"]
# An update too small to change a number other than zero: the checkpoint has the initial values.
STILL = [*STEP, "optimizer={name: sgd, lr: 1e-30}"]
STRATEGIES = (("single", 1, []), ("ddp", 2, ["strategy.name=ddp"]),
              ("fsdp", 2, ["strategy={name: fsdp, shard: parameters}"]),
              ("tensor_parallel", 2, ["strategy.name=tensor_parallel"]),
              ("pipeline", 2, ["strategy={name: pipeline, micro_batches: 2}"]))


def convoy(*words, expect=0, **extra):
    done = subprocess.run([str(runs.CONVOY), *map(str, words)], cwd=runs.TOP, env=runs.environment(), timeout=120,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **extra)
    runs.check(done.returncode == expect, f"convoy {' '.join(map(str, words))}\nexit {done.returncode}, expected "
                                          f"{expect}\n{done.stdout[-3000:]}")
    return done.stdout


def sets(*items):
    return [word for item in items for word in ("--set", item)]


def exported(run, to, *words):
    convoy("export", run, "--to", to, *words)
    return load_file(to / "model.safetensors")


def same(title, given, expected):
    runs.check(sorted(given) == sorted(expected), f"{title}: other names: {set(given) ^ set(expected)}")
    for name, value in expected.items():
        runs.check(torch.equal(given[name], value), f"{title}: {name} differs")


def state_of(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def tokens(seed=1):
    ids = torch.randint(0, 16, (3, 11), generator=torch.Generator().manual_seed(seed))
    return {"tokens": ids[:, :-1].contiguous(), "target": ids[:, 1:].contiguous()}


def loss_of(model, batch):
    return lambda: F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["target"].flatten())


def both_ways(work, title, model, options):
    """Uses Python's weights under every strategy, and exports them again: the same bits."""
    start = work / f"{title}-start"
    start.mkdir()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    state = {name: value for name, value in state_of(model).items() if title != "gpt" or name != "lm_head.weight"}
    save_file(state, start / "model.safetensors", {"format": "pt"})
    for name, ranks, strategy in STRATEGIES:
        run = work / f"{title}-{name}"
        runs.run(TINY / "gpt.yaml", run, [*options, *STILL, *strategy, f"model.init_from={start}"], ranks=ranks)
        same(f"{title} by {name}", exported(run, work / f"{run.name}-exported"), state)
        log = (run / "logs" / "rank0.log").read_text()
        runs.check(f"{len(state) if title == 'gpt' else 15} tensors from" in log, f"{title}: no list in\n{log}")
    # From a checkpoint of another layout, and from an export with an index.
    shards = work / f"{title}-shards"
    convoy("export", work / f"{title}-fsdp", "--to", shards, "--max-file-size", "1KB")
    runs.check(len(list(shards.glob("model-0*.safetensors"))) > 2, f"{title}: not divided into files")
    index = json.loads((shards / "model.safetensors.index.json").read_text())
    total = sum(value.nbytes for value in state.values())
    runs.check(index["metadata"]["total_size"] == total, f"{title}: total_size {index['metadata']}, not {total}")
    for source in (work / f"{title}-pipeline", runs.newest_checkpoint(work / f"{title}-tensor_parallel"), shards):
        run = work / f"{title}-from-{source.parent.name}-{source.name}"
        runs.run(TINY / "gpt.yaml", run, [*options, *STILL, "strategy={name: fsdp}", f"model.init_from={source}"],
                 ranks=2)
        same(f"{title} from {source.name}", exported(run, work / f"{run.name}-exported"), state)
    print(f"{title}: the same bits in {len(STRATEGIES) + 3} runs", flush=True)


def against(folder, options, expect, *words):
    said = convoy("verify", TINY / "gpt.yaml", *sets(*options), "--against", folder, expect=expect)
    for word in words:
        runs.check(word in said, f"{folder.name}: no '{word}' in\n{said}")
    return said


def agrees(work, title, make, options):
    for dtype in (torch.float32, torch.float64):
        model, folder = make().to(dtype), work / f"{title}-{dtype}"
        batch = tokens()
        dump_reference(model, batch, loss_of(model, batch), folder)
        print(title, against(folder, options, 0, "agree: ").splitlines()[-1], flush=True)


def finds(work, title, model, options, change, *words, before=False):
    """Finds a mistake that `change` makes in the Python model, or in the weights after their use."""
    folder, batch = work / title.replace(" ", "-"), tokens()
    if before:
        change(model)
    dump_reference(model, batch, loss_of(model, batch), folder)
    if not before:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors", {"format": "pt"})
    said = against(folder, options, 1, "differ: first the ", *words)
    print(f"{title}: {said.splitlines()[1]}", flush=True)


def mistakes(work):
    def transposed(name):
        def change(state):
            state[name] = state[name].t().contiguous()
        return change

    def epsilon(module, value):
        return lambda model: setattr(model.get_submodule(module), "eps", value)

    def unmasked(module):
        return lambda model: setattr(model.get_submodule(module), "masked", False)

    finds(work, "a transposed weight of gpt", python_models.Gpt2(), GPT,
          transposed("transformer.h.1.attn.c_proj.weight"), "output of blocks.1.projection", "h.1.attn.c_proj",
          "transposed")
    finds(work, "another epsilon of gpt", python_models.Gpt2(), GPT, epsilon("transformer.h.0.ln_2", 1e-2),
          "output of blocks.0.mlp_norm", "ln_2", "epsilon", before=True)
    finds(work, "no mask of gpt", python_models.Gpt2(), GPT, unmasked("transformer.h.0.attn"),
          "input of blocks.0.projection", "output of blocks.0.qkv", "masks", before=True)
    finds(work, "a transposed weight of llama", python_models.Llama(), LLAMA,
          transposed("model.layers.0.self_attn.o_proj.weight"), "output of blocks.0.projection", "o_proj")
    finds(work, "another epsilon of llama", python_models.Llama(), LLAMA,
          epsilon("model.layers.1.input_layernorm", 1e-2), "output of blocks.1.attention_norm", "input_layernorm",
          "epsilon", before=True)
    finds(work, "no mask of llama", python_models.Llama(), LLAMA, unmasked("model.layers.1.self_attn"),
          "input of blocks.1.projection", "output of blocks.1.qkv", "masks", before=True)
    finds(work, "a swapped gate of llama", python_models.Llama(), LLAMA,
          lambda model: setattr(model.model.layers[0].mlp, "swapped", True), "input of blocks.0.down",
          "output of blocks.0.gate_up", "gates", before=True)

    def gate_and_up(state):
        gate, up = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
        state[gate], state[up] = state[up], state[gate]
    finds(work, "gate and up exchanged", python_models.Llama(), LLAMA, gate_and_up, "output of blocks.0.gate_up")
    folder = work / "gate-and-up-exchanged"
    against(folder, GPT, 78, f"{folder} has no tensor transformer.", "its first tensor is ", "of model gpt")
    (folder / "reference.safetensors").unlink()
    against(folder, LLAMA, 78, "has no reference.safetensors", "tools/dump_reference.py")


def page_modules():
    page = (runs.TOP / "docs" / "python.md").read_text()
    code = page.split("## Modules")[1].split("```python\n")[1].split("```")[0]
    names = {}
    exec(code, names)
    return names


def modules(work):
    """The page's modules load exports strictly, and compute the same results."""
    names = page_modules()
    classes = lambda model, batch: lambda: F.cross_entropy(model(batch["features"]), batch["target"])
    random = torch.Generator().manual_seed(3)
    images = {"features": torch.randn(6, 3, 8, 8, generator=random), "target": torch.arange(6) % 5}
    rows = {"features": torch.randn(6, 12, generator=random), "target": torch.arange(6) % 5}
    pairs = {"user": torch.arange(6), "item": torch.randint(0, 150, (6, 5), generator=random),
             "target": torch.tensor([[1.0, 0, 0, 0, 0]] * 6), "context": torch.randn(6, 3, generator=random)}
    ranked = lambda model, batch: lambda: F.binary_cross_entropy_with_logits(
        model(batch["user"], batch["item"], (batch["context"],)), batch["target"])
    cases = (("mlp", [], names["Mlp"]([12, 16, 8, 5]), rows, classes),
             ("convnet", ["model.dropout=0"], names["Convnet"]([3, 4, 6], 3, 6 * 2 * 2, 8, 5), images, classes),
             ("ncf", [], names["Ncf"](200, 150, 4, 8, (8, 4), row_numbers=3), pairs, ranked))
    for title, options, module, batch, loss in cases:
        config, run, folder = TINY / f"{title}.yaml", work / title, work / f"{title}-reference"
        runs.run(config, run, [*STEP, "launch.threads=1", *options])
        module.load_state_dict(exported(run, work / f"{title}-exported"), strict=True)
        dump_reference(module, batch, loss(module, batch), folder)
        said = convoy("verify", config, *sets(*options), "--against", folder)
        print(f"docs/python.md, {title}: {said.splitlines()[-1]}", flush=True)


def refusals(work):
    start = work / "gpt-start"
    config = TINY / "gpt.yaml"
    line = lambda *more: [str(runs.CONVOY), "run", str(config), *sets(*GPT, *STILL), *map(str, more)]
    missing = line("--output", work / "none", *sets("model.init_from=nowhere"))
    runs.refused("no such path", 78, ["model.init_from", "nowhere does not exist"], missing)
    pickled = work / "pickled"
    pickled.mkdir()
    torch.save({}, pickled / "pytorch_model.bin")
    for path in (pickled, pickled / "pytorch_model.bin"):
        runs.refused("a pickle", 78, ["--set model.init_from", "pickled", "save_file"],
                     line("--output", work / "none", *sets(f"model.init_from={path}")))
    runs.refused("init_from and resume", 78, ["leave one of them out"],
                 line("--output", work / "none",
                      *sets(f"model.init_from={start}", f"train.resume={work / 'gpt-fsdp'}")))
    runs.refused("a wrong pattern", 78, ["no regular expression"],
                 line("--output", work / "none", *sets(f"model.init_from={{path: {start}, rename: {{'(': x}}}}")))
    ranks = lambda output, *more: runs.run(config, None, [*GPT, *STILL, f"name={output}", *more], ranks=2, expect=None,
                                           cwd=work).stdout
    said = ranks("other-shape", "model.dim=16", f"model.init_from={start}", "strategy.name=fsdp")
    for word in ("model.init_from", "transformer.h.0.ln_1.bias", "model.safetensors has shape [8]",
                 "attention_norm.bias"):
        runs.check(word in said, f"another shape: no '{word}' in\n{said}")
    said = ranks("other-layers", "model.layers=3", f"model.init_from={start}", "strategy.name=ddp")
    runs.check("it lacks blocks.2." in said and "strict: false" in said, f"missing tensors:\n{said}")
    told = [line for line in said.splitlines() if "it lacks blocks.2." in line and "convoy: failed" not in line]
    runs.check(len(told) == 1, f"missing tensors: not told by one rank:\n{said}")
    (start / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2}))
    said = ranks("other-heads", f"model.init_from={start}", "strategy.name=ddp")
    runs.check("model.heads: config.json" in said and "n_head = 2 conflicts with model.heads = 4" in said,
               f"other heads:\n{said}")
    (start / "config.json").unlink()
    # Another head: left out by name, random here.
    other = work / "other-head"
    runs.run(config, other, [*GPT, *STILL, "data.vocabulary=12", "strategy.name=fsdp",
                             f"model.init_from={{path: {start}, strict: false, rename: {{wte.*: ''}}}}"], ranks=2)
    log = (other / "logs" / "rank0.log").read_text()
    runs.check("stays random: embedding.tokens.weight" in log, f"no random tensor in\n{log}")

    run, to = work / "gpt-single", work / "refused"
    export = lambda *words: [str(runs.CONVOY), "export", *map(str, words)]
    runs.refused("no run", 64, ["does not exist"], export(work / "nowhere", "--to", to))
    runs.refused("no run", 64, ["is neither a run folder nor a checkpoint"], export(runs.TOP / "configs", "--to", to))
    runs.refused("no model of transformers", 78, ["--format hf", "mlp"],
                 export(work / "mlp", "--to", to, "--format", "hf"), within=20)
    convoy("export", run, "--to", to)
    content = (to / "model.safetensors").read_bytes()
    runs.refused("an export is there", 73, ["--force"], export(run, "--to", to), within=20)
    for path in (work / "nodir" / ".." / "refused", f"{to}/", work / "nodir" / ".." / "refused" / "."):
        runs.refused(f"an export is there, as {path}", 73, ["--force"], export(run, "--to", path), within=20)
    link = work / "link"
    link.symlink_to(to)
    for path in (link, f"{link}/"):
        runs.refused("a link", 73, ["is a symbolic link"], export(run, "--to", path, "--force"), within=20)
    runs.check(link.is_symlink() and (to / "model.safetensors").read_bytes() == content,
               "the earlier export was changed")
    convoy("export", run, "--to", to, "--force")
    (to / "mine.txt").write_text("x")
    runs.refused("other files", 73, ["mine.txt"], export(run, "--to", to, "--force"), within=20)
    (to / "mine.txt").unlink()
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, 1 << 10))
    said = convoy("export", run, "--to", to, "--force", expect=74, preexec_fn=full)
    runs.check("File too large" in said, f"a full disk:\n{said}")
    runs.check((to / "model.safetensors").read_bytes() == content, "the earlier export was changed")
    left = [path.name for path in work.iterdir() if path.name.startswith(".")]
    runs.check(not left, f"leftovers: {left}")
    empty = work / "empty"
    (empty / "checkpoints").mkdir(parents=True)
    (empty / "summary.json").write_text(json.dumps({"status": "failed"}))
    runs.refused("no checkpoint yet", 78, ["holds no complete checkpoint"], export(empty, "--to", work / "x"),
                 within=20)
    damaged = work / "damaged"
    shutil.copytree(run, damaged)
    file = runs.newest_checkpoint(damaged) / "rank-0.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    runs.refused("damaged", 65, ["rank-0.safetensors"], export(damaged, "--to", work / "x"), within=20)
    runs.check(not (work / "x").exists(), "a refused export left its folder")
    print("refusals: all with their code and reason", flush=True)


def members(work):
    run = work / "ensemble"
    runs.run(TINY / "mlp.yaml", run, [*STEP, "strategy={name: ensemble, members: 3}", "launch.threads=1"])
    said = convoy("export", run, "--to", work / "none", expect=78)
    runs.check("@member0" in said, f"an ensemble without a member:\n{said}")
    weights = exported(f"{run}@member1", work / "member")
    again = work / "from-member"
    runs.run(TINY / "mlp.yaml", again, [*STILL, f"model.init_from={run}@member1", "launch.threads=1"])
    same("member 1", exported(again, work / "from-member-exported"), weights)
    all_three = work / "from-one"
    runs.run(TINY / "mlp.yaml", all_three, [*STILL, "strategy={name: ensemble, members: 3}", "launch.threads=1",
                                            f"model.init_from={work / 'member'}"])
    same("member 2 of one", exported(f"{all_three}@member2", work / "from-one-exported"), weights)
    print("members: exported and read", flush=True)


with runs.workspace() as work:
    torch.manual_seed(1)
    both_ways(work, "gpt", python_models.Gpt2(), GPT)
    both_ways(work, "llama", python_models.Llama(), LLAMA)
    agrees(work, "gpt", python_models.Gpt2, GPT)
    agrees(work, "llama", python_models.Llama, LLAMA)
    mistakes(work)
    modules(work)
    refusals(work)
    members(work)
