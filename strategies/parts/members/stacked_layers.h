// StackedLayers: layers that hold K members of an ensemble and run them as one batched product; activations are [K, B, …].
//
// Parameters are [K, …] tensors, member first, without memory at first: a StackedStorage gives it to them, with the values
// that each member would have by itself (parts/init.h, by its own seed). Random draws are keyed likewise. Row k of a tensor
// is that of member k, under the name that it has in a training by itself.
// Linear products write their gradients to Parameter::gradient (parts/members/stacked_linear.h). Convolutions and batch norms run
// one member after another, or grouped: one convolution of K times the channels.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/layers.h"
#include "strategies/parts/plain_layers.h"

namespace convoy {

struct StackedParameter {
  ParameterPtr parameter;      // value and gradient [K, …]
  std::vector<int64_t> shape;  // of one member's
  Init init;
};

// What the layers of one stack share.
struct Stack {
  std::vector<uint64_t> seeds;  // of its members
  bool grouped = false;         // convolutions and batch norms
  bool convolves = false;       // a layer is a convolution
  std::vector<StackedParameter> parameters;
  int64_t members() const { return static_cast<int64_t>(seeds.size()); }
};

class StackedLayers : public Layers {
 public:
  StackedLayers(std::shared_ptr<LayerStore> store, std::shared_ptr<Stack> stack, std::string prefix = "");

  std::shared_ptr<Layers> scope(const std::string& name) override;
  std::string name(const std::string& layer) const override { return prefix_ + layer; }

  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override;
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override;
  Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel, const Conv2dOptions& options) override;
  Layer layer_norm(const std::string& name, int64_t dim, double eps) override;
  Layer batch_norm(const std::string& name, int64_t channels, double eps, double momentum) override;
  Layer dropout(const std::string& name, double p) override;
  // Its value is [K, …shape].
  std::unique_ptr<ParameterHandle> parameter(const std::string& name, at::IntArrayRef shape, const Init& init) override;

  at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) override;
  at::Tensor target_rank(const at::Tensor& logits, const at::Tensor& target) override;
  at::Tensor gathered(const at::Tensor& output) override { return output; }

  at::Device device() const override { return store_->device; }
  at::ScalarType dtype() const override { return store_->dtype; }
  int64_t members() const override { return stack_->members(); }

 private:
  ParameterPtr make(const std::string& name, std::vector<int64_t> shape, const Init& init);
  ParameterPtr tied(const std::string& name, const std::string& to, std::vector<int64_t> shape);
  at::Tensor make_buffer(const std::string& name, int64_t size, double value);

  std::shared_ptr<LayerStore> store_;
  std::shared_ptr<Stack> stack_;
  std::string prefix_;
};

}  // namespace convoy
