// A model that forwards every call to another one: the base of models that watch or change a few calls.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/model_interface.h"

namespace convoy {

class WrappedModel : public Model {
 public:
  explicit WrappedModel(ModelPtr inner) : inner_(std::move(inner)) {}

  int64_t blocks() const override { return inner_->blocks(); }
  std::string block_name(int64_t index) const override { return inner_->block_name(index); }
  BlockPtr block(int64_t index, Layers& layers) const override { return inner_->block(index, layers); }
  TensorList inputs(const Batch& batch) const override { return inner_->inputs(batch); }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    return inner_->examples(outputs, batch);
  }
  std::string default_loss() const override { return inner_->default_loss(); }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const override {
    return inner_->metrics(outputs, batch, layers);
  }

 protected:
  const Model& wrapped() const { return *inner_; }

 private:
  ModelPtr inner_;
};

}  // namespace convoy
