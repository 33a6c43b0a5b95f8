#include "launch/rank/located.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cctype>
#include <map>
#include <mutex>
#include <string>

#include "core/config/option_reader.h"
#include "core/data/samples.h"
#include "core/error.h"
#include "core/model.h"
#include "core/wrapped_model.h"
#include "launch/rank/caught.h"
#include "launch/rank/crash.h"

namespace convoy {
namespace {

// What is told at a key: mistakes in what was asked for, files that are not there or damaged. Others pass.
bool is_of_the_input(Failure kind) {
  return kind == Failure::config || kind == Failure::io || kind == Failure::corrupt_data;
}

// Where a component's mistakes are told: its section's key by default, or the option that a message is about.
struct Place {
  std::shared_ptr<const Json> resolved;
  std::string section;   // "data", "data.transforms.1"
  std::string fallback;  // key path
};

// Options below `path` by their key paths.
void flatten(const Json& values, const std::string& path, std::map<std::string, Json>& into) {
  for (const auto& [key, value] : values.items()) {
    const std::string below = path + "." + key;
    into[below] = value;
    if (value.is_object()) flatten(value, below, into);
  }
}

bool is_named(const std::string& key, const std::string& message) {
  const size_t at = message.find(key);
  if (at == std::string::npos) return false;
  const char next = at + key.size() < message.size() ? message[at + key.size()] : ' ';
  return std::islower(static_cast<unsigned char>(next)) == 0 && next != '_' && next != '.';
}

// An option that the message names ("data.length"), or whose file it begins with ("words.json: is no JSON").
std::string key_of(const Place& place, const std::string& message) {
  const Json* values = &*place.resolved;
  std::string rest = place.section;
  while (values != nullptr && !rest.empty()) {
    const size_t dot = rest.find('.');
    const std::string step = rest.substr(0, dot);
    rest = dot == std::string::npos ? "" : rest.substr(dot + 1);
    if (values->is_object() && values->contains(step))
      values = &values->at(step);
    else if (values->is_array() && std::stoul(step) < values->size())
      values = &values->at(std::stoul(step));
    else
      values = nullptr;
  }
  if (values == nullptr || !values->is_object()) return place.fallback;
  std::map<std::string, Json> options;
  flatten(*values, place.section, options);
  for (const auto& [key, value] : options)
    if (is_named(key, message)) return key;
  for (const auto& [key, value] : options)
    if (value.is_string() && !value.get_ref<const std::string&>().empty() &&
        message.rfind(value.get<std::string>() + ":", 0) == 0)
      return key;
  return place.fallback;
}

template <class Action>
auto at_place(const Place& place, const Action& action) {
  try {
    return action();
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    if (!is_of_the_input(error.kind())) throw;
    const std::string key = key_of(place, error.what());
    std::string reason = error.what();
    if (reason.rfind(key + ": ", 0) == 0) reason.erase(0, key.size() + 2);
    throw ConfigError(mark_of(*place.resolved, key), key, reason, error.kind());
  }
}

// `key`, where the section has it, is what is named for want of a better one.
Place place_of(const std::shared_ptr<const Json>& resolved, const std::string& section, const std::string& key) {
  const Json& component = resolved->at(section);
  const bool there = component.is_object() && component.contains(key) && !component.at(key).is_null();
  return {resolved, section, there ? section + "." + key : section};
}

// Calls code of a component, which may be a plugin's. `what` names it: in messages, and where it crashes.
template <class Action>
auto called(const Place& place, const CrashNote& note, const Action& action) {
  const CrashPlace here(note);
  try {
    return at_place(place, action);
  } catch (const Error&) {
    throw;
  } catch (...) {
    const Caught failure = caught(Failure::training);
    throw ConfigError(mark_of(*place.resolved, place.fallback), place.fallback,
                      str(note.place(), ", threw: ", failure.message), failure.kind);
  }
}

// With a null object refused, as Factories::make does.
template <class Action>
auto constructed(const Place& place, const std::string& what, const Action& action) {
  return called(place, CrashNote(what + ", its constructor"), action);
}

class LocatedDataset : public Dataset {
 public:
  LocatedDataset(DatasetPtr inner, Place place, const std::string& name)
      : inner_(std::move(inner)),
        place_(std::move(place)),
        name_(name),
        gathering_("data set " + name + ", its gather") {
    at_place(place_, [&] {
      if (inner_->size(Split::train) < 1) throw Error(Failure::config, "has no rows to train on");
      if (inner_->instances_per_row() < 1)
        throw Error(Failure::config, str("says that a row is ", inner_->instances_per_row(), " training instances"));
    });
  }
  Schema schema() const override { return inner_->schema(); }
  int64_t size(Split split) const override { return inner_->size(split); }
  int64_t instances_per_row() const override { return inner_->instances_per_row(); }
  int64_t tokens_per_row() const override { return inner_->tokens_per_row(); }
  bool at_hand() const override { return inner_->at_hand(); }
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, Buffers& buffers) const override {
    return called(place_, gathering_, [&] {
      Batch batch = inner_->gather(split, indices, epoch, buffers);
      check_gathered(batch, indices.numel());
      return batch;
    });
  }
  // Hashed once: a fingerprint may read all files.
  DataContents contents() const override {
    std::call_once(hashed_, [this] { contents_ = at_place(place_, [&] { return inner_->contents(); }); });
    return contents_;
  }
  DatasetPtr numbered_as(const DataContents& stored) const override {
    const DatasetPtr made = at_place(place_, [&] { return inner_->numbered_as(stored); });
    return made ? std::make_shared<LocatedDataset>(made, place_, name_) : nullptr;
  }

 private:
  static void check_gathered(const Batch& batch, int64_t rows) {
    if (batch.rows != rows)
      throw Error(Failure::config, str("gathered a batch that says ", batch.rows, " rows, for ", rows, " indices"));
    for (const auto& [name, tensor] : batch.tensors)
      if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) != rows)
        throw Error(Failure::config, str("gathered a field '", name, "' that is ",
                                         tensor.defined() ? convoy::str("of shape ", tensor.sizes()) : "undefined",
                                         ", for ", rows, " indices; dimension 0 is rows"));
  }

  DatasetPtr inner_;
  Place place_;
  const std::string name_;
  CrashNote gathering_;
  mutable std::once_flag hashed_;
  mutable DataContents contents_;
};

class LocatedTransform : public Transform {
 public:
  LocatedTransform(std::shared_ptr<const Transform> inner, Place place, const std::string& name)
      : inner_(std::move(inner)), place_(std::move(place)), applying_("transform " + name + ", its apply") {}
  void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const override {
    called(place_, applying_, [&] { inner_->apply(batch, indices, seed, epoch); });
  }
  bool evaluation_too() const override { return inner_->evaluation_too(); }

 private:
  std::shared_ptr<const Transform> inner_;
  Place place_;
  CrashNote applying_;
};

class LocatedLoss : public LossFunction {
 public:
  LocatedLoss(std::shared_ptr<const LossFunction> inner, Place place)
      : inner_(std::move(inner)), place_(std::move(place)) {}
  Loss operator()(const Examples& examples, Layers& layers) const override {
    return at_place(place_, [&] { return (*inner_)(examples, layers); });
  }

 private:
  std::shared_ptr<const LossFunction> inner_;
  Place place_;
};

// The model; exceptions of its blocks' constructors name the block.
class LocatedModel : public WrappedModel {
 public:
  LocatedModel(ModelPtr inner, Place place) : WrappedModel(std::move(inner)), place_(std::move(place)) {
    at_place(place_, [&] {
      if (blocks() < 1) throw Error(Failure::config, str("the model has ", blocks(), " blocks"));
    });
  }
  BlockPtr block(int64_t index, Layers& layers) const override {
    const std::string what = str("block ", index, " (", block_name(index), ")");
    return constructed(place_, what, [&] {
      BlockPtr block = wrapped().block(index, layers);
      if (!block) throw Error(Failure::config, what + ": the model returned null for it");
      return block;
    });
  }

 private:
  Place place_;
};

// Options of the model's own loss: its entry's defaults, as if the configuration named it.
Options own_loss_options(const RunConfig& config, const Catalogues& catalogues, const std::string& name, Place model) {
  const Mark mark = mark_of(*model.resolved, model.fallback);
  const Entry* entry = catalogues.find("loss", name);
  if (entry == nullptr) {
    const std::vector<std::string> valid = catalogues.names("loss");
    const std::string near = nearest(name, valid);
    throw ConfigError(mark, model.fallback,
                      str("model ", config.model.name, " names '", name,
                          "' as its own loss (Model::default_loss), which does not exist; ",
                          near.empty() ? "there are " + join(valid, ", ") : "did you mean " + near + "?",
                          " Mend that, or choose one by loss: {name: …}"));
  }
  Json values = OptionReader(catalogues, {}).read_fields(entry->options, map_node(mark), "loss");
  values["name"] = name;
  Options options(values, {{"", mark}}, "loss");
  if (entry->check) entry->check(options);
  return options;
}

void try_transforms(const TrainedParts& parts, uint64_t seed) {
  if (parts.transforms.empty() || parts.data->size(Split::train) == 0) return;
  const at::Tensor first = at::zeros({1}, at::kLong);
  Batch row = parts.data->gather_once(Split::train, first, 0);
  for (const auto& transform : parts.transforms) transform->apply(row, first, seed, 0);
}

}  // namespace

TrainedParts located_parts(const RunConfig& config, const Registry& registry,
                           const std::function<DatasetPtr(const DatasetPtr&)>& settle) {
  TrainedParts parts;
  const auto resolved = std::make_shared<const Json>(config.resolved);
  const Place data = place_of(resolved, "data", "path");
  parts.data = std::make_shared<LocatedDataset>(constructed(data, "data set " + config.data.name,
                                                            [&] {
                                                              return registry.datasets.make(
                                                                  config.data.name, config.data.options,
                                                                  data_seed(config.data.options, config.seed));
                                                            }),
                                                data, config.data.name);
  if (settle) parts.data = settle(parts.data);
  const std::vector<Options> transforms = config.data.options.sections("transforms");
  for (size_t i = 0; i < transforms.size(); ++i) {
    const std::string key = str("data.transforms.", i), name = transforms[i].text("name");
    const Place place{resolved, key, key};
    parts.transforms.push_back(std::make_shared<LocatedTransform>(
        constructed(place, "transform " + name, [&] { return registry.transforms.make(name, transforms[i]); }), place,
        name));
  }
  const Place model = place_of(resolved, "model", "name");
  parts.model = std::make_shared<LocatedModel>(
      constructed(model, "model " + config.model.name,
                  [&] { return registry.models.make(config.model.name, config.model.options, parts.data->schema()); }),
      model);
  const bool own = config.loss.name.empty();
  const std::string name = own ? parts.model->default_loss() : config.loss.name;
  const Options options = own ? own_loss_options(config, registry.catalogues, name, model) : config.loss.options;
  const Place loss = own ? model : place_of(resolved, "loss", "name");
  parts.loss = std::make_shared<LocatedLoss>(
      constructed(loss, "loss " + name, [&] { return registry.losses.make(name, options); }), loss);
  try_transforms(parts, data_seed(config.data.options, config.seed));
  return parts;
}

}  // namespace convoy
