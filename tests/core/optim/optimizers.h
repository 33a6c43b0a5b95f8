// Optimizers as configurations describe them, and the scalars of an update.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <string>

#include "core/optim/optimizer.h"

namespace convoy {

inline Json common() {
  return {{"lr", 0.01},
          {"weight_decay", 0.0},
          {"clip_norm", nullptr},
          {"groups", Json::array()},
          {"schedule", {{"name", "constant"}}}};
}
inline Component adam(const std::string& name, const Json& more = Json::object()) {
  Json json = common();
  json.update({{"betas", {0.9, 0.999}}, {"eps", 1e-8}});
  json.update(more);
  return {name, Options(json)};
}
inline Component sgd(double momentum, bool nesterov) {
  Json json = common();
  json.update({{"momentum", momentum}, {"nesterov", nesterov}});
  return {"sgd", Options(json)};
}

inline UpdateScalars scalars(double rate, int64_t step, double scale = 1, bool apply = true) {
  return {at::full({1}, rate, at::kDouble), at::full({1}, step, at::kLong), at::full({1}, scale, at::kDouble),
          at::full({1}, apply, at::kBool)};
}

}  // namespace convoy
