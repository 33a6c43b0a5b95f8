// ncf: NeuMF (He et al., "Neural collaborative filtering", WWW 2017) with context columns and features.
//
//   gmf = user_gmf ⊙ item_gmf                                    [.., B, N, gmf_dim]
//   mlp = hidden layers over (user_mlp, item_mlp, numbers)       [.., B, N, last of hidden]
//   score = linear(gmf, mlp)                                     [.., B, N], a logit
//
// for N items of each row: the positive and its drawn negatives, or the candidates of an evaluation. The numbers are context,
// user features and item features, as they are. User, context and user features are the same for the N items, and are looked
// up and multiplied once per row: the first layer is a sum of one product per row and one per item, which is the linear layer
// over their concatenation.
// A user's (item's) embedding is one row of one table: gmf_dim columns, then mlp_dim.
// Blocks: "embedding"; "hidden.0", … ; "output". Needs the fields "user", "item", "target"; takes "context",
// "user_features", "item_features", "weight".
#pragma once
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "core/options.h"

namespace convoy {
ModelPtr make_ncf(const Options& options, const Schema& schema);
}  // namespace convoy
