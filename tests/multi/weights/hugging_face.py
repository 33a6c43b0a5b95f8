"""Random models of transformers and torchvision, in both directions: equal logits, and one run through both."""
# labels: slow
# timeout: 1800
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

sys.path.insert(0, str(runs.TOP / "tools"))
try:
    import torch
    import torchvision
    import transformers
    from safetensors.torch import load_file, save_file
    from torch.nn import functional as F
    from transformers.models.llama import modeling_llama
except ImportError as error:
    print(f"skipped: {error}; ./check installs it")
    sys.exit(77)
from dump_reference import dump_reference

transformers.logging.set_verbosity_error()
CONFIG = runs.TOP / "configs" / "tiny" / "gpt.yaml"
SIZES = "layers: 3, heads: 4, dim: 32"
STEP = ["train.max_steps=2", "train.epochs=~", "train.evaluate_every=never", "train.checkpoint_every=2 steps",
        "launch.threads=1",
        "data={name: synthetic, kind: tokens, rows: 400, evaluate_rows: 0, vocabulary: 68, length: 24}"]
STILL = [*STEP, "optimizer={name: sgd, lr: 1e-30}"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def gpt2(tied=True, context=40, inner=128, eps=1e-5):
    config = transformers.GPT2Config(vocab_size=68, n_positions=context, n_embd=32, n_layer=3, n_head=4, n_inner=inner,
                                     layer_norm_epsilon=eps, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0)
    return (transformers.GPT2LMHeadModel(config),
            f"model={{name: gpt, {SIZES}, activation: gelu_tanh, context: {context}, mlp_dim: {inner}, "
            f"norm_eps: {eps}, tied: {str(tied).lower()}}}")


def llama(tied=False, keys=2, base=50000.0, eps=1e-5):
    config = transformers.LlamaConfig(vocab_size=68, hidden_size=32, intermediate_size=56, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=keys, max_position_embeddings=64,
                                      rms_norm_eps=eps, tie_word_embeddings=tied, rope_parameters={
                                          "rope_type": "default", "rope_theta": base})
    return (transformers.LlamaForCausalLM(config), f"model={{name: llama, {SIZES}, kv_heads: {keys}, mlp_dim: 56, "
            f"rotary_base: {base}, norm_eps: {eps}, tied: {str(tied).lower()}}}")


def exact_llama():
    """transformers computes RMS norms and angles of Llama in float32 for any dtype. Replaces them, because the
    difference would be 1e-7."""

    def norm(self, hidden):
        return self.weight * (hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def angles(self, x, position_ids):
        base, size = (self.config.rope_parameters["rope_theta"],
                      self.config.hidden_size // self.config.num_attention_heads)
        inverse = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = position_ids[..., None].double() * inverse
        angle = torch.cat([angle, angle], -1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    modeling_llama.LlamaRMSNorm.forward, modeling_llama.LlamaRotaryEmbedding.forward = norm, angles


def convoy(*words):
    done = subprocess.run([str(runs.CONVOY), *map(str, words)], cwd=runs.TOP, env=runs.environment(), timeout=300,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, f"convoy {' '.join(map(str, words))}: {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def with_sets(options):
    return [word for item in options for word in ("--set", item)]


def tokens():
    ids = torch.randint(0, 68, (4, 25), generator=torch.Generator().manual_seed(2))
    return {"tokens": ids[:, :-1].contiguous(), "target": ids[:, 1:].contiguous()}


def logits(model, batch):
    model.eval()
    with torch.no_grad():
        return model(batch["tokens"]).logits


def same_step(work, title, made, dtype):
    """Compares outputs, loss and gradients. Returns the model, the options of the run and the folder of its weights."""
    model, option = made
    # Weights far from their initial values: zero biases would hide that they are not used.
    torch.manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    model = model.to(dtype)
    precision = "precision=fp64" if dtype == torch.float64 else "precision=fp32"
    options, batch = [*STILL, option, precision], tokens()
    reference = work / f"{title}-{precision}"
    dump_reference(model, batch, lambda: F.cross_entropy(logits_with_graph(model, batch), batch["target"].flatten()),
                   reference)
    said = convoy("verify", CONFIG, *with_sets(options), "--against", reference, "--tolerance", TOLERANCE[dtype])
    print(f"{title}, {precision}: {said.splitlines()[-1]}", flush=True)
    return model, options, reference


def both_ways(work, title, made, dtype):
    model, options, reference = same_step(work, title, made, dtype)
    batch = tokens()
    run, back = work / f"{reference.name}-run", work / f"{reference.name}-back"
    runs.run(CONFIG, run, [*options, "strategy={name: tensor_parallel}", f"model.init_from={reference}"], ranks=2)
    convoy("export", run, "--to", back, "--format", "hf")
    again = transformers.AutoModelForCausalLM.from_pretrained(back, dtype=dtype)
    runs.check(type(again) is type(model), f"{title}: is a {type(again)}")
    error = (logits(again, batch) - logits(model, batch)).abs().max().item()
    largest = logits(model, batch).abs().max().item()
    runs.check(error <= TOLERANCE[dtype] * largest, f"{reference.name}: logits differ by {error} of {largest}")
    print(f"{reference.name}: exported logits differ by {error:.1e} of {largest:.1f}", flush=True)


def logits_with_graph(model, batch):
    return model(batch["tokens"]).logits.flatten(0, 1)


def saved_by_transformers(work):
    """Saves several files with an index, as save_pretrained writes them."""
    torch.manual_seed(4)
    model, option = llama(tied=True)
    folder, run, back = work / "saved", work / "saved-run", work / "saved-back"
    model.save_pretrained(folder, max_shard_size="20KB")
    runs.check((folder / "model.safetensors.index.json").exists(), "transformers wrote one file only")
    runs.run(CONFIG, run, [*STILL, option, "strategy={name: fsdp}", f"model.init_from={folder}"], ranks=2)
    convoy("export", run, "--to", back, "--format", "hf", "--max-file-size", "20KB")
    again = transformers.AutoModelForCausalLM.from_pretrained(back)
    runs.check(torch.equal(logits(again, tokens()), logits(model, tokens())), "files with an index: other logits")
    print("an index in both directions: equal logits", flush=True)


def trained(work):
    """A pipeline's run, opened by Python, resumed under fsdp."""
    text = work / "text.txt"
    text.write_text("".join(f"line {n} of a small text\n" for n in range(3000)))
    base = [f"data={{name: text, path: {text}, vocabulary: bytes, length: 32}}", "launch.threads=1",
            "train.evaluate_every=never", "train.epochs=~", "train.checkpoint_every=40 steps", "train.max_steps=40",
            "optimizer={name: adamw, lr: 3e-3}", "train.log_every=1",
            f"model={{name: gpt, {SIZES}, activation: gelu_tanh}}"]
    run, to = work / "pipeline", work / "pipeline-exported"
    runs.run(CONFIG, run, [*base, "strategy={name: pipeline, micro_batches: 2}"], ranks=2)
    convoy("export", run, "--to", to, "--format", "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(to)
    tokenizer = transformers.AutoTokenizer.from_pretrained(to)
    line = "line 12 of a small text\nlinéa 7"
    ids = tokenizer(line)["input_ids"]
    runs.check(ids == list(line.encode()), f"the tokenizer gives {ids}")
    runs.check(tokenizer.decode(ids) == line, f"the tokenizer gives {tokenizer.decode(ids)!r}")
    sample = torch.tensor([list(text.read_bytes()[:33])])
    loss = F.cross_entropy(model(sample[:, :-1]).logits.flatten(0, 1), sample[:, 1:].flatten()).item()
    last = runs.records(run, "train")[-1]["metrics"]["loss"]
    runs.check(abs(loss - last) < 1.0 and loss < 3, f"Python's loss is {loss}, convoy's last was {last}")
    more = work / "fsdp"
    runs.run(CONFIG, more, [*base, "strategy={name: fsdp}", f"model.init_from={to}"], ranks=2)
    losses = [record["metrics"]["loss"] for record in runs.records(more, "train")]
    runs.check(losses[0] < last + 0.5 and losses[-1] < losses[0], f"continued with {losses[0]} after {last}")
    print(f"a pipeline's run: {last:.3f}; in Python {loss:.3f}; continued by fsdp {losses[0]:.3f} to {losses[-1]:.3f}",
          flush=True)


def tokenizers(work):
    """A tokenizer of Hugging Face is used by a run and exported from it."""
    from tokenizers import ByteLevelBPETokenizer
    text, kept = work / "words.txt", work / "tokenizer"
    text.write_text("".join(f"the {n}th line of several lines\n" for n in range(2000)))
    kept.mkdir()
    trained = ByteLevelBPETokenizer()
    trained.train([str(text)], vocab_size=400, show_progress=False)
    trained.save_model(str(kept))
    for name in ("tokenizer.json", "words.json"):
        trained.save(str(kept / name))
    line = "the 12th line of several other lines é"
    for title, file, model in (("json", "tokenizer.json", f"{{name: llama, {SIZES}}}"),
                               ("named", "words.json", f"{{name: llama, {SIZES}}}"),
                               ("merges", "vocab.json", f"{{name: gpt, {SIZES}, activation: gelu_tanh}}")):
        run, to = work / f"tokenizer-{title}", work / f"tokenizer-{title}-exported"
        runs.run(CONFIG, run, ["train.max_steps=2", "train.epochs=~", "train.evaluate_every=never", "launch.threads=1",
                               f"model={model}",
                               f"data={{name: text, path: {text}, tokenizer: {kept / file}, length: 16}}"])
        convoy("export", run, "--to", to, "--format", "hf")
        ids = transformers.AutoTokenizer.from_pretrained(to)(line)["input_ids"]
        runs.check(ids == trained.encode(line).ids, f"{title}: the exported tokenizer gives {ids}")
        transformers.AutoModelForCausalLM.from_pretrained(to)(torch.tensor([ids]))
    print("tokenizers: exported unchanged", flush=True)


def vision(work):
    for depth in (18, 50):
        torch.manual_seed(5)
        model = getattr(torchvision.models, f"resnet{depth}")(num_classes=7)
        for parameter in model.parameters():  # a bias of zero would become 1e-30
            if parameter.dim() == 1:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        options = [f"model={{name: resnet, shape: imagenet, depth: {depth}}}", "train.batch.global=4",
                   "launch.threads=1",
                   "data={name: synthetic, kind: classification, rows: 40, features: [3, 64, 64], classes: 7}"]
        start, run, back = work / f"resnet{depth}.safetensors", work / f"resnet{depth}", work / f"resnet{depth}-back"
        save_file(model.state_dict(), start)
        runs.run(runs.TOP / "configs" / "tiny" / "convnet.yaml", run,
                 [*options, "train.max_steps=1", "train.evaluate_every=never", "train.checkpoint_every=1 steps",
                  "optimizer={name: sgd, lr: 1e-30}", f"model.init_from={start}"])
        convoy("export", run, "--to", back)
        state = load_file(back / "model.safetensors")
        model.load_state_dict(state, strict=True)
        for name, value in load_file(start).items():
            if re.search(r"running_|num_batches", name):
                continue  # the step has changed them
            runs.check(torch.allclose(state[name], value, rtol=1e-6, atol=1e-25), f"resnet{depth}: {name} differs by "
                       f"{(state[name] - value).abs().max()}")
        batch = {"features": torch.randn(8, 3, 64, 64), "target": torch.arange(8) % 7}
        folder = work / f"resnet{depth}-reference"
        model = model.double()
        batch["features"] = batch["features"].double()
        dump_reference(model, batch, lambda: F.cross_entropy(model(batch["features"]), batch["target"]), folder)
        said = convoy("verify", runs.TOP / "configs" / "tiny" / "convnet.yaml", *with_sets(options),
                      "--against", folder)
        print(f"resnet{depth}: {said.splitlines()[-1]}", flush=True)


with runs.workspace() as work:
    saved_by_transformers(work)
    trained(work)
    tokenizers(work)
    vision(work)
    for dtype in TOLERANCE:
        if dtype == torch.float64:
            exact_llama()
        both_ways(work, "gpt2", gpt2(), dtype)
        both_ways(work, "llama", llama(), dtype)
        # Every option of the two models that changes their outputs.
        same_step(work, "gpt2-untied", gpt2(tied=False, context=24, inner=100, eps=2e-4), dtype)
        same_step(work, "llama-tied", llama(tied=True, keys=4, base=5e5, eps=2e-4), dtype)
        same_step(work, "llama-one-key", llama(keys=1, base=100.0), dtype)
