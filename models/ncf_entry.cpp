// ncf: what its user can write.
#include "core/describe.h"

namespace convoy {

Entry ncf_entry() {
  Entry entry;
  entry.name = "ncf";
  entry.help =
      "NeuMF: generalised matrix factorisation beside an MLP over user, item and context, for implicit feedback";
  entry.options = {
      describe::integer("gmf_dim", "of the factorisation, per user and per item; 0: without it", 8).at_least(0),
      describe::integer("mlp_dim", "of the MLP's embedding, per user and per item; 0: without the MLP", 32).at_least(0),
      describe::list("hidden", "sizes of the MLP's layers", describe::integer("", "a size").at_least(1),
                     Json::array({32, 16, 8})),
      describe::real("dropout", "after each of the MLP's layers", 0.0).at_least(0).at_most(0.99),
      describe::list("top_k", "HR@k and NDCG@k are told for these", describe::integer("", "k").at_least(1),
                     Json::array({10})),
  };
  return entry;
}

}  // namespace convoy
