#include "core/registry.h"

#include "core/backend.h"

#include "core/data/readers/interactions_reader.h"
#include "core/data/sets/fashion_mnist.h"
#include "core/data/sets/images.h"
#include "core/data/sets/synthetic.h"
#include "core/data/sets/table.h"
#include "core/data/sets/text.h"
#include "core/data/transforms.h"
#include "core/losses/losses.h"

namespace convoy {

namespace {

DatasetPtr make_interactions(const Options& options, uint64_t seed) {
  const std::string& path = options.text("path");
  const std::string& name = options.text("holdout");
  const Holdout holdout = name == "latest"   ? Holdout::latest
                          : name == "random" ? Holdout::random
                          : name == "time"   ? Holdout::time
                                             : Holdout::none;
  Interactions all = read_interactions(path, InteractionColumns::from(options, path));
  add_features(all, FeatureFile::from(options, "item"), FeatureFile::from(options, "user"));
  RankingOptions ranking = RankingOptions::from(options);
  if (holdout == Holdout::time && ranking.fraction == 0) ranking.fraction = 0.1;
  return std::make_shared<InteractionsDataset>(std::move(all), holdout, ranking, seed,
                                               PreparationOptions::from(options));
}

}  // namespace

void register_core(Registry& registry, bool few_rows) {
  registry.datasets.add("fashion_mnist", [](const Options& options, uint64_t) {
    return std::make_shared<FashionMnist>(options.text("path"), options.boolean("bytes"));
  });
  registry.datasets.add("images", make_images);
  registry.datasets.add("interactions", make_interactions);
  registry.datasets.add("synthetic", [few_rows](const Options& options, uint64_t seed) {
    return make_synthetic(options, seed, few_rows);
  });
  registry.datasets.add("table", make_table);
  registry.datasets.add("text", make_text);

  registry.transforms.add("flip", [](const Options& options) { return std::make_shared<Flip>(options.real("p")); });
  registry.transforms.add("noise",
                          [](const Options& options) { return std::make_shared<Noise>(options.real("deviation")); });
  registry.transforms.add("normalise", [](const Options& options) {
    return std::make_shared<Normalise>(options.reals("mean"), options.reals("deviation"));
  });
  registry.transforms.add("shift",
                          [](const Options& options) { return std::make_shared<Shift>(options.integer("pixels")); });

  for (const auto& [name, factory] : loss_factories()) registry.losses.add(name, factory);
}

}  // namespace convoy
