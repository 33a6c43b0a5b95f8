// Builds a model's blocks with default layers and runs them.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/model.h"
#include "strategies/common/layers/default_layers.h"

namespace convoy {

struct Plain {
  explicit Plain(at::ScalarType dtype = at::kFloat) { store->dtype = dtype; }
  std::shared_ptr<LayerStore> store = std::make_shared<LayerStore>();
  DefaultLayers layers{store};
  const at::Tensor& value(const std::string& name) const { return store->by_name.at(name)->value; }
};

inline std::vector<BlockPtr> blocks_of(const Model& model, Layers& layers) {
  std::vector<BlockPtr> blocks;
  for (int64_t i = 0; i < model.blocks(); ++i) blocks.push_back(model.block(i, *layers.scope(model.block_name(i))));
  return blocks;
}

inline TensorList forward(const Model& model, const std::vector<BlockPtr>& blocks, const Batch& batch) {
  TensorList tensors = model.inputs(batch);
  for (const auto& block : blocks) tensors = block->forward(tensors);
  return tensors;
}

}  // namespace convoy
