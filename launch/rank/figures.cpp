#include "launch/rank/figures.h"

#include <ATen/core/Tensor.h>

#include "core/data/loader.h"
#include "core/data/samples.h"
#include "core/data/trained_rows.h"
#include "core/log.h"
#include "launch/rank/located.h"
#include "strategies/parts/members/registry.h"

namespace convoy {
namespace {

constexpr int64_t few = 2;  // rows

LoaderOptions loader_options(const RunConfig& config) {
  LoaderOptions options;
  options.seed = data_seed(config.data.options, config.seed);
  return options;
}

}  // namespace

std::optional<EvaluationFigures> evaluation_figures(const RunConfig& config, const Registry& registry) {
  const TrainedParts parts = located_parts(config, registry);
  const auto names_of = [&](Loader loader) { return metric_names(config, parts.model, parts.loss, *loader.next()); };
  EvaluationFigures figures;
  try {
    if (parts.data->size(Split::evaluate) > 0)
      figures.evaluated = names_of(Loader(parts.data, parts.transforms, few, loader_options(config)));
    if (trained_rows_evaluate(*parts.data)) {
      const int64_t rows = std::min<int64_t>(few, parts.data->size(Split::train));
      const Sampler sampler(parts.data->size(Split::train), rows, config.seed);
      figures.held_out = names_of(Loader(parts.data, parts.transforms, sampler, 0, 1, loader_options(config)));
    }
  } catch (const std::exception& error) {
    log::info(str("a few rows were not evaluated: ", error.what()));
    return std::nullopt;
  }
  return figures;
}

}  // namespace convoy
