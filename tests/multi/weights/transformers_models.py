"""gpt with activation: gelu_tanh is GPT-2, and llama is Llama: logits of random models of the Python package transformers."""
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama
except ImportError as error:
    print(f"skipped: {error}; pip install transformers")
    sys.exit(77)

torch.set_num_threads(1)
VOCABULARY, LENGTH = 211, 24
DTYPES = {"fp32": (torch.float32, 1e-5), "fp64": (torch.float64, 1e-10)}


def gpt2(tied, context):
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=context, n_embd=48, n_layer=3, n_head=4, n_inner=100,
                        layer_norm_epsilon=2e-4, bos_token_id=0, eos_token_id=0, tie_word_embeddings=tied, attn_implementation="eager")
    section = {"name": "gpt", "layers": 3, "heads": 4, "dim": 48, "mlp_dim": 100, "mlp_ratio": 4, "activation": "gelu_tanh",
               "positions": "learned", "context": context, "rotary_base": 1e4, "tied": tied, "bias": True, "dropout": 0.0,
               "attention_dropout": 0.0, "norm_eps": 2e-4}
    return GPT2LMHeadModel(config), section


def llama(tied, keys, base):
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=100, num_hidden_layers=3,
                         num_attention_heads=6, num_key_value_heads=keys, rms_norm_eps=2e-4, rope_theta=base,
                         rope_parameters={"rope_type": "default", "rope_theta": base}, max_position_embeddings=64,
                         tie_word_embeddings=tied, attn_implementation="sdpa")  # eager: softmax in float32
    section = {"name": "llama", "layers": 3, "heads": 6, "kv_heads": keys, "dim": 48, "mlp_dim": 100, "rotary_base": base,
               "tied": tied, "dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 2e-4}
    return LlamaForCausalLM(config), section


def of_gpt2(state):
    """Returns the weights of GPT-2, whose Conv1D has [in, out]."""
    mine = {"embedding.tokens.weight": state["transformer.wte.weight"], "embedding.positions": state["transformer.wpe.weight"]}
    names = {"ln_1": "attention_norm", "attn.c_attn": "qkv", "attn.c_proj": "projection", "ln_2": "mlp_norm",
             "mlp.c_fc": "up", "mlp.c_proj": "down"}
    for layer in range(3):
        for theirs, own in names.items():
            for end in ("weight", "bias"):
                value = state[f"transformer.h.{layer}.{theirs}.{end}"]
                mine[f"blocks.{layer}.{own}.{end}"] = value.t() if value.dim() == 2 else value
    for end in ("weight", "bias"):
        mine[f"output.norm.{end}"] = state[f"transformer.ln_f.{end}"]
    return mine


def of_llama(state, keys):
    mine = {"embedding.tokens.weight": state["model.embed_tokens.weight"], "output.norm.weight": state["model.norm.weight"]}
    for layer in range(3):
        theirs = f"model.layers.{layer}."
        q, k, v = (state[f"{theirs}self_attn.{one}_proj.weight"].unflatten(0, (keys, -1)) for one in "qkv")
        mine[f"blocks.{layer}.qkv.weight"] = torch.cat([q, k, v], 1).flatten(0, 1)  # grouped by key head
        mine[f"blocks.{layer}.gate_up.weight"] = torch.cat([state[f"{theirs}mlp.{one}_proj.weight"] for one in ("gate", "up")])
        for own, name in (("projection", "self_attn.o_proj"), ("down", "mlp.down_proj"), ("attention_norm", "input_layernorm"),
                          ("mlp_norm", "post_attention_layernorm")):
            mine[f"blocks.{layer}.{own}.weight"] = state[f"{theirs}{name}.weight"]
    return mine


def exact_llama():
    """transformers computes RMS norms and angles in float32 for any dtype, with an error of 1e-7; here they use the
    model's dtype."""

    def norm(self, hidden):
        return self.weight * (hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def angles(self, x, position_ids):
        base, size = self.config.rope_parameters["rope_theta"], self.config.hidden_size // self.config.num_attention_heads
        inverse = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = position_ids[..., None].double() * inverse
        angle = torch.cat([angle, angle], -1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    modeling_llama.LlamaRMSNorm.forward = norm
    modeling_llama.LlamaRotaryEmbedding.forward = angles


def compare(work, title, model, section, mapping):
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # biases and norms are trivial at the start
            parameter.add_(0.1 * torch.randn_like(parameter))
    for precision, (dtype, within) in DTYPES.items():
        model = model.to(dtype).eval()
        if dtype == torch.float64 and section["name"] == "llama":
            exact_llama()
        tokens = torch.randint(0, VOCABULARY, (3, LENGTH))
        with torch.no_grad():
            theirs = model(tokens).logits
        state = model.state_dict()
        mine = mapping(state)
        if not section["tied"]:
            mine["output.linear.weight"] = state["lm_head.weight"]
        folder = work / f"{title}-{precision}"
        folder.mkdir()
        save_file({"tokens": tokens, **{name: value.contiguous().clone() for name, value in mine.items()}}, folder / "in")
        (folder / "model.json").write_text(json.dumps(section))
        done = subprocess.run([str(runs.BUILD / "tests" / "logits"), precision, folder / "model.json", folder / "in", folder / "out"],
                              capture_output=True, text=True, timeout=60)
        runs.check(done.returncode == 0, f"{title}: {done.stderr}")
        worst = (load_file(folder / "out")["logits"] - theirs).abs().max().item() / theirs.abs().max().item()
        print(f"{title} {precision}: {worst:.1e}")
        runs.check(worst <= within, f"{title} {precision}: {worst}")


torch.manual_seed(1)
llama_norm, llama_angles = modeling_llama.LlamaRMSNorm.forward, modeling_llama.LlamaRotaryEmbedding.forward
with runs.workspace() as work:
    for tied, context in ((True, LENGTH), (False, 40)):
        compare(work, f"gpt2-{tied}-{context}", *gpt2(tied, context), of_gpt2)
    for tied, keys, base in ((False, 2, 1e4), (True, 6, 5e5), (False, 1, 100.0)):
        modeling_llama.LlamaRMSNorm.forward, modeling_llama.LlamaRotaryEmbedding.forward = llama_norm, llama_angles
        compare(work, f"llama-{tied}-{keys}", *llama(tied, keys, base), lambda state: of_llama(state, keys))
print("logits equal those of transformers")
