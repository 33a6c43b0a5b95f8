// mlp: what its user can write.
#include "core/config/without_effect.h"
#include "core/describe.h"
#include "models/entries.h"

namespace convoy {

namespace {

void check(const Options& options) {
  if (!options.integers("hidden").empty()) return;
  const std::string reason = "is for what follows a hidden layer, and hidden is []: there is none; leave it out";
  refuse_without_effect(options, "activation", reason, {options.mark("hidden")});
  if (options.real("dropout") > 0) refuse_without_effect(options, "dropout", reason, {options.mark("hidden")});
}

}  // namespace

Entry mlp_entry() {
  Entry entry;
  entry.name = "mlp";
  entry.help = "fully connected layers over flattened features; classes or numbers, as the data set has them";
  entry.options = {
      describe::list("hidden", "sizes of the hidden layers",
                     describe::integer("", "a size").at_least(1).at_most(1 << 24), Json::array({256, 128})),
      describe::choice("activation", "after each hidden layer", {"relu", "gelu", "silu", "tanh"}, "relu"),
      describe::real("dropout", "after each hidden layer", 0.0).at_least(0).at_most(0.99),
  };
  entry.check = check;
  return entry;
}

}  // namespace convoy
