#include "launch/rank/located.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace convoy {
namespace {

// What is told at a key: mistakes in what was asked for, files that are not there or damaged. Others pass.
bool is_of_the_input(Failure kind) {
  return kind == Failure::config || kind == Failure::io || kind == Failure::corrupt_data;
}

struct Place {
  Mark mark;
  std::string key;
};

template <class Action>
auto at_place(const Place& place, const Action& action) {
  try {
    return action();
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    if (!is_of_the_input(error.kind())) throw;
    throw ConfigError(place.mark, place.key, error.what(), error.kind());
  }
}

// The key, or the component's name, or the section: whichever was written.
Place place_of(const RunConfig& config, const std::string& section, const std::string& key) {
  const Json& component = config.resolved.at(section);
  const bool there = component.is_object() && component.contains(key) && !component.at(key).is_null();
  const std::string path = there ? section + "." + key : section;
  return {mark_of(config.resolved, path), path};
}

class LocatedDataset : public Dataset {
 public:
  LocatedDataset(DatasetPtr inner, Place place) : inner_(std::move(inner)), place_(std::move(place)) {}
  Schema schema() const override { return inner_->schema(); }
  int64_t size(Split split) const override { return inner_->size(split); }
  int64_t instances_per_row() const override { return inner_->instances_per_row(); }
  int64_t tokens_per_row() const override { return inner_->tokens_per_row(); }
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
  const Place data = place_of(config, "data", "path");
  parts.data = std::make_shared<LocatedDataset>(
      at_place(data, [&] { return registry.datasets.make(config.data.name, config.data.options, config.seed); }), data);
  const std::vector<Options> transforms = config.data.options.sections("transforms");
  for (size_t i = 0; i < transforms.size(); ++i) {
    const std::string key = str("data.transforms.", i);
    const Place place{mark_of(config.resolved, key), key};
    parts.transforms.push_back(std::make_shared<LocatedTransform>(
        at_place(place, [&] { return registry.transforms.make(transforms[i].text("name"), transforms[i]); }), place));
  }
  const Place model = place_of(config, "model", "name");
  parts.model = at_place(
      model, [&] { return registry.models.make(config.model.name, config.model.options, parts.data->schema()); });
  const bool own = config.loss.name.empty();
  const std::string name = own ? parts.model->default_loss() : config.loss.name;
  const Place loss = own ? model : place_of(config, "loss", "name");
  parts.loss = std::make_shared<LocatedLoss>(
      at_place(loss, [&] { return registry.losses.make(name, config.loss.options); }), loss);
  try_transforms(parts, config.seed);
  return parts;
}

}  // namespace convoy
