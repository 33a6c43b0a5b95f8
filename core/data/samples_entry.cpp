// `data.samples`, described and read.
#include "core/data/samples.h"
#include "core/describe.h"
#include "core/text.h"

namespace convoy {
namespace {

using Rows = MemberDraw::Rows;

Rows rows_of(const std::string& how) {
  return how == "bootstrap" ? Rows::bootstrap
         : how == "subset"  ? Rows::subset
         : how == "folds"   ? Rows::fold
                            : Rows::all;
}

}  // namespace

std::vector<Option> samples_options() {
  auto seed = describe::integer("seed", "of the draw and of each epoch's order; auto: the run's", "auto").at_least(0);
  seed.also_auto = true;
  return {
      describe::choice(
          "how",
          "all; bootstrap: as many as there are, with replacement; subset: a fraction, without; folds: all "
          "but one of several equal parts, which is evaluated on",
          {"all", "bootstrap", "subset", "folds"}, "all"),
      describe::real("fraction", "subset: share of the rows", 0.5).above(0).at_most(1),
      describe::integer("folds", "folds: how many parts", 5).at_least(2).at_most(1 << 20),
      describe::integer("fold", "folds: the part that is held out, from 0", 0).at_least(0).at_most(1 << 20),
      seed,
  };
}

void check_samples(const Options& data) {
  if (!data.has("samples")) return;
  const Options samples = data.section("samples");
  if (!samples.has("fold") || !samples.has("folds")) return;  // of a data set that a plugin brings: not read yet
  if (samples.integer("fold") >= samples.integer("folds"))
    samples.fail("fold", str("is ", samples.integer("fold"), ", must be below folds, ", samples.integer("folds"),
                             ": they count from 0"));
}

MemberDraw data_draw(const Options& data, uint64_t seed) {
  MemberDraw draw;
  draw.seed = seed;
  if (!data.has("samples")) return draw;
  const Options samples = data.section("samples");
  draw.rows = rows_of(samples.text("how"));
  if (!samples.is_auto("seed")) draw.seed = static_cast<uint64_t>(samples.integer("seed"));
  if (draw.rows == Rows::subset) draw.fraction = samples.real("fraction");
  if (draw.rows == Rows::fold) {
    draw.folds = samples.integer("folds");
    draw.member = samples.integer("fold");
  }
  return draw;
}

uint64_t data_seed(const Options& data, uint64_t run_seed) {
  return data.has("seed") && !data.is_auto("seed") ? static_cast<uint64_t>(data.integer("seed")) : run_seed;
}

}  // namespace convoy
