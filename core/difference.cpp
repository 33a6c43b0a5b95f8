#include "core/difference.h"

#include <cmath>
#include <limits>

namespace convoy {
namespace {

// JSON has no infinity: null stands for it.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }
double number_in(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::infinity() : json.get<double>();
}

}  // namespace

StepDifferences update_of_one(int64_t step, const std::string& fault) {
  TensorDifference updates;
  updates.kind = "counter";
  updates.name = "updates";
  updates.shape = {1};
  updates.absolute = 1;
  updates.relative = std::numeric_limits<double>::infinity();
  updates.fault = fault;
  return {step, {updates}};
}

Json to_json(const StepDifferences& step) {
  Json json = {{"step", step.step}, {"tensors", Json::array()}};
  for (const TensorDifference& tensor : step.tensors) {
    json["tensors"].push_back({{"kind", tensor.kind},
                               {"name", tensor.name},
                               {"shape", tensor.shape},
                               {"absolute", number(tensor.absolute)},
                               {"relative", number(tensor.relative)},
                               {"same_bytes", tensor.same_bytes},
                               {"fault", tensor.fault}});
  }
  return json;
}

StepDifferences step_differences_from_json(const Json& json) {
  StepDifferences step;
  step.step = json.at("step").get<int64_t>();
  for (const Json& entry : json.at("tensors")) {
    TensorDifference tensor;
    tensor.kind = entry.at("kind").get<std::string>();
    tensor.name = entry.at("name").get<std::string>();
    tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
    tensor.absolute = number_in(entry.at("absolute"));
    tensor.relative = number_in(entry.at("relative"));
    tensor.same_bytes = entry.at("same_bytes").get<bool>();
    tensor.fault = entry.at("fault").get<std::string>();
    step.tensors.push_back(std::move(tensor));
  }
  return step;
}

}  // namespace convoy
