// The option `rows` of models with embeddings, and what it asks of Layers.
#pragma once
#include "core/layers.h"
#include "core/options.h"

namespace convoy {

EmbeddingOptions::Rows rows_of(const Options& model);

}  // namespace convoy
