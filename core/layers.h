// Layers: builds the layers, losses and metrics of models. The strategy supplies the implementation.
//
// The strategy decides if layers are whole, stacked, sharded, or gathered block by block. Stacked: K ensemble members
// in one product, activations [K, B, …]. Sharded: a tensor group divides linear, embedding and cross-entropy. The model
// does not know the strategy. So it counts dimensions from the end and uses no communicator.
// Names: the canonical name of a layer is its scope and its name ("mlp.0" + "hidden" → "mlp.0.hidden"). Its tensors
// append ".weight" and ".bias". Initial values and random draws are functions of that name and the global index.
// Threads: one Layers per rank, used by the thread of that rank (and its backward pass).
// Errors: Error(config) with the reason if a size does not divide or the strategy does not support a layer.
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

// Distribution of initial values. Fan-in is computed from the global shape.
struct Init {
  enum class Kind { zeros, ones, normal, uniform, kaiming_uniform, xavier_uniform } kind = Kind::kaiming_uniform;
  double a = 0;  // mean or lower bound
  // Standard deviation or upper bound. For kaiming_uniform, `a` is the negative slope (√5: the default of torch).
  double b = 1;
};

struct LinearOptions {
  bool bias = true;
  Init weight{Init::Kind::kaiming_uniform, 2.23606797749979, 0};
  std::optional<Init> bias_init;  // default: uniform(±1/√fan_in), as in torch
  // Hints for a tensor group; ignored elsewhere.
  enum class Cut { none, column, row } cut = Cut::none;
  int64_t parts = 1;       // number of fused products, each sharded separately (3 for QKV)
  int64_t row_inputs = 0;  // column: inputs of the row-parallel layer that ends the region; 0: out ÷ parts
  bool gather = false;     // gather a column-parallel output at once
  std::string tied_to;     // canonical name of the tensor to use as weight; "": a new one
};
struct EmbeddingOptions {
  Init weight{Init::Kind::normal, 0, 1};
  // Form of the gradient. dense: of the whole table; rows: touched rows with values; automatic: the strategy decides.
  enum class Rows { dense, rows, automatic } rows = Rows::dense;
  int64_t lookups = 1;  // most ids per row of a batch; `automatic` uses it to decide
};
struct Conv2dOptions {
  int64_t stride = 1, padding = 0, groups = 1;
  bool bias = true;
  Init weight{Init::Kind::kaiming_uniform, 2.23606797749979, 0};
};

// A parameter without a layer (scale, positions). Its value is valid until the forward of the block returns.
struct ParameterHandle {
  virtual ~ParameterHandle() = default;
  virtual const at::Tensor& get() = 0;
};

class Layers {
 public:
  virtual ~Layers() = default;

  virtual std::shared_ptr<Layers> scope(const std::string& name) = 0;  // names below start with "name."
  virtual std::string name(const std::string& layer) const = 0;        // canonical name of a layer built here

  // input [.., B, in] → [.., B, out].
  virtual Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options = {}) = 0;
  // ids [.., B, …] int64 → [.., B, …, dim].
  virtual Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options = {}) = 0;
  // input [.., B, C, H, W].
  virtual Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel,
                       const Conv2dOptions& options = {}) = 0;
  virtual Layer layer_norm(const std::string& name, int64_t dim, double eps = 1e-5) = 0;
  // x / √(mean of x² + eps) · weight over the last dimension; no bias (Zhang and Sennrich, 2019).
  virtual Layer rms_norm(const std::string& name, int64_t dim, double eps = 1e-5) = 0;
  virtual Layer batch_norm(const std::string& name, int64_t channels, double eps = 1e-5, double momentum = 0.1) = 0;
  // Sets elements to zero with probability p in training. Draws depend on (seed, step, name, global row, element in
  // the row).
  virtual Layer dropout(const std::string& name, double p) = 0;
  virtual std::unique_ptr<ParameterHandle> parameter(const std::string& name, at::IntArrayRef shape,
                                                     const Init& init) = 0;

  // Not reduced: logits [.., B, …, C], target [.., B, …] int64 → [.., B, …].
  virtual at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) = 0;
  // Rank of the target among the logits; 0 is best, ties count against it.
  // Shapes: [.., B, …, C], [.., B, …] → int64 [.., B, …].
  virtual at::Tensor target_rank(const at::Tensor& logits, const at::Tensor& target) = 0;
  // Gathers an output that may be sharded; returns other tensors unchanged. For losses inside a model.
  virtual at::Tensor gathered(const at::Tensor& output) = 0;

  virtual at::Device device() const = 0;
  virtual at::ScalarType dtype() const = 0;
  virtual int64_t members() const = 0;  // leading dimension of activations; 0: none
};

}  // namespace convoy
