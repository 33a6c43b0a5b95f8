// As make_nccl.h.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "core/device_graph.h"

namespace convoy {

using MakeGraph = void(at::Device device, std::unique_ptr<DeviceGraph>& made);
inline constexpr char make_graph_symbol[] = "convoy_make_graph";

}  // namespace convoy

extern "C" convoy::MakeGraph convoy_make_graph;
