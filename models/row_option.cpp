#include "models/row_option.h"

namespace convoy {

EmbeddingOptions::Rows rows_of(const Options& model) {
  if (!model.has("rows")) return EmbeddingOptions::Rows::dense;
  if (model.is_auto("rows")) return EmbeddingOptions::Rows::automatic;
  return model.boolean("rows") ? EmbeddingOptions::Rows::rows : EmbeddingOptions::Rows::dense;
}

}  // namespace convoy
