// The descriptions that the catalogue lists, with what they say of contradicting options. Without LibTorch.
#pragma once
#include "core/options.h"

namespace convoy {

Entry convnet_entry();
Entry gpt_entry();
Entry mlp_entry();
Entry ncf_entry();
Entry resnet_entry();

Option rows_option();  // of models with embeddings

}  // namespace convoy
