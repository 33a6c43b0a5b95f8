// Layers without tensors that count parameters: for models too large to create in a test.
#pragma once
#include <map>

#include "core/base/error.h"
#include "core/layers.h"
#include "core/model.h"

namespace convoy {

class CountingLayers : public Layers {
 public:
  using Counts = std::map<std::string, int64_t>;  // by canonical name
  explicit CountingLayers(std::shared_ptr<Counts> counts = std::make_shared<Counts>(), std::string prefix = "")
      : counts_(std::move(counts)), prefix_(std::move(prefix)) {}

  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<CountingLayers>(counts_, prefix_ + name + ".");
  }
  std::string name(const std::string& layer) const override { return prefix_ + layer; }
  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override {
    return add(name, (options.tied_to.empty() ? in * out : 0) + (options.bias ? out : 0));
  }
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions&) override {
    return add(name, rows * dim);
  }
  Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel,
               const Conv2dOptions& options) override {
    return add(name, in / options.groups * out * kernel * kernel + (options.bias ? out : 0));
  }
  Layer layer_norm(const std::string& name, int64_t dim, double) override { return add(name, 2 * dim); }
  Layer rms_norm(const std::string& name, int64_t dim, double) override { return add(name, dim); }
  Layer batch_norm(const std::string& name, int64_t channels, double, double) override {
    return add(name, 2 * channels);
  }
  Layer dropout(const std::string& name, double) override { return add(name, 0); }
  std::unique_ptr<ParameterHandle> parameter(const std::string& name, at::IntArrayRef shape, const Init&) override {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    add(name, count);
    return nullptr;
  }
  at::Tensor cross_entropy(const at::Tensor&, const at::Tensor&) override { return {}; }
  at::Tensor target_rank(const at::Tensor&, const at::Tensor&) override { return {}; }
  at::Tensor gathered(const at::Tensor& output) override { return output; }
  at::Device device() const override { return at::kCPU; }
  at::ScalarType dtype() const override { return at::kFloat; }
  int64_t members() const override { return 0; }

  const Counts& counts() const { return *counts_; }
  int64_t total() const {
    int64_t sum = 0;
    for (const auto& entry : *counts_) sum += entry.second;
    return sum;
  }

 private:
  struct Nothing : LayerModule {
    at::Tensor forward(const at::Tensor& input) override { return input; }
  };
  Layer add(const std::string& name, int64_t parameters) {
    CONVOY_CHECK(counts_->emplace(prefix_ + name, parameters).second, "two layers are called ", prefix_, name);
    return std::make_shared<Nothing>();
  }

  std::shared_ptr<Counts> counts_;
  std::string prefix_;
};

}  // namespace convoy
