// The models' options. For a new model add an entry here, and its class and a line in registry.cpp.

#include "models/catalogue/catalogue.h"

#include "core/base/describe.h"

namespace convoy {

namespace {

// For models with embeddings.
Option rows_option() {
  return describe::any("rows", "true, false, sharded or auto",
                       "sparse embeddings: a step gathers, exchanges and updates only the rows that it looks up, "
                       "with the result of dense embeddings; sharded: each rank of ddp keeps and updates a shard of "
                       "the rows; auto: sparse for tables of at least 65,536 rows, if one update of all ranks looks "
                       "up at most a quarter of them",
                       "auto");
}

// Throws ConfigError unless it is true, false, sharded or auto.
void check_rows_option(const Options& options) {
  if (!options.has("rows")) return;
  const Json& rows = options.at("rows");
  if (!rows.is_boolean() && rows != "sharded" && rows != "auto")
    options.fail("rows", "is ", rows.dump(), ", must be true, false, sharded or auto");
}

void check_convnet(const Options& options) {
  if (options.integers("channels").empty()) options.fail("channels", "needs a convolution; model mlp has none");
  const int64_t kernel = options.integer("kernel");
  if (kernel % 2 == 0) options.fail("kernel", "is ", kernel, "; an odd one keeps the image's size");
}

// Checks that the heads divide dim; returns the features of a head.
int64_t check_heads(const Options& options) {
  const int64_t dim = options.integer("dim"), heads = options.integer("heads");
  if (dim % heads != 0)
    options.fail("dim", "is ", dim, ", which ", heads, " heads do not divide; try ", (dim / heads + 1) * heads);
  return dim / heads;
}

void check_gpt(const Options& options) {
  check_rows_option(options);
  const int64_t head_size = check_heads(options);
  const bool rotary = options.text("positions") == "rotary";
  if (rotary && head_size % 2 != 0)
    options.fail("positions", "rotary turns features in pairs, and dim ÷ heads is ", head_size,
                 "; make it even, or use learned positions");
  if (rotary && options.has("context"))
    refuse_without_effect(options, "context",
                          "needs learned positions, but positions are rotary; leave one of them out",
                          {options.location("positions")});
  if (options.has("mlp_dim"))
    refuse_without_effect(options, "mlp_ratio", "and mlp_dim both set the size of a block's MLP; leave one of them out",
                          {options.location("mlp_dim")});
  if (!rotary)
    refuse_without_effect(options, "rotary_base",
                          "needs positions: rotary, but positions are learned; leave one of them out",
                          {options.location("positions")});
}

void check_llama(const Options& options) {
  check_rows_option(options);
  const int64_t head_size = check_heads(options), heads = options.integer("heads");
  if (head_size % 2 != 0)
    options.fail("dim", "÷ heads is ", head_size, ", and rotary positions turn features in pairs; make it even");
  if (const int64_t key_heads = llama_key_heads(options); heads % key_heads != 0)
    options.fail("kv_heads", "is ", key_heads, ", which does not divide the ", heads,
                 " heads; each key and value serves equally many queries");
}

void check_mlp(const Options& options) {
  if (!options.integers("hidden").empty()) return;
  const std::string reason = "needs a hidden layer, but hidden is []; leave it out";
  refuse_without_effect(options, "activation", reason, {options.location("hidden")});
  if (options.real("dropout") > 0) refuse_without_effect(options, "dropout", reason, {options.location("hidden")});
}

void check_ncf(const Options& options) {
  check_rows_option(options);
  const int64_t mlp = options.integer("mlp_dim");
  if (options.integer("gmf_dim") == 0 && mlp == 0)
    options.fail("gmf_dim", "and mlp_dim are both 0: nothing is left to learn");
  const bool layers = !options.integers("hidden").empty();
  if (mlp > 0 && !layers) options.fail("hidden", "needs a layer, or set mlp_dim: 0");
  if (mlp > 0) return;
  const std::string reason = "needs the MLP, but mlp_dim: 0 leaves it out; leave this key out too, or raise mlp_dim";
  if (layers) refuse_without_effect(options, "hidden", reason, {options.location("mlp_dim")});
  if (options.real("dropout") > 0) refuse_without_effect(options, "dropout", reason, {options.location("mlp_dim")});
}

void check_resnet(const Options& options) {
  if (!options.has("depth")) return;
  const int64_t depth = options.integer("depth");
  const bool large = options.text("shape") == "imagenet";
  if (large && depth != 18 && depth != 34 && depth != 50)
    options.fail("depth", depth, " is none of shape imagenet: take 18, 34 or 50, or shape: cifar");
  if (!large && depth != 20 && depth != 32 && depth != 56)
    options.fail("depth", depth, " is none of shape cifar: take 20, 32 or 56, or shape: imagenet");
}

}  // namespace

const std::vector<Entry>& model_catalogue() {
  static const std::vector<Entry> entries{
      convnet_entry(), gpt_entry(), llama_entry(), mlp_entry(), ncf_entry(), resnet_entry(),
  };
  return entries;
}

// --- convnet ---

Entry convnet_entry() {
  return {"convnet",
          "convolutions that halve the image, then fully connected layers; predicts classes of images",
          {describe::list("channels", "output channels of each convolution; each convolution halves height and width",
                          describe::integer("", "channels").between(1, 1 << 16), Json::array({32, 64})),
           describe::integer("kernel", "kernel size of the convolutions; odd", 3).between(1, 31),
           describe::boolean("batch_norm", "batch norm after each convolution", true),
           describe::integer("hidden", "size of the hidden layer before the output; 0: no hidden layer", 128)
               .between(0, 1 << 20),
           describe::real("dropout", "dropout probability after each convolution and after the hidden layer", 0.0)
               .between(0, 0.99)},
          check_convnet};
}

// --- gpt and llama ---

namespace {

// Options that both have.
std::vector<Option> transformer_options(double rotary_base, const std::string& rotary_help, bool tied) {
  return {describe::integer("layers", "number of transformer blocks", 4).between(1, 10000),
          describe::integer("heads", "number of attention heads; must divide dim", 8).between(1, 1 << 20),
          describe::integer("dim", "embedding dimension: features of each token's activation", 256).between(1, 1 << 20),
          describe::real("rotary_base", rotary_help, rotary_base).above(1),
          describe::boolean("tied", "the output shares the weight of the embedding, which is then dense", tied),
          rows_option(),
          describe::real("dropout", "dropout probability on embeddings and residuals", 0.0).between(0, 0.99),
          describe::real("attention_dropout",
                         "dropout probability on attention weights; above 0 the fused kernel is not used", 0.0)
              .between(0, 0.99),
          describe::real("norm_eps", "epsilon of the norms", 1e-5).above(0)};
}

}  // namespace

int64_t gpt_mlp_dim(const Options& options) {
  return options.has("mlp_dim") ? options.integer("mlp_dim") : options.integer("mlp_ratio") * options.integer("dim");
}

Entry gpt_entry() {
  std::vector<Option> options{
      describe::integer("mlp_ratio", "hidden size of a block's MLP, as a multiple of dim", 4).between(1, 1024),
      describe::integer("mlp_dim", "hidden size of a block's MLP; replaces mlp_ratio")
          .between(1, 1 << 24)
          .may_be_null(),
      describe::choice("activation",
                       "activation function of the MLP; gelu is exact, gelu_tanh its approximation in GPT-2",
                       {"gelu", "gelu_tanh", "relu", "silu"}, "gelu"),
      describe::choice("positions",
                       "learned: a trained vector per position; rotary: queries and keys rotated by their position",
                       {"learned", "rotary"}, "learned"),
      describe::integer("context", "learned: number of positions; by default the data's longest sequence")
          .between(1, 1 << 24)
          .in("tokens")
          .may_be_null(),
      describe::boolean("bias", "linear layers of the blocks have a bias", true)};
  for (Option& option :
       transformer_options(10000.0, "rotary: base of the rotation angles (longest wavelength in positions ÷ 2π)", true))
    options.push_back(std::move(option));
  return {"gpt",
          "decoder-only transformer with layer norm (GPT-2 with activation: gelu_tanh): predicts each token of a "
          "sequence from those before it",
          std::move(options), check_gpt};
}

int64_t llama_mlp_dim(const Options& options) {
  if (options.has("mlp_dim")) return options.integer("mlp_dim");
  constexpr int64_t multiple = 64;
  return (8 * options.integer("dim") / 3 + multiple - 1) / multiple * multiple;
}

int64_t llama_key_heads(const Options& options) {
  return options.integer(options.has("kv_heads") ? "kv_heads" : "heads");
}

Entry llama_entry() {
  std::vector<Option> options{
      describe::integer("kv_heads", "heads of keys and values; each serves heads ÷ kv_heads queries; by default heads")
          .between(1, 1 << 20)
          .may_be_null(),
      describe::integer("mlp_dim", "hidden size of a block's MLP; by default 8/3 of dim, rounded up to 64")
          .between(1, 1 << 24)
          .may_be_null()};
  for (Option& option : transformer_options(
           10000.0, "base of the rotation angles (longest wavelength in positions ÷ 2π); Llama 3: 500000", false))
    options.push_back(std::move(option));
  return {"llama",
          "decoder-only transformer with RMS norm, rotary positions, SwiGLU and grouped-query attention: predicts each "
          "token of a sequence from those before it",
          std::move(options), check_llama};
}

// --- mlp ---

Entry mlp_entry() {
  return {"mlp",
          "fully connected layers over flattened features; predicts classes or numbers, depending on the data set",
          {describe::list("hidden", "sizes of the hidden layers", describe::integer("", "a size").between(1, 1 << 24),
                          Json::array({256, 128})),
           describe::choice("activation", "activation function after each hidden layer",
                            {"relu", "gelu", "silu", "tanh"}, "relu"),
           describe::real("dropout", "dropout probability after each hidden layer", 0.0).between(0, 0.99),
           describe::real("output_mean",
                          "added to predicted numbers: the mean of the target, so that training starts from it", 0.0),
           describe::real("output_deviation",
                          "factor of predicted numbers: the standard deviation of the target, so that a learning rate "
                          "fits targets of any size",
                          1.0)
               .above(0)},
          check_mlp};
}

// --- ncf ---

Entry ncf_entry() {
  return {"ncf",
          "NeuMF: generalised matrix factorisation and an MLP over user, item and context, for implicit feedback",
          {describe::integer("gmf_dim",
                             "embedding size of the factorisation, per user and per item; 0: no factorisation", 8)
               .between(0, 1 << 20),
           describe::integer("mlp_dim", "embedding size of the MLP, per user and per item; 0: no MLP", 32)
               .between(0, 1 << 20),
           describe::list("hidden", "sizes of the MLP's layers", describe::integer("", "a size").between(1, 1 << 24),
                          Json::array({32, 16, 8})),
           describe::real("dropout", "dropout probability after each layer of the MLP", 0.0).between(0, 0.99),
           rows_option(),
           describe::list("top_k", "values of k for the ranking metrics",
                          describe::integer("", "k").between(1, 2147483647), Json::array({10})),
           describe::list("metrics", "ranking metrics, each for each k; coverage and gini need data.ranking: full",
                          describe::choice("", "a metric",
                                           {"hr", "ndcg", "recall", "precision", "mrr", "map", "coverage", "gini"}),
                          Json::array({"hr", "ndcg"}))},
          check_ncf};
}

// --- resnet ---

Entry resnet_entry() {
  return {"resnet",
          "residual network for small (CIFAR) or large (ImageNet) images",
          {describe::choice("shape", "architecture for images of about 32 × 32 (cifar) or 224 × 224 (imagenet)",
                            {"cifar", "imagenet"}, "cifar"),
           describe::integer("depth",
                             "layers with weights; cifar: 20 (default), 32 or 56; imagenet: 18 (default), 34 or 50")
               .between(1, 10000)
               .may_be_null()},
          check_resnet};
}

}  // namespace convoy
