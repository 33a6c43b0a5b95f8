// convnet: a small convolutional network.
//
//   images [.., B, C, H, W] → (convolution, batch norm, relu, 2 × 2 maximum, dropout) … → hidden → classes [.., B, N]
//
// Blocks: "conv.0", …; "hidden" where there is one; "output". Needs the fields "features" [C, H, W] and "target", a class.
#pragma once
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "core/options.h"

namespace convoy {
ModelPtr make_convnet(const Options& options, const Schema& schema);
}  // namespace convoy
