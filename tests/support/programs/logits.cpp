// Logits of a model with given parameters, for comparisons with models in Python.
//
//   build/tests/logits fp32|fp64 MODEL.json IN.safetensors OUT.safetensors
//
// MODEL.json is the section `model` with every option of the model. IN has every parameter by its name, and "tokens"
// [B, T]; OUT has "logits" [B, T, vocabulary]. The vocabulary is the number of rows of embedding.tokens.weight.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <fstream>
#include <iostream>

#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"
#include "core/registry.h"
#include "models/registry.h"
#include "tests/models/building.h"

namespace {

using namespace convoy;

void run(const std::string& precision, const char* model_path, const std::string& in, const std::string& out) {
  at::NoGradGuard no_grad;
  Registry registry;
  register_models(registry);
  std::ifstream model_file(model_path);
  const Json section = Json::parse(model_file);
  const SafetensorsFile file(in);
  Batch batch;
  batch.tensors = {{"tokens", file.tensor("tokens")}};
  batch.rows = batch.at("tokens").size(0);
  Schema schema;
  schema.fields["tokens"] =
      schema.fields["target"] = {{batch.at("tokens").size(1)}, at::kLong, file.shape("embedding.tokens.weight")[0]};
  const ModelPtr model = registry.models.make(section.at("name").get<std::string>(), Options(section), schema);
  Plain plain(precision == "fp64" ? at::kDouble : at::kFloat);
  const auto blocks = blocks_of(*model, plain.layers);
  for (const auto& parameter : plain.store->parameters) {
    if (!file.has(parameter->name)) throw Error(Failure::config, "no parameter ", parameter->name);
    if (file.tensor(parameter->name).sizes() != parameter->value.sizes())
      throw Error(Failure::config, parameter->name, " is ", parameter->value.sizes());
    parameter->value.copy_(file.tensor(parameter->name));
  }
  if (plain.store->parameters.size() + 1 != file.names().size())
    throw Error(Failure::config, "the file has ", file.names().size() - 1, " parameters, and the model has ",
                plain.store->parameters.size());
  write_safetensors(out, {{"logits", forward(*model, blocks, batch)[0]}}, {});
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::cerr << "usage: logits fp32|fp64 MODEL.json IN.safetensors OUT.safetensors\n";
    return 64;
  }
  try {
    run(arguments[1], arguments[2], arguments[3], arguments[4]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
