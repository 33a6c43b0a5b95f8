#include "api/components.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <string>

#include "api/crash.h"
#include "core/base/error.h"
#include "core/config/node.h"
#include "core/config/option_reader.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/model.h"
#include "core/model_interface.h"

namespace convoy {
namespace {

// True for errors of the user's input: mistakes in the configuration, missing or damaged files. Only these get a key.
bool is_input_error(Failure kind) {
  return kind == Failure::config || kind == Failure::io || kind == Failure::corrupt_data;
}

// Reports errors of a component at the option that the message names, else at `fallback`.
struct ConfigLocation {
  std::shared_ptr<const Json> resolved;
  std::string section;   // "data", "data.transforms.1"
  std::string fallback;  // key path
};

// Collects the options below `path` by key path.
void flatten(const Json& values, const std::string& path, std::map<std::string, Json>& into) {
  for (const auto& [key, value] : values.items()) {
    const std::string below = path + "." + key;
    into[below] = value;
    if (value.is_object()) flatten(value, below, into);
  }
}

// Position of the key in the message; npos if it does not name the key, or only a longer one.
size_t position_of(const std::string& key, const std::string& message) {
  const size_t at = message.find(key);
  if (at == std::string::npos) return at;
  const char next = at + key.size() < message.size() ? message[at + key.size()] : ' ';
  const bool longer = std::islower(static_cast<unsigned char>(next)) != 0 || next == '_' || next == '.';
  return longer ? std::string::npos : at;
}

// Returns the option that the message names first ("data.length"): later ones are advice. Else returns the option of
// the file with which the message begins ("words.json: is no JSON").
std::string key_of(const ConfigLocation& location, const std::string& message) {
  const Json values = value_of_key(*location.resolved, location.section);
  if (!values.is_object()) return location.fallback;
  std::map<std::string, Json> options;
  flatten(values, location.section, options);
  const auto first = std::min_element(options.begin(), options.end(), [&](const auto& one, const auto& other) {
    return position_of(one.first, message) < position_of(other.first, message);
  });
  if (first != options.end() && position_of(first->first, message) != std::string::npos) return first->first;
  for (const auto& [key, value] : options)
    if (value.is_string() && !value.get_ref<const std::string&>().empty() &&
        message.rfind(value.get<std::string>() + ":", 0) == 0)
      return key;
  return location.fallback;
}

template <class Action>
auto with_location(const ConfigLocation& location, const Action& action) {
  try {
    return action();
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    if (!is_input_error(error.kind())) throw;
    const std::string key = key_of(location, error.what());
    std::string reason = error.what();
    if (reason.rfind(key + ": ", 0) == 0) reason.erase(0, key.size() + 2);
    throw ConfigError(location_of(*location.resolved, key), key, reason, error.kind());
  }
}

// Returns the location for errors without a key: `section.key` if the section has it, else the section.
ConfigLocation config_location(const std::shared_ptr<const Json>& resolved, const std::string& section,
                               const std::string& key) {
  const Json& component = resolved->at(section);
  const bool there = component.is_object() && component.contains(key) && !component.at(key).is_null();
  return {resolved, section, there ? section + "." + key : section};
}

// Calls code of a component, which may come from a plugin. `note` names it in messages and crash reports.
template <class Action>
auto call_component(const ConfigLocation& location, const CrashNote& note, const Action& action) {
  const CrashScope here(note);
  try {
    return with_location(location, action);
  } catch (const Error&) {
    throw;
  } catch (...) {
    const TranslatedException failure = translate_exception(Failure::training);
    throw ConfigError(location_of(*location.resolved, location.fallback), location.fallback,
                      str(note.text(), ", threw: ", failure.message), failure.kind);
  }
}

// Constructs a component.
template <class Action>
auto construct(const ConfigLocation& location, const std::string& what, const Action& action) {
  return call_component(location, CrashNote(what + ", its constructor"), action);
}

// Names are parts of lines of messages.
void check_printable(const std::string& what, const std::string& name) {
  if (printable(name) != name)
    throw Error(Failure::config, "names a ", what, " ", shown(name), "; a name has no control characters");
}

class CheckedDataset : public Dataset {
  template <class Action>
  auto call(const char* method, const Action& action) const {
    return call_component(location_, CrashNote(str("data set ", name_, ", its ", method)), action);
  }

 public:
  CheckedDataset(DatasetPtr inner, ConfigLocation location, const std::string& name)
      : inner_(std::move(inner)),
        location_(std::move(location)),
        name_(name),
        gather_note_("data set " + name + ", its gather") {
    call("size", [&] {
      if (inner_->size(Split::train) < 1) throw Error(Failure::config, "has no rows to train on");
      if (inner_->instances_per_row() < 1)
        throw Error(Failure::config, "declares ", inner_->instances_per_row(), " training instances per row");
    });
    for (const auto& [field, properties] : schema().fields) check_sizes(field, properties);
  }
  Schema schema() const override {
    return call("schema", [&] { return inner_->schema(); });
  }
  int64_t size(Split split) const override { return inner_->size(split); }
  int64_t instances_per_row() const override { return inner_->instances_per_row(); }
  int64_t tokens_per_row() const override { return inner_->tokens_per_row(); }
  bool gathers_from_memory() const override { return inner_->gathers_from_memory(); }
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override {
    return call_component(location_, gather_note_, [&] {
      Batch batch = inner_->gather(split, indices, epoch, buffers);
      check_gathered(batch, indices.numel());
      return batch;
    });
  }
  const Interactions* interactions() const override { return inner_->interactions(); }
  const PreparedInteractions* prepared_interactions() const override { return inner_->prepared_interactions(); }
  // Computed once: a fingerprint may read all files.
  DataContents contents() const override {
    std::call_once(hashed_, [this] { contents_ = call("contents", [&] { return inner_->contents(); }); });
    return contents_;
  }
  DatasetPtr numbered_as(const DataContents& stored) const override {
    const DatasetPtr made = call("numbered_as", [&] { return inner_->numbered_as(stored); });
    return made ? std::make_shared<CheckedDataset>(made, location_, name_) : nullptr;
  }

 private:
  // Models compute the sizes of their layers from these numbers, so products of a few of them must fit into 64 bits.
  void check_sizes(const std::string& field, const Field& properties) const {
    constexpr int64_t most = int64_t{1} << 40;
    call("schema", [&] {
      check_printable("field", field);
      int64_t elements = 1;
      for (const int64_t size : properties.shape) {
        if (size < 0 || size > most || __builtin_mul_overflow(elements, size, &elements) || elements > most)
          throw Error(Failure::config, "declares field '", field, "' of shape ", at::IntArrayRef(properties.shape),
                      "; a row of a field has at most 2^40 elements");
      }
      if (properties.cardinality < 0 || properties.cardinality > most)
        throw Error(Failure::config, "declares ", properties.cardinality, " ids or classes of field '", field,
                    "'; it must be from 0 to 2^40");
    });
  }
  static void check_gathered(const Batch& batch, int64_t rows) {
    if (batch.rows != rows)
      throw Error(Failure::config, "gathered a batch of ", batch.rows, " rows, for ", rows,
                  " indices; return one row for each index");
    for (const auto& [name, tensor] : batch.tensors)
      if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) != rows)
        throw Error(Failure::config, "gathered a field '", name, "' that is ",
                    tensor.defined() ? convoy::str("of shape ", tensor.sizes()) : "undefined", ", for ", rows,
                    " indices; dimension 0 is rows");
  }

  DatasetPtr inner_;
  ConfigLocation location_;
  const std::string name_;
  CrashNote gather_note_;
  mutable std::once_flag hashed_;
  mutable DataContents contents_;
};

class CheckedTransform : public Transform {
 public:
  CheckedTransform(std::shared_ptr<const Transform> inner, ConfigLocation location, const std::string& name)
      : inner_(std::move(inner)), location_(std::move(location)), apply_note_("transform " + name + ", its apply") {}
  void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const override {
    call_component(location_, apply_note_, [&] { inner_->apply(batch, indices, seed, epoch); });
  }
  bool evaluation_too() const override { return inner_->evaluation_too(); }

 private:
  std::shared_ptr<const Transform> inner_;
  ConfigLocation location_;
  CrashNote apply_note_;
};

class CheckedLoss : public LossFunction {
 public:
  CheckedLoss(LossPtr inner, ConfigLocation location) : inner_(std::move(inner)), location_(std::move(location)) {}
  Loss operator()(const Examples& examples, Layers& layers) const override {
    return with_location(location_, [&] { return (*inner_)(examples, layers); });
  }

 private:
  LossPtr inner_;
  ConfigLocation location_;
};

// Errors of the constructors of blocks name the block.
class CheckedModel : public WrappedModel {
 public:
  CheckedModel(ModelPtr inner, ConfigLocation location, const std::string& name)
      : WrappedModel(std::move(inner)),
        location_(std::move(location)),
        name_note_("model " + name + ", its block_name"),
        loss_note_("model " + name + ", its default_loss") {
    call_component(location_, CrashNote("model " + name + ", its blocks"), [&] {
      constexpr int64_t most = 1 << 20;
      blocks_ = wrapped().blocks();
      if (blocks_ < 1) throw Error(Failure::config, "the model has ", blocks_, " blocks");
      if (blocks_ > most)
        throw Error(Failure::config, "the model has ", blocks_, " blocks (Model::blocks); the maximum is ", most,
                    "; put more layers into each block");
    });
  }
  int64_t blocks() const override { return blocks_; }
  std::string block_name(int64_t index) const override {
    return call_component(location_, name_note_, [&] {
      std::string name = wrapped().block_name(index);
      check_printable("block", name);
      return name;
    });
  }
  std::string default_loss() const override {
    return call_component(location_, loss_note_, [&] { return wrapped().default_loss(); });
  }
  BlockPtr block(int64_t index, Layers& layers) const override {
    const std::string what = str("block ", index, " (", block_name(index), ")");
    return construct(location_, what, [&] {
      BlockPtr block = wrapped().block(index, layers);
      if (!block) throw Error(Failure::config, what + ": the model returned null for it");
      return block;
    });
  }

 private:
  ConfigLocation location_;
  CrashNote name_note_, loss_note_;
  int64_t blocks_ = 0;
};

// Returns the options of the model's default loss: defaults, as if the configuration named it.
Options default_loss_options(const RunConfig& config, const Catalogues& catalogues, const std::string& name,
                             ConfigLocation model) {
  const SourceLocation location = location_of(*model.resolved, model.fallback);
  const Entry* entry = catalogues.find("loss", name);
  if (entry == nullptr) {
    const std::vector<std::string> valid = catalogues.names("loss");
    const std::string near = nearest(name, valid);
    const std::string advice = near.empty() ? "valid are " + join(valid, ", ") + "." : "did you mean " + near + "?";
    throw ConfigError(location, model.fallback, "model ", config.model.name, ": Model::default_loss returns ",
                      name.empty() ? std::string("no name; ") : "'" + name + "', which does not exist; ", advice,
                      " Correct it, or set loss: {name: …}");
  }
  Json values = OptionReader(catalogues, {}).read_fields(entry->options, map_node(location), "loss");
  values["name"] = name;
  Options options(values, {{"", location}}, "loss");
  if (entry->check) entry->check(options);
  return options;
}

void try_transforms(const Components& components, uint64_t seed) {
  if (components.transforms.empty() || components.data->size(Split::train) == 0) return;
  const at::Tensor first = at::zeros({1}, at::kLong);
  Batch row = components.data->gather_once(Split::train, first, 0);
  for (const auto& transform : components.transforms) transform->apply(row, first, seed, 0);
}

}  // namespace

Components make_components(const RunConfig& config, const Registry& registry,
                           const std::function<DatasetPtr(const DatasetPtr&)>& check_data) {
  Components components;
  const auto resolved = std::make_shared<const Json>(config.resolved);
  const ConfigLocation data = config_location(resolved, "data", "path");
  components.data = std::make_shared<CheckedDataset>(construct(data, "data set " + config.data.name,
                                                               [&] {
                                                                 return registry.datasets.make(
                                                                     config.data.name, config.data.options,
                                                                     data_seed(config.data.options, config.seed));
                                                               }),
                                                     data, config.data.name);
  if (check_data) components.data = check_data(components.data);
  const std::vector<Options> transforms = config.data.options.sections("transforms");
  for (size_t i = 0; i < transforms.size(); ++i) {
    const std::string key = str("data.transforms.", i), name = transforms[i].text("name");
    const ConfigLocation location{resolved, key, key};
    components.transforms.push_back(std::make_shared<CheckedTransform>(
        construct(location, "transform " + name, [&] { return registry.transforms.make(name, transforms[i]); }),
        location, name));
  }
  const ConfigLocation model = config_location(resolved, "model", "name");
  components.model = std::make_shared<CheckedModel>(
      construct(
          model, "model " + config.model.name,
          [&] { return registry.models.make(config.model.name, config.model.options, components.data->schema()); }),
      model, config.model.name);
  const bool use_default = config.loss.name.empty();
  const std::string name = use_default ? components.model->default_loss() : config.loss.name;
  const Options options =
      use_default ? default_loss_options(config, registry.catalogues, name, model) : config.loss.options;
  const ConfigLocation loss = use_default ? model : config_location(resolved, "loss", "name");
  components.loss = std::make_shared<CheckedLoss>(
      construct(loss, "loss " + name, [&] { return registry.losses.make(name, options); }), loss);
  try_transforms(components, data_seed(config.data.options, config.seed));
  return components;
}

}  // namespace convoy
