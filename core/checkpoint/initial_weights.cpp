#include "core/checkpoint/initial_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/checkpoint/save_coordination.h"

namespace convoy {
namespace {

constexpr size_t most_names_shown = 5;

std::string first_of(const std::vector<std::string>& names) {
  const std::vector<std::string> shown(names.begin(), names.begin() + std::min(names.size(), most_names_shown));
  return join(shown, ", ") +
         (names.size() > most_names_shown ? str(" and ", names.size() - most_names_shown, " more") : "");
}

// Tensors of a source by the names that they have after renaming.
class RenamedTensors {
 public:
  RenamedTensors(const WeightSource& source, const WeightNames& names, const InitFrom& wanted) : names_(names) {
    for (const SourceTensor& tensor : source.tensors()) {
      const std::string name = wanted.renamed(tensor.name);
      if (name.empty()) continue;
      const auto [there, first] = tensors_.emplace(name, &tensor);
      if (!first)
        throw Error(Failure::config, "rename gives ", there->second->name, " and ", tensor.name, " the same name, ",
                    name);
    }
  }

  // A file of transformers may lack the prefix of its names. nullptr: there is no such tensor.
  const SourceTensor* find(const std::string& name) const {
    auto found = tensors_.find(name);
    if (found == tensors_.end() && !names_.prefix.empty() && begins_with(name, names_.prefix))
      found = tensors_.find(name.substr(names_.prefix.size()));
    return found == tensors_.end() ? nullptr : found->second;
  }
  const std::map<std::string, const SourceTensor*>& all() const { return tensors_; }

 private:
  const WeightNames& names_;
  std::map<std::string, const SourceTensor*> tensors_;
};

// Returns the canonical name `ours` if the source has it, else the line of the table `names`.
WeightName name_in(const RenamedTensors& tensors, const WeightNames& names, bool canonical, const std::string& ours) {
  if (canonical || tensors.find(ours) != nullptr) return {ours, {ours}};
  return names.of(ours);
}

void check_tensor(const SourceTensor& tensor, const std::vector<int64_t>& needed, const WeightName& name,
                  const std::vector<int64_t>& shape) {
  if (tensor.shape != needed)
    throw Error(Failure::config, tensor.name, " of ", tensor.file, " has shape ", shape_text(tensor.shape), ", but ",
                name.ours, " of this model has ", shape_text(shape),
                needed == shape ? "" : str(", which takes ", shape_text(needed)),
                "; give the model the sizes of the file, or leave the tensor out: init_from: {path: …, strict: false, "
                "rename: {\"^",
                tensor.name, "$\": \"\"}}");
  if (!at::isFloatingType(tensor.dtype))
    throw Error(Failure::config, tensor.name, " of ", tensor.file, " has integers, but ", name.ours,
                " of this model has real numbers");
}

std::vector<std::string> idle_renames(const WeightSource& source, const InitFrom& wanted) {
  std::vector<std::string> names, idle;
  for (const SourceTensor& tensor : source.tensors()) names.push_back(tensor.name);
  for (const auto& [pattern, replacement] : wanted.rename) {
    const NamePattern& searched = pattern;
    if (std::none_of(names.begin(), names.end(), [&](const auto& name) { return searched.found_in(name); }))
      idle.push_back(pattern.text());
    for (std::string& name : names) name = pattern.replaced(name, replacement);
  }
  return idle;
}

}  // namespace

WeightMatches match_weights(const WeightSource& source, const WeightNames& names, const InitFrom& wanted,
                            const std::map<std::string, std::vector<int64_t>>& model) {
  const RenamedTensors tensors(source, names, wanted);
  WeightMatches matches;
  std::set<const SourceTensor*> used;
  for (const auto& [ours, shape] : model) {
    const WeightName name = name_in(tensors, names, source.canonical(), ours);
    const std::vector<std::vector<int64_t>> needed = stored_shapes(name, shape);
    WeightMatch match{name, {}};
    for (size_t part = 0; part < name.theirs.size(); ++part) {
      const SourceTensor* tensor = tensors.find(name.theirs[part]);
      if (tensor == nullptr) break;
      check_tensor(*tensor, needed[part], name, shape);
      match.stored.push_back(tensor->name);
      used.insert(tensor);
    }
    if (match.stored.size() < name.theirs.size())
      matches.missing.push_back(ours);
    else
      matches.found.emplace(ours, std::move(match));
  }
  for (const auto& [name, tensor] : tensors.all())
    if (used.count(tensor) == 0 && !names.ignores(name)) matches.unused.push_back(tensor->name);
  matches.idle_renames = idle_renames(source, wanted);
  return matches;
}

namespace {

// Groups names that differ in numbers only: "12 × blocks.#.up.weight".
class Groups {
 public:
  void add(const std::string& name, const std::string& rest) {
    const std::string key = with_numbers_out(name).first + rest;
    auto [found, first] = counts_.emplace(key, 0);
    if (found->second++ == 0) {
      order_.push_back(key);
      single_[key] = name;
    }
  }
  std::vector<std::string> lines(const std::function<std::string(const std::string& name)>& rest) const {
    std::vector<std::string> lines;
    for (const std::string& key : order_) {
      const std::string& name = single_.at(key);
      const int64_t count = counts_.at(key);
      std::string line = name + rest(name);
      if (count > 1) line = str(count, " × ", with_numbers_out(name).first, with_numbers_out(rest(name)).first);
      lines.push_back(std::move(line));
    }
    return lines;
  }

 private:
  std::vector<std::string> order_;
  std::map<std::string, int64_t> counts_;
  std::map<std::string, std::string> single_;
};

}  // namespace

std::vector<std::string> match_lines(const WeightMatches& matches, const std::string& path) {
  std::vector<std::string> lines{str("initial values: ", matches.found.size(), " tensors from ", path)};
  const auto source_text = [&](const std::string& ours) {
    const WeightMatch& match = matches.found.at(ours);
    return " ← " + join(match.stored, " + ") + (match.name.transposed ? " transposed" : "");
  };
  Groups found, random, unused;
  for (const auto& [ours, match] : matches.found) found.add(ours, with_numbers_out(source_text(ours)).first);
  for (const std::string& ours : matches.missing) random.add(ours, "");
  for (const std::string& name : matches.unused) unused.add(name, "");
  const auto nothing = [](const std::string&) { return std::string(); };
  for (const std::string& line : found.lines(source_text)) lines.push_back("  " + line);
  for (const std::string& line : random.lines(nothing)) lines.push_back("  stays random: " + line);
  for (const std::string& line : unused.lines(nothing)) lines.push_back("  not used: " + line);
  for (const std::string& pattern : matches.idle_renames) lines.push_back("  rename matches no name: " + pattern);
  return lines;
}

namespace {

bool takes_values(const StateEntry& entry) {
  // The outer step of DiLoCo starts from the same values.
  const bool copy = entry.kind == StateKind::moment && entry.moment == "outer_value";
  return copy || entry.kind == StateKind::parameter || entry.kind == StateKind::buffer;
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

// Compares config.json with the options of the model. Shapes do not show other numbers of heads or another epsilon.
void check_config(const WeightSource& source, const WeightNames& names, const Context& context, bool strict) {
  const Json file = source.config();
  if (!names.config || !file.is_object() || !file.contains("model_type")) return;
  for (const auto& [option, difference] : config_differences(*names.config, file)) {
    const std::string key = option.empty() ? "model.init_from" : "model." + option;
    const std::string reason = str("config.json in ", source.path(), ": ", difference);
    if (strict) throw ConfigError(location_of(context.config.resolved, key), key, reason);
    log::warning(str("model.init_from: ", reason));
  }
}

void check_complete(const WeightMatches& matches, const std::string& path) {
  if (matches.missing.empty() && matches.unused.empty()) return;
  std::string reason = str(path, " does not have the tensors of this model");
  if (!matches.missing.empty()) reason += str("; it lacks ", first_of(matches.missing));
  if (!matches.unused.empty()) reason += str("; it also has ", first_of(matches.unused));
  if (!matches.idle_renames.empty()) reason += str("; rename matches no name with ", first_of(matches.idle_renames));
  throw Error(Failure::config, reason,
              "; give the model that wrote it, change names by init_from.rename, or allow the difference: init_from: "
              "{path: …, strict: false}");
}

void write_values(WeightSource& source, const WeightMatch& match, const StateEntry& entry) {
  const at::Tensor target = entry.tensor.detach();
  const at::Tensor out = target.is_contiguous() ? target : at::empty(target.sizes(), target.options());
  source.read(match.name, match.stored, entry.piece, out);
  if (!target.is_contiguous()) target.copy_(out);
}

// Adds the key of the configuration to an error of the source.
template <class Action>
auto at_init_from(const Context& context, const Action& action) {
  try {
    return action();
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    const std::string key = "model.init_from";
    if (error.kind() != Failure::config) throw;
    throw ConfigError(location_of(context.config.resolved, key), key, error.what());
  }
}

}  // namespace

void load_initial_weights(const Context& context, Strategy& strategy, const WeightNames& names) {
  const std::optional<InitFrom> wanted = init_from(context.config.model.options);
  if (!wanted) return;
  at::NoGradGuard no_grad;
  SaveCoordination coordination(context, "initial weights");
  std::vector<StateEntry> entries;
  Shapes shapes;
  strategy.visit_state([&](const StateEntry& entry) {
    if (!takes_values(entry)) return;
    entries.push_back(entry);
    shapes[entry.name] = entry.piece.global_shape;
  });
  const std::vector<std::string> all = coordination.to_first("tensors", Json(shapes).dump());
  const auto compare = [&] {
    at_init_from(context, [&] {
      Shapes model;
      for (const std::string& text : all)
        for (auto& [name, shape] : Json::parse(text).get<Shapes>()) model[name] = shape;
      const auto source = open_weights(wanted->path, true);
      check_config(*source, names, context, wanted->strict);
      const WeightMatches matches = match_weights(*source, names, *wanted, model);
      if (wanted->strict) check_complete(matches, wanted->path);
      if (matches.found.empty())
        throw Error(Failure::config, wanted->path, " has none of the model's tensors; it has ",
                    first_of(matches.unused));
      for (const std::string& line : match_lines(matches, wanted->path)) log::info(line);
    });
    return std::string();
  };
  try {
    coordination.on_first("compare", compare);
  } catch (const Error& error) {
    const bool refused = error.kind() != Failure::peer_lost && error.kind() != Failure::rendezvous &&
                         error.kind() != Failure::hang && error.kind() != Failure::disagreement;
    if (context.rank == 0 || !refused) throw;
    throw CommError(Failure::peer_lost, 0, "rank 0 refused the initial weights; its message has the reason");
  }
  coordination.on_all("fill", [&] {
    at_init_from(context, [&] {
      const auto source = open_weights(wanted->path, false);
      const WeightMatches matches = match_weights(*source, names, *wanted, shapes);
      for (const StateEntry& entry : entries)
        if (const auto match = matches.found.find(entry.name); match != matches.found.end())
          write_values(*source, match->second, entry);
    });
  });
  strategy.state_restored();
}

}  // namespace convoy
