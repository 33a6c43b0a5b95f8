// Layers whose row tables are dealt out to the ranks along the axis `data` (row_blocks.h); else PlainLayers.
#pragma once
#include <functional>
#include <memory>

#include "core/context.h"
#include "strategies/parts/plain_layers.h"

namespace convoy {

// For PartRequest::layers: null where the model does not ask for it, or there is one rank.
std::function<std::shared_ptr<Layers>(std::shared_ptr<LayerStore>)> row_share_layers(const Context& context);

}  // namespace convoy
