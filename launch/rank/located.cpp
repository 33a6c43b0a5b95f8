#include "launch/rank/located.h"

#include <ATen/ATen.h>

#include <cctype>
#include <map>
#include <string>

#include "core/data/samples.h"
#include "core/error.h"

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

class LocatedDataset : public Dataset {
 public:
  LocatedDataset(DatasetPtr inner, Place place) : inner_(std::move(inner)), place_(std::move(place)) {}
  Schema schema() const override { return inner_->schema(); }
  int64_t size(Split split) const override { return inner_->size(split); }
  int64_t instances_per_row() const override { return inner_->instances_per_row(); }
  int64_t tokens_per_row() const override { return inner_->tokens_per_row(); }
  bool at_hand() const override { return inner_->at_hand(); }
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, Buffers& buffers) const override {
    return at_place(place_, [&] { return inner_->gather(split, indices, epoch, buffers); });
  }

 private:
  DatasetPtr inner_;
  Place place_;
};

class LocatedTransform : public Transform {
 public:
  LocatedTransform(std::shared_ptr<const Transform> inner, Place place)
      : inner_(std::move(inner)), place_(std::move(place)) {}
  void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const override {
    at_place(place_, [&] { inner_->apply(batch, indices, seed, epoch); });
  }
  bool evaluation_too() const override { return inner_->evaluation_too(); }

 private:
  std::shared_ptr<const Transform> inner_;
  Place place_;
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

void try_transforms(const TrainedParts& parts, uint64_t seed) {
  if (parts.transforms.empty() || parts.data->size(Split::train) == 0) return;
  const at::Tensor first = at::zeros({1}, at::kLong);
  Batch row = parts.data->gather_once(Split::train, first, 0);
  for (const auto& transform : parts.transforms) transform->apply(row, first, seed, 0);
}

}  // namespace

TrainedParts located_parts(const RunConfig& config, const Registry& registry) {
  TrainedParts parts;
  const auto resolved = std::make_shared<const Json>(config.resolved);
  const Place data = place_of(resolved, "data", "path");
  parts.data = std::make_shared<LocatedDataset>(at_place(data,
                                                         [&] {
                                                           return registry.datasets.make(
                                                               config.data.name, config.data.options,
                                                               data_seed(config.data.options, config.seed));
                                                         }),
                                                data);
  const std::vector<Options> transforms = config.data.options.sections("transforms");
  for (size_t i = 0; i < transforms.size(); ++i) {
    const std::string key = str("data.transforms.", i);
    const Place place{resolved, key, key};
    parts.transforms.push_back(std::make_shared<LocatedTransform>(
        at_place(place, [&] { return registry.transforms.make(transforms[i].text("name"), transforms[i]); }), place));
  }
  const Place model = place_of(resolved, "model", "name");
  parts.model = at_place(
      model, [&] { return registry.models.make(config.model.name, config.model.options, parts.data->schema()); });
  const bool own = config.loss.name.empty();
  const std::string name = own ? parts.model->default_loss() : config.loss.name;
  const Place loss = own ? model : place_of(resolved, "loss", "name");
  parts.loss = std::make_shared<LocatedLoss>(
      at_place(loss, [&] { return registry.losses.make(name, config.loss.options); }), loss);
  try_transforms(parts, data_seed(config.data.options, config.seed));
  return parts;
}

}  // namespace convoy
