// Layers: what models ask for their layers, losses and metrics; the strategy supplies the implementation.
//
// Role: the same model becomes plain, stacked (K ensemble members in one product, activations [K, B, …]), sharded (a
// tensor group behind linear, embedding and cross-entropy) or gathered block by block without knowing it. Models
// therefore count dimensions from the end, and never see a group.
// Names: a layer's canonical name is its scope plus the name it is asked for by ("mlp.0" + "hidden" → "mlp.0.hidden"); its
// tensors append ".weight", ".bias". Initial values and random draws are functions of that name and the global index.
// Threads: one Layers per rank; used by that rank's thread (and its backward).
// Failure: ConfigError-like Error(config) with the reason when a size does not divide or a layer is not supported by the
// strategy.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

struct LayerModule;  // core/model.h
using Layer = std::shared_ptr<LayerModule>;

// How initial values are drawn; fan-in is that of the global shape.
struct Init {
  enum class Kind { zeros, ones, normal, uniform, kaiming_uniform, xavier_uniform } kind = Kind::kaiming_uniform;
  double a = 0;  // mean or lower bound
  double b =
      1;  // standard deviation or upper bound; for kaiming_uniform `a` is the negative slope (√5: torch's default)
};

struct LinearOptions {
  bool bias = true;
  Init weight{Init::Kind::kaiming_uniform, 2.23606797749979, 0};
  std::optional<Init> bias_init;  // default: uniform(±1/√fan_in), as torch
  // Hints for a tensor group; without meaning elsewhere.
  enum class Cut { none, column, row } cut = Cut::none;
  int64_t parts = 1;    // fused products cut part by part (3 for QKV)
  bool gather = false;  // a column-cut output is gathered at once
  std::string tied_to;  // canonical name of a tensor that serves as weight; "" for one of its own
};
struct EmbeddingOptions {
  Init weight{Init::Kind::normal, 0, 1};
  enum class Rows { dense, rows, automatic } rows = Rows::dense;  // gradient form: whole table or (rows, values)
  int64_t lookups = 1;  // ids of one row of a batch at most: what `automatic` is decided by
};
struct Conv2dOptions {
  int64_t stride = 1, padding = 0, groups = 1;
  bool bias = true;
  Init weight{Init::Kind::kaiming_uniform, 2.23606797749979, 0};
};

// A tensor block asked for by itself (scale, positions). Its value is valid until the block's forward returns.
struct ParameterHandle {
  virtual ~ParameterHandle() = default;
  virtual const at::Tensor& get() = 0;
};

class Layers {
 public:
  virtual ~Layers() = default;

  virtual std::shared_ptr<Layers> scope(const std::string& name) = 0;  // names below get "name." in front
  virtual std::string name(const std::string& layer) const = 0;        // canonical name of a layer asked for here

  // input [.., B, in] → [.., B, out].
  virtual Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options = {}) = 0;
  // ids [.., B, …] int64 → [.., B, …, dim].
  virtual Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options = {}) = 0;
  // input [.., B, C, H, W].
  virtual Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel,
                       const Conv2dOptions& options = {}) = 0;
  virtual Layer layer_norm(const std::string& name, int64_t dim, double eps = 1e-5) = 0;
  virtual Layer batch_norm(const std::string& name, int64_t channels, double eps = 1e-5, double momentum = 0.1) = 0;
  // Zeroes with probability p in training. What is drawn depends on (seed, step, name, global row, element in the row).
  virtual Layer dropout(const std::string& name, double p) = 0;
  virtual std::unique_ptr<ParameterHandle> parameter(const std::string& name, at::IntArrayRef shape,
                                                     const Init& init) = 0;

  // Per row and position, not reduced: logits [.., B, …, C], target [.., B, …] int64 → [.., B, …].
  virtual at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) = 0;
  // Rank of the target among the logits, 0 best, ties against it: [.., B, …, C], [.., B, …] → int64 [.., B, …].
  virtual at::Tensor target_rank(const at::Tensor& logits, const at::Tensor& target) = 0;
  // The whole of an output that may be cut; itself elsewhere. For losses of a model's own.
  virtual at::Tensor gathered(const at::Tensor& output) = 0;

  virtual at::Device device() const = 0;
  virtual at::ScalarType dtype() const = 0;
  virtual int64_t members() const = 0;  // leading dimension of activations; 0: none
};

}  // namespace convoy
