#include "launch/rank/against.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "api/components.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/initial_weights.h"
#include "core/tensors/compare.h"
#include "core/tensors/safetensors.h"
#include "models/registry.h"
#include "strategies/registry.h"

namespace convoy {
namespace {

constexpr char reference_file[] = "reference.safetensors";

// The configured data set with the batch of the reference as its rows.
class ReferenceData : public Dataset {
 public:
  ReferenceData(const DatasetPtr& data, const Batch& batch) : schema_(data->schema()), batch_(batch) {
    for (auto& [name, field] : schema_.fields) {
      const at::Tensor* given = batch_.find(name);
      if (given == nullptr)
        throw Error(Failure::config, "the reference has no field ", name, " of the data; its batch has ",
                    join(names(), ", "));
      field.shape = given->sizes().slice(1).vec();
      if (field.cardinality > 0 && given->numel() > 0 && given->max().item<int64_t>() >= field.cardinality)
        throw Error(Failure::config, "field ", name, " of the reference has the number ", given->max().item<int64_t>(),
                    ", but the configured data has 0 to ", field.cardinality - 1);
    }
  }
  Schema schema() const override { return schema_; }
  int64_t size(Split split) const override { return split == Split::train ? batch_.rows : 0; }
  int64_t instances_per_row() const override { return 1; }
  Batch gather(Split, const at::Tensor& indices, int64_t, BatchBuffers&) const override {
    Batch rows;
    rows.rows = indices.numel();
    for (const auto& [name, tensor] : batch_.tensors) rows.tensors.emplace_back(name, tensor.index_select(0, indices));
    return rows;
  }

 private:
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& item : batch_.tensors) all.push_back(item.first);
    return all;
  }
  Schema schema_;
  const Batch& batch_;
};

std::string reference_path(const std::string& folder) {
  std::error_code none;
  if (!std::filesystem::exists(folder + "/" + reference_file, none))
    throw Error(Failure::config, folder, " has no ", reference_file,
                "; write it in Python with dump_reference(model, batch, loss, \"", folder,
                "\") of tools/dump_reference.py");
  return folder + "/" + reference_file;
}

class Reference {
 public:
  explicit Reference(const std::string& folder) : path_(reference_path(folder)), file_(path_) {
    const std::string prefix = "batch/";
    for (const std::string& name : file_.names())
      if (begins_with(name, prefix)) batch_.tensors.emplace_back(name.substr(prefix.size()), file_.tensor(name));
    if (batch_.tensors.empty())
      throw Error(Failure::config, path_, " has no batch; write it with tools/dump_reference.py");
    batch_.rows = batch_.tensors.front().second.size(0);
    batch_.global_rows = batch_.nominal_rows = batch_.rows;
    for (const auto& [name, tensor] : batch_.tensors)
      if (tensor.dim() == 0 || tensor.size(0) != batch_.rows)
        throw Error(Failure::config, path_, ": field ", name, " of the batch has ",
                    tensor.dim() == 0 ? 0 : tensor.size(0), " rows, but the batch has ", batch_.rows);
  }

  const Batch& batch() const { return batch_; }
  bool has(const std::string& name) const { return file_.has(name); }
  at::Tensor tensor(const std::string& name) const { return file_.tensor(name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  SafetensorsFile file_;
  Batch batch_;
};

// Joins tensors of Python along `dimension` of our tensor. Throws Error(config) if the sizes do not divide.
at::Tensor joined(const WeightName& name, const std::vector<at::Tensor>& parts, int64_t dimension) {
  int64_t size = 0;
  for (const at::Tensor& part : parts) size += part.size(dimension);
  std::vector<at::Tensor> pieces;
  for (const WeightRange& range : ranges_of(name, size))
    pieces.push_back(parts[range.part].narrow(dimension, range.first, range.end - range.begin));
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces, dimension);
}

// Tensors to compare, in order.
class Comparison {
 public:
  void add(const std::string& what, const std::string& name, const std::string& theirs, at::Tensor ours,
           at::Tensor reference) {
    const std::string key = str(what, "/", name);
    if (ours.sizes() != reference.sizes() && ours.numel() == reference.numel()) ours = ours.reshape(reference.sizes());
    keys_.push_back(key);
    theirs_[key] = theirs;
    ours_[key] = std::move(ours);
    reference_[key] = std::move(reference);
  }
  Json result() const {
    const StateView a{keys_, [this](const std::string& key) { return ours_.at(key); }};
    const StateView b{keys_, [this](const std::string& key) { return reference_.at(key); }};
    Json tensors = Json::array();
    for (const TensorDifference& difference : compare(a, b)) {
      Json entry{{"what", difference.kind},
                 {"name", difference.name},
                 {"theirs", theirs_.at(str(difference.kind, "/", difference.name))},
                 {"shape", difference.shape},
                 {"relative", difference.relative},
                 {"fault", difference.fault}};
      if (!std::isfinite(difference.relative)) entry["relative"] = nullptr;
      tensors.push_back(std::move(entry));
    }
    return tensors;
  }

 private:
  std::vector<std::string> keys_;
  std::map<std::string, std::string> theirs_;
  std::map<std::string, at::Tensor> ours_, reference_;
};

// Adds input and output of a layer; returns false if Python did not record it.
bool add_layer(Comparison& comparison, const Reference& reference, const WeightNames& names, const TracedLayer& layer) {
  const std::vector<std::string> modules = names.layers_of(layer.name);
  std::vector<at::Tensor> outputs;
  for (const std::string& module : modules) {
    if (!reference.has("output/" + module)) return false;
    outputs.push_back(reference.tensor("output/" + module));
  }
  const std::string theirs = join(modules, " + ");
  const std::string input = "input/" + modules.front();
  if (layer.input.is_floating_point() && reference.has(input))
    comparison.add("input", layer.name, theirs, layer.input, reference.tensor(input));
  const at::Tensor output =
      outputs.size() == 1 ? outputs[0] : joined(names.of(layer.name + ".weight"), outputs, outputs[0].dim() - 1);
  comparison.add("output", layer.name, theirs, layer.output, output);
  return true;
}

void add_gradient(Comparison& comparison, const Reference& reference, const WeightNames& names,
                  const std::string& parameter, const at::Tensor& gradient) {
  const WeightName name = names.of(parameter);
  std::vector<at::Tensor> parts;
  for (const std::string& theirs : name.theirs) {
    if (!reference.has("gradient/" + theirs)) return;
    const at::Tensor part = reference.tensor("gradient/" + theirs);
    parts.push_back(name.transposed && part.dim() == 2 ? part.t() : part);
  }
  comparison.add("gradient", parameter, join(name.theirs, " + "), gradient, joined(name, parts, 0));
}

}  // namespace

Json compare_with_reference(RunConfig config, const Registry& registry, const std::string& folder) {
  const Reference reference(folder);
  const auto source = open_weights(folder, true);
  const std::vector<SourceTensor>& all = source->tensors();
  const bool exact =
      std::any_of(all.begin(), all.end(), [](const auto& tensor) { return tensor.dtype == at::kDouble; });
  config.precision = exact ? "fp64" : "fp32";
  const WeightNames names = weight_names(config.model.name, config.model.options);
  const InitFrom wanted{folder, false, {}};
  const Components components = make_components(config, registry, [&](const DatasetPtr& data) -> DatasetPtr {
    return std::make_shared<ReferenceData>(data, reference.batch());
  });

  const auto set_values = [&](const std::string& name, const at::Tensor& value) {
    const WeightMatches matches = match_weights(*source, names, wanted, {{name, value.sizes().vec()}});
    const auto match = matches.found.find(name);
    if (match == matches.found.end())
      throw Error(Failure::config, folder, " has no tensor ", join(names.of(name).theirs, ", "),
                  ", the name in Python of ", name, " of model ", config.model.name, "; its first tensor is ",
                  all.front().name, "; give the configuration of the model that wrote it");
    source->read(match->second.name, match->second.stored, Piece::whole(value.sizes()), value);
  };
  const TracedStep step = traced_step(config, components.model, components.loss, reference.batch(), set_values);

  Comparison comparison;
  Json skipped = Json::array();
  for (const TracedLayer& layer : step.layers)
    if (!add_layer(comparison, reference, names, layer)) skipped.push_back(layer.name);
  if (reference.has("loss"))
    comparison.add("loss", "mean", "loss", at::scalar_tensor(step.loss, at::kDouble), reference.tensor("loss"));
  for (auto gradient = step.gradients.rbegin(); gradient != step.gradients.rend(); ++gradient)
    add_gradient(comparison, reference, names, gradient->first, gradient->second);
  Json result{{"precision", config.precision}, {"tensors", comparison.result()}, {"skipped", skipped}};
  if (names.config && source->config().is_object())
    for (const auto& item : config_differences(*names.config, source->config()))
      result["config"].push_back(item.second);
  return result;
}

}  // namespace convoy
