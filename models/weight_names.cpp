// Names of the models' tensors in Python: one table per model, for export and for init_from.
//
//   gpt              GPT-2 of transformers; its Conv1D layers store weights as [in, out]
//   llama            Llama of transformers
//   resnet           ResNet of torchvision; `shape: cifar` follows the same scheme
//   mlp convnet ncf  the modules of docs/python.md
#include "core/checkpoint/weight_names.h"

#include "models/catalogue/catalogue.h"
#include "models/registry.h"

namespace convoy {
namespace {

const std::string transformers_only = "transformers has no model of its kind; type --format safetensors";

// A layer with weight and bias.
void add_layer(std::vector<WeightName>& table, const std::string& ours, const std::string& theirs,
               bool transposed = false) {
  table.push_back({ours + ".weight", {theirs + ".weight"}, transposed});
  table.push_back({ours + ".bias", {theirs + ".bias"}});
}

void add_norm(std::vector<WeightName>& table, const std::string& ours, const std::string& theirs) {
  add_layer(table, ours, theirs);
  for (const char* buffer : {".running_mean", ".running_var"}) table.push_back({ours + buffer, {theirs + buffer}});
}

// --- gpt and llama ---

constexpr const char* token_embedding = "embedding.tokens.weight";

// Names of activation functions in transformers.
std::string activation_of(const Options& options) {
  const std::string name = options.text("activation");
  return name == "gelu_tanh" ? "gelu_new" : name;
}

PythonConfig gpt2_config(const Options& options) {
  const double dropout = options.real("dropout");
  PythonConfig config;
  config.keys = {{"model_type", "gpt2", "", ""},
                 {"n_layer", options.integer("layers"), 12, "layers"},
                 {"n_head", options.integer("heads"), 12, "heads"},
                 {"n_embd", options.integer("dim"), 768, "dim"},
                 {"layer_norm_epsilon", options.real("norm_eps"), 1e-5, "norm_eps"},
                 {"activation_function", activation_of(options), "gelu_new", "activation"},
                 {"tie_word_embeddings", options.boolean("tied"), true, "tied"},
                 {"scale_attn_weights", true, true, ""},
                 {"scale_attn_by_inverse_layer_idx", false, false, ""}};
  config.rest = {{"architectures", {"GPT2LMHeadModel"}},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr},
                 {"attn_pdrop", options.real("attention_dropout")},
                 {"embd_pdrop", dropout},
                 {"resid_pdrop", dropout}};
  config.sizes = {{"vocab_size", token_embedding, 0},
                  {"n_positions", "embedding.positions", 0},
                  {"n_inner", "blocks.0.up.weight", 0}};
  return config;
}

WeightNames gpt_names(const Options& options) {
  WeightNames names;
  names.prefix = "transformer.";
  auto& table = names.table;
  const std::string ours = "blocks.#.", theirs = names.prefix + "h.#.";
  table = {{token_embedding, {names.prefix + "wte.weight"}}, {"embedding.positions", {names.prefix + "wpe.weight"}}};
  add_layer(table, ours + "attention_norm", theirs + "ln_1");
  add_layer(table, ours + "qkv", theirs + "attn.c_attn", true);
  add_layer(table, ours + "projection", theirs + "attn.c_proj", true);
  add_layer(table, ours + "mlp_norm", theirs + "ln_2");
  add_layer(table, ours + "up", theirs + "mlp.c_fc", true);
  add_layer(table, ours + "down", theirs + "mlp.c_proj", true);
  add_layer(table, "output.norm", names.prefix + "ln_f");
  table.push_back({"output.linear.weight", {"lm_head.weight"}});
  names.ignored = {"h.#.attn.bias", "h.#.attn.masked_bias"};  // the causal mask, in old files
  if (options.boolean("tied")) names.ignored.emplace_back("lm_head.weight");
  if (options.text("positions") != "learned")
    names.no_config = "GPT-2 has learned positions, but model.positions is " + options.text("positions");
  else if (!options.boolean("bias"))
    names.no_config = "GPT-2 has biases, but model.bias is false";
  else
    names.config = gpt2_config(options);
  return names;
}

PythonConfig llama_config(const Options& options) {
  const int64_t heads = options.integer("heads"), head_size = options.integer("dim") / heads;
  const double base = options.real("rotary_base");
  PythonConfig config;
  config.keys = {{"model_type", "llama", "", ""},
                 {"num_hidden_layers", options.integer("layers"), 32, "layers"},
                 {"num_attention_heads", heads, 32, "heads"},
                 {"num_key_value_heads", llama_key_heads(options), heads, "kv_heads"},
                 {"head_dim", head_size, head_size, ""},
                 {"hidden_size", options.integer("dim"), 4096, "dim"},
                 {"rms_norm_eps", options.real("norm_eps"), 1e-6, "norm_eps"},
                 {"rope_parameters.rope_theta|rope_theta", base, 10000.0, "rotary_base"},
                 {"rope_parameters.rope_type|rope_scaling.rope_type|rope_scaling.type", "default", "default", ""},
                 {"tie_word_embeddings", options.boolean("tied"), false, "tied"},
                 {"hidden_act", "silu", "silu", ""},
                 {"attention_bias", false, false, ""},
                 {"mlp_bias", false, false, ""}};
  config.rest = {{"architectures", {"LlamaForCausalLM"}},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr},
                 {"attention_dropout", options.real("attention_dropout")},
                 {"rope_theta", base}};
  config.sizes = {{"vocab_size", token_embedding, 0}, {"intermediate_size", "blocks.0.down.weight", 1}};
  config.length_key = "max_position_embeddings";
  return config;
}

WeightNames llama_names(const Options& options) {
  WeightNames names;
  names.prefix = "model.";
  const std::string ours = "blocks.#.", theirs = names.prefix + "layers.#.", attention = theirs + "self_attn.";
  const int64_t keys = llama_key_heads(options), queries = options.integer("heads") / keys;
  names.table = {{token_embedding, {names.prefix + "embed_tokens.weight"}},
                 {ours + "attention_norm.weight", {theirs + "input_layernorm.weight"}},
                 // For each head of keys: the heads of queries that it serves, itself, and its head of values.
                 {ours + "qkv.weight",
                  {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"},
                  false,
                  {queries, 1, 1},
                  keys},
                 {ours + "projection.weight", {attention + "o_proj.weight"}},
                 {ours + "mlp_norm.weight", {theirs + "post_attention_layernorm.weight"}},
                 {ours + "gate_up.weight", {theirs + "mlp.gate_proj.weight", theirs + "mlp.up_proj.weight"}},
                 {ours + "down.weight", {theirs + "mlp.down_proj.weight"}},
                 {"output.norm.weight", {names.prefix + "norm.weight"}},
                 {"output.linear.weight", {"lm_head.weight"}}};
  names.ignored = {"layers.#.self_attn.rotary_emb.inv_freq"};  // in old files
  if (options.boolean("tied")) names.ignored.emplace_back("lm_head.weight");
  names.config = llama_config(options);
  return names;
}

// --- resnet ---

WeightNames resnet_names(const Options& options) {
  WeightNames names;
  auto& table = names.table;
  const auto convolution = [&table](const std::string& ours, const std::string& conv, const std::string& norm) {
    table.push_back({ours + "_conv.weight", {conv + ".weight"}});
    add_norm(table, ours + "_norm", norm);
  };
  convolution("stem.first", "conv1", "bn1");
  int64_t block = 0, stage = 0;
  for (const int64_t blocks : resnet_stages(options)) {
    ++stage;
    for (int64_t i = 0; i < blocks; ++i, ++block) {
      const std::string ours = str("blocks.", block, "."), theirs = str("layer", stage, ".", i, ".");
      convolution(ours + "first", theirs + "conv1", theirs + "bn1");
      convolution(ours + "second", theirs + "conv2", theirs + "bn2");
      convolution(ours + "third", theirs + "conv3", theirs + "bn3");
      convolution(ours + "shortcut", theirs + "downsample.0", theirs + "downsample.1");
    }
  }
  add_layer(table, "output.linear", "fc");
  // PyTorch counts batches in each batch norm; with a fixed momentum the count has no effect.
  names.ignored = {"bn1.num_batches_tracked"};
  for (int64_t layer = 1; layer <= stage; ++layer)
    for (const char* norm : {"bn1", "bn2", "bn3", "downsample.#"})
      names.ignored.push_back(str("layer", layer, ".#.", norm, ".num_batches_tracked"));
  names.no_config = transformers_only;
  return names;
}

// --- Models with a separate module in docs/python.md ---

WeightNames mlp_names() {
  WeightNames names;
  add_layer(names.table, "hidden.#.linear", "hidden.#");
  add_layer(names.table, "output.linear", "output");
  names.no_config = transformers_only;
  return names;
}

WeightNames convnet_names() {
  WeightNames names;
  add_layer(names.table, "conv.#.conv", "conv.#");
  add_norm(names.table, "conv.#.norm", "norm.#");
  add_layer(names.table, "hidden.linear", "hidden");
  add_layer(names.table, "output.linear", "output");
  names.ignored = {"norm.#.num_batches_tracked"};
  names.no_config = transformers_only;
  return names;
}

WeightNames ncf_names() {
  WeightNames names;
  names.table = {{"embedding.user.weight", {"user.weight"}}, {"embedding.item.weight", {"item.weight"}}};
  add_layer(names.table, "hidden.0.row", "first_row");
  names.table.push_back({"hidden.0.item.weight", {"first_item.weight"}});
  add_layer(names.table, "hidden.#.linear", "hidden.#");
  add_layer(names.table, "output.linear", "output");
  names.no_config = transformers_only;
  return names;
}

}  // namespace

WeightNames weight_names(const std::string& model, const Options& options) {
  if (model == "gpt") return gpt_names(options);
  if (model == "llama") return llama_names(options);
  if (model == "resnet") return resnet_names(options);
  if (model == "mlp") return mlp_names();
  if (model == "convnet") return convnet_names();
  if (model == "ncf") return ncf_names();
  WeightNames names;  // names of a plugin: the canonical ones
  names.no_config = transformers_only;
  return names;
}

}  // namespace convoy
