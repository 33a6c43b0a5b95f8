// The version, the registration, and what it brought.
#include "core/plugin.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "core/config/option_reader.h"
#include "core/error.h"
#include "core/plugin_file.h"

namespace convoy {
namespace {

[[noreturn]] void reject(const std::string& path, const std::string& reason) {
  throw Error(Failure::config, str("plugin ", path, ": ", reason));
}

template <class Function>
Function* symbol(void* library, const std::string& path, const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(library, name));
  if (found == nullptr) reject(path, str("has no ", name, ": it has to end with CONVOY_PLUGIN(registry) { … }"));
  return found;
}

using Names = std::map<std::string, std::vector<std::string>>;  // by kind

Names factories_of(const Registry& registry) {
  return {{"model", registry.models.names()},        {"data", registry.datasets.names()},
          {"loss", registry.losses.names()},         {"transform", registry.transforms.names()},
          {"strategy", registry.strategies.names()}, {"backend", registry.backends.names()}};
}

Names entries_of(const Registry& registry) {
  Names names;
  for (const auto& kind : registry.catalogues.kinds) names[kind.first] = registry.catalogues.names(kind.first);
  return names;
}

const std::set<std::string>& open_kinds() {
  static const std::set<std::string> kinds{"model", "data", "loss", "transform"};
  return kinds;
}

// Names of `now` that `before` lacks. What was there must be there still, in front.
std::vector<std::string> added(const std::string& path, const std::string& kind, const Names& before,
                               const std::vector<std::string>& now) {
  const auto found = before.find(kind);
  const std::vector<std::string> old = found == before.end() ? std::vector<std::string>() : found->second;
  if (now.size() < old.size() || !std::equal(old.begin(), old.end(), now.begin()))
    reject(path, str("changes the entries of the kind ", kind, " that were there; only add to them, by push_back"));
  return {now.begin() + static_cast<int64_t>(old.size()), now.end()};
}

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

// Options that every component of the kind takes beside its own.
std::vector<std::string> reserved_names(const std::string& kind) {
  std::vector<std::string> names{"name"};
  if (kind == "model") names.emplace_back("plugin");
  for (const Option& option : run_options())
    if (option.catalogue == kind)
      for (const Option& common : option.options) names.push_back(common.name);
  return names;
}

// Checks an author's descriptions of options here, and not where a user first leaves an option out.
void check_options(const std::vector<Option>& options, std::vector<std::string> taken, const Catalogues& catalogues) {
  for (Option option : options) {
    if (!is_name(option.name))
      throw Error(Failure::config, str("an option is named '", option.name, "'; use letters, digits, '.', '_', '-'"));
    if (std::find(taken.begin(), taken.end(), option.name) != taken.end())
      throw Error(Failure::config, str("the option '", option.name, "' is described twice, or is one of convoy's own"));
    taken.push_back(option.name);
    const bool item = option.type == OptionType::list || option.type == OptionType::map;
    if (item && option.options.size() != 1)
      throw Error(Failure::config, str("the option '", option.name, "' must describe exactly one item"));
    if (option.type == OptionType::choice && option.choices.empty())
      throw Error(Failure::config, str("the option '", option.name, "' has no choices"));
    if (option.type == OptionType::section) check_options(option.options, {}, catalogues);
    option.required = false;
    if (!option.fallback.is_null()) OptionReader(catalogues, {}).read_fields({option}, map_node({}), "");
  }
}

// Every new entry has a factory and every new factory an entry: else a name could not be written, or not be made.
void check_brought(const std::string& path, const Registry& registry, const Names& factories, const Names& entries) {
  const Names now = entries_of(registry);
  for (const auto& [kind, names] : now) {
    const std::vector<std::string> fresh = added(path, kind, entries, names);
    if (!fresh.empty() && open_kinds().count(kind) == 0)
      reject(path, str("describes the ", kind, " '", fresh.front(),
                       "'; a plugin adds models, data sets, losses and transforms only"));
  }
  for (const auto& [kind, made] : factories_of(registry)) {
    const std::vector<std::string> listed = registry.catalogues.names(kind);
    for (const std::string& name : listed)
      if (std::count(listed.begin(), listed.end(), name) > 1)
        reject(path, str("describes the ", kind, " '", name, "', which exists already; choose another name"));
    const std::vector<std::string>& old = factories.at(kind);
    for (const std::string& name : made) {
      if (std::find(old.begin(), old.end(), name) != old.end()) continue;
      if (open_kinds().count(kind) == 0)
        reject(path, str("adds a factory for the ", kind, " '", name,
                         "'; a plugin adds models, data sets, losses and transforms only"));
      if (std::find(listed.begin(), listed.end(), name) == listed.end())
        reject(path, str("adds a factory for the ", kind, " '", name, "' and no entry in registry.catalogues.kinds[\"",
                         kind, "\"]"));
    }
    if (open_kinds().count(kind) == 0) continue;
    for (const std::string& name : added(path, kind, entries, listed)) {
      if (!is_name(name)) reject(path, str("names a ", kind, " '", name, "'; use letters, digits, '.', '_', '-'"));
      if (std::find(made.begin(), made.end(), name) == made.end())
        reject(path, str("describes the ", kind, " '", name, "' and adds no factory for it"));
      try {
        check_options(registry.catalogues.find(kind, name)->options, reserved_names(kind), registry.catalogues);
      } catch (const Error& error) {
        reject(path, str("describes the ", kind, " '", name, "' wrongly: ", error.what()));
      }
    }
  }
}

// Adds the library's name to every exception of its code.
void call_registration(const std::string& path, void (*registration)(Registry&), Registry& registry) {
  std::string thrown;
  try {
    return registration(registry);
  } catch (const Error& error) {
    reject(path, error.what());
  } catch (const c10::Error& error) {
    thrown = error.what_without_backtrace();
  } catch (const std::exception& error) {
    thrown = error.what();
  } catch (...) {
    thrown = "an exception that is no std::exception";
  }
  reject(path, str("its registration (CONVOY_PLUGIN) threw: ", thrown));
}

}  // namespace

void load_plugin(const std::string& path, Registry& registry) {
  const std::string file = trusted_plugin_file(path);  // what was checked is what dlopen sees
  if (std::find(registry.plugins.begin(), registry.plugins.end(), file) != registry.plugins.end())
    reject(path, "is named twice; once loads all that it brings (model.plugin or plugins)");

  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    reject(path, str("cannot be loaded: ", dlerror(), "; was it built against this build (", CONVOY_PLUGIN_BUILD,
                     "; -Dconvoy_DIR=the build folder)?"));
  const std::string version = symbol<const char*()>(library, path, "convoy_plugin_version")();
  if (version != CONVOY_PLUGIN_BUILD)
    reject(path, str("was built for ", version, ", and this is ", CONVOY_PLUGIN_BUILD,
                     "; build it again against this convoy (-Dconvoy_DIR=the build folder)"));
  const Names factories = factories_of(registry), entries = entries_of(registry);
  call_registration(path, symbol<void(Registry&)>(library, path, "convoy_plugin_register"), registry);
  check_brought(path, registry, factories, entries);
  registry.plugins.push_back(file);
}

}  // namespace convoy
