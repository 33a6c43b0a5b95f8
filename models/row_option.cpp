#include "models/row_option.h"

namespace convoy {

EmbeddingOptions::Rows rows_of(const Options& model) {
  if (!model.has("rows")) return EmbeddingOptions::Rows::dense;
  if (model.is_auto("rows")) return EmbeddingOptions::Rows::automatic;
  // Sharded ones are row tables to a model; who holds their rows is the strategy's affair.
  return model.at("rows") == "sharded" || model.at("rows") == true ? EmbeddingOptions::Rows::rows
                                                                   : EmbeddingOptions::Rows::dense;
}

}  // namespace convoy
