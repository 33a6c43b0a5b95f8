// mlp: what its user can write.
#include "core/describe.h"

namespace convoy {

Entry mlp_entry() {
  Entry entry;
  entry.name = "mlp";
  entry.help = "fully connected layers over flattened features; classes or numbers, as the data set has them";
  entry.options = {
      describe::list("hidden", "sizes of the hidden layers", describe::integer("", "a size").at_least(1),
                     Json::array({256, 128})),
      describe::choice("activation", "after each hidden layer", {"relu", "gelu", "silu", "tanh"}, "relu"),
      describe::real("dropout", "after each hidden layer", 0.0).at_least(0).at_most(0.99),
  };
  return entry;
}

}  // namespace convoy
