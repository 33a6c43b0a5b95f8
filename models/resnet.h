// resnet (He et al., "Deep residual learning for image recognition", CVPR 2016).
//
//   images [.., B, C, H, W] → stem → residual blocks → mean over the image → classes [.., B, N]
//
// cifar: depth 6n + 2, three stages of n blocks with 16, 32 and 64 channels; where the size changes, the shortcut takes
// every second pixel and fills new channels with zeros (the paper's option A). imagenet: four stages from 64 channels,
// blocks of two convolutions (18, 34) or bottlenecks of three (50), shortcuts projected by 1 × 1 convolutions.
// Blocks: "stem"; "blocks.0", …, one residual block each; "output". Needs "features" [C, H, W] and "target", a class.
#pragma once
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "core/options.h"

namespace convoy {
ModelPtr make_resnet(const Options& options, const Schema& schema);
}  // namespace convoy
