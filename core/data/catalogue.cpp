// The lists of data sets and transforms. A new one is its X_entry.cpp and a line here, its class and a line in
// core/builtins.cpp.
#include "core/data/catalogue.h"

#include "core/data/samples.h"
#include "core/describe.h"

namespace convoy {

Entry fashion_mnist_entry();
Entry images_entry();
Entry interactions_entry();
Entry synthetic_entry();
Entry table_entry();
Entry text_entry();
Entry flip_entry();
Entry noise_entry();
Entry normalise_entry();
Entry shift_entry();

const std::vector<Entry>& dataset_catalogue() {
  static const std::vector<Entry> entries{
      fashion_mnist_entry(), images_entry(), interactions_entry(), synthetic_entry(), table_entry(), text_entry(),
  };
  return entries;
}

const std::vector<Entry>& transform_catalogue() {
  static const std::vector<Entry> entries{
      flip_entry(),
      noise_entry(),
      normalise_entry(),
      shift_entry(),
  };
  return entries;
}

std::vector<Option> common_data_options() {
  auto seed =
      describe::integer("seed", "of what the data set and its transforms draw; auto: the run's", "auto").at_least(0);
  seed.also_auto = true;
  auto prefetch = describe::integer("prefetch",
                                    "batches assembled ahead, on a thread of the loader's; 0: none, the rank assembles "
                                    "each when it wants it; auto: 0 where a rank has but one core and its rows are in "
                                    "memory, else 4",
                                    "auto")
                      .at_least(0)
                      .at_most(1024)
                      .in("batches");
  prefetch.also_auto = true;
  return {
      describe::list("transforms", "augmentations, in order", describe::component("", "an augmentation", "transform")),
      prefetch,
      describe::choice(
          "changed",
          "on resume, data whose contents are not those that the checkpoint was trained on: refuse; allow: "
          "go on with it and with the checkpoint's numbers for ids, classes and columns, as long as none "
          "of them is new",
          {"refuse", "allow"}, "refuse"),
      describe::section("samples", "which rows are trained on; in an ensemble, by each member", samples_options()),
      seed,
  };
}

}  // namespace convoy
