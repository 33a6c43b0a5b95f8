// gpt: what its user can write.
#include "core/config/without_effect.h"
#include "core/describe.h"
#include "models/entries.h"
#include "models/row_option_entry.h"

namespace convoy {

namespace {

void check(const Options& options) {
  check_rows_option(options);
  const int64_t dim = options.integer("dim"), heads = options.integer("heads");
  if (dim % heads != 0)
    options.fail("dim", str("is ", dim, ", which ", heads, " heads do not divide; try ", (dim / heads + 1) * heads));
  if (options.text("positions") == "rotary" && dim / heads % 2 != 0)
    options.fail("positions", str("rotary turns features in pairs, and dim ÷ heads is ", dim / heads,
                                  "; make it even, or take learned positions"));
  if (options.has("mlp_dim"))
    refuse_without_effect(options, "mlp_ratio",
                          "and mlp_dim both say how large a block's MLP is; leave one of them out",
                          {options.mark("mlp_dim")});
  if (options.text("positions") != "rotary")
    refuse_without_effect(options, "rotary_base",
                          "is for positions: rotary, and positions are learned; leave one of them out",
                          {options.mark("positions")});
}

}  // namespace

Entry gpt_entry() {
  Entry entry;
  entry.name = "gpt";
  entry.help = "decoder-only transformer: predicts each token of a sequence from those before it";
  entry.options = {
      describe::integer("layers", "transformer blocks", 4).at_least(1).at_most(10000),
      describe::integer("heads", "of attention; they divide dim", 8).at_least(1).at_most(1 << 20),
      describe::integer("dim", "of the activations", 256).at_least(1).at_most(1 << 20),
      describe::integer("mlp_ratio", "hidden units of a block's MLP, in multiples of dim", 4).at_least(1).at_most(1024),
      describe::integer("mlp_dim", "hidden units of a block's MLP, in place of mlp_ratio")
          .at_least(1)
          .at_most(1 << 24)
          .may_be_null(),
      describe::choice("positions", "a trained vector per position, or queries and keys turned by their position",
                       {"learned", "rotary"}, "learned"),
      describe::real("rotary_base", "rotary: the longest wavelength, in positions ÷ 2π", 10000.0).above(1),
      describe::boolean("tied", "the output shares the weight of the embedding, which is no row table then", true),
      rows_option(),
      describe::real("dropout", "on embeddings and residuals", 0.0).at_least(0).at_most(0.99),
      describe::real("attention_dropout", "on attention's weights, without the fused kernel then", 0.0)
          .at_least(0)
          .at_most(0.99),
      describe::boolean("bias", "linear layers of the blocks have a bias", true),
      describe::real("norm_eps", "of the layer norms", 1e-5).above(0),
  };
  entry.check = check;
  return entry;
}

}  // namespace convoy
