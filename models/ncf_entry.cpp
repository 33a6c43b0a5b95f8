// ncf: what its user can write.
#include "core/config/without_effect.h"
#include "core/describe.h"
#include "models/entries.h"
#include "models/row_option_entry.h"

namespace convoy {

namespace {

void check(const Options& options) {
  check_rows_option(options);
  const int64_t mlp = options.integer("mlp_dim");
  if (options.integer("gmf_dim") == 0 && mlp == 0)
    options.fail("gmf_dim", "and mlp_dim are both 0: nothing is left to learn");
  const bool layers = !options.integers("hidden").empty();
  if (mlp > 0 && !layers) options.fail("hidden", "needs a layer, or set mlp_dim: 0");
  if (mlp > 0) return;
  const std::string reason = "is of the MLP, and mlp_dim: 0 leaves that out; leave this key out too, or raise mlp_dim";
  if (layers) refuse_without_effect(options, "hidden", reason, {options.mark("mlp_dim")});
  if (options.real("dropout") > 0) refuse_without_effect(options, "dropout", reason, {options.mark("mlp_dim")});
}

}  // namespace

Entry ncf_entry() {
  Entry entry;
  entry.name = "ncf";
  entry.help =
      "NeuMF: generalised matrix factorisation beside an MLP over user, item and context, for implicit feedback";
  entry.options = {
      describe::integer("gmf_dim", "of the factorisation, per user and per item; 0: without it", 8)
          .at_least(0)
          .at_most(1 << 20),
      describe::integer("mlp_dim", "of the MLP's embedding, per user and per item; 0: without the MLP", 32)
          .at_least(0)
          .at_most(1 << 20),
      describe::list("hidden", "sizes of the MLP's layers",
                     describe::integer("", "a size").at_least(1).at_most(1 << 24), Json::array({32, 16, 8})),
      describe::real("dropout", "after each of the MLP's layers", 0.0).at_least(0).at_most(0.99),
      rows_option(),
      describe::list("top_k", "HR@k and NDCG@k are told for these",
                     describe::integer("", "k").at_least(1).at_most(2147483647), Json::array({10})),
  };
  entry.check = check;
  return entry;
}

}  // namespace convoy
