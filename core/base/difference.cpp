#include "core/base/difference.h"

#include <limits>

namespace convoy {
namespace {

// JSON has no infinity; null represents it.
double number_in(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::infinity() : json.get<double>();
}

}  // namespace

StepDifferences update_in_one_run(int64_t step, const std::string& fault) {
  return {step, {{"counter", "updates", {1}, 1, std::numeric_limits<double>::infinity(), false, fault}}};
}

Json to_json(const StepDifferences& step) {
  Json json = {{"step", step.step}, {"tensors", Json::array()}};
  for (const TensorDifference& tensor : step.tensors) {
    json["tensors"].push_back({{"kind", tensor.kind},
                               {"name", tensor.name},
                               {"shape", tensor.shape},
                               {"absolute", number_or_null(tensor.absolute)},
                               {"relative", number_or_null(tensor.relative)},
                               {"same_bytes", tensor.same_bytes},
                               {"fault", tensor.fault}});
  }
  return json;
}

StepDifferences step_differences_from_json(const Json& json) {
  StepDifferences step;
  step.step = json.at("step").get<int64_t>();
  for (const Json& entry : json.at("tensors")) {
    step.tensors.push_back({entry.at("kind"), entry.at("name"), entry.at("shape"), number_in(entry.at("absolute")),
                            number_in(entry.at("relative")), entry.at("same_bytes"), entry.at("fault")});
  }
  return step;
}

}  // namespace convoy
