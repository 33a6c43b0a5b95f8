// Registers all components of this plugin: for each name an entry (options, checks, help) and a factory.
#include "factories.h"

namespace describe = convoy::describe;

CONVOY_PLUGIN(registry) {
  registry.catalogues.kinds["model"].push_back(
      {"gated_mlp",
       "layers whose outputs are gated by a second product",
       {describe::list("hidden", "sizes of the hidden layers", describe::integer("", "a size").at_least(1), {64}),
        describe::real("dropout", "after each hidden layer", 0.0).at_least(0).at_most(0.99)}});
  registry.models.add("gated_mlp", make_gated_mlp);

  registry.catalogues.kinds["loss"].push_back(
      {"huber",
       "squared near the target, absolute far from it",
       {describe::real("delta", "where the one becomes the other", 1.0).above(0)}});
  registry.losses.add("huber", make_huber);

  registry.catalogues.kinds["transform"].push_back(
      {"cutout",
       "sets a range of each row's features to zero",
       {describe::integer("width", "of the range", 4).at_least(1).in("features")}});
  registry.transforms.add("cutout", make_cutout);
}
