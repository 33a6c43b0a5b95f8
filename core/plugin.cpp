// Loads a plugin: checks its version, calls its registration, checks what it added.
#include "core/plugin.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "core/config/node.h"
#include "core/config/option_reader.h"
#include "core/files/files.h"

namespace convoy {
namespace {

[[noreturn]] void reject(const std::string& path, const std::string& reason) {
  throw Error(Failure::config, "plugin ", path, ": ", reason);
}

template <class Function>
Function* symbol(void* library, const std::string& path, const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(library, name));
  if (found == nullptr) reject(path, str("has no ", name, "; end it with CONVOY_PLUGIN(registry) { … }"));
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

// Names in `now` that `before` lacks. The old names must come first, unchanged.
std::vector<std::string> added(const std::string& path, const std::string& kind, const Names& before,
                               const std::vector<std::string>& now) {
  const auto found = before.find(kind);
  const std::vector<std::string> old = found == before.end() ? std::vector<std::string>() : found->second;
  if (now.size() < old.size() || !std::equal(old.begin(), old.end(), now.begin()))
    reject(path, str("changes existing entries of the kind ", kind, "; only append entries, by push_back"));
  return {now.begin() + static_cast<int64_t>(old.size()), now.end()};
}

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

// Options of every component of the kind, in addition to the component's.
std::vector<std::string> reserved_names(const std::string& kind) {
  std::vector<std::string> names{"name"};
  if (kind == "model") names.emplace_back("plugin");
  for (const Option& option : run_options())
    if (option.catalogue == kind)
      for (const Option& common : option.options) names.push_back(common.name);
  return names;
}

// Checks the options of a plugin at load time, before a user leaves one of them out.
void check_options(const std::vector<Option>& options, std::vector<std::string> taken, const Catalogues& catalogues) {
  for (Option option : options) {
    if (!is_name(option.name))
      throw Error(Failure::config, "an option is named ", shown(option.name), "; use letters, digits, '.', '_', '-'");
    if (std::find(taken.begin(), taken.end(), option.name) != taken.end())
      throw Error(Failure::config, "the option '", option.name, "' is described twice, or is one of convoy's own");
    taken.push_back(option.name);
    const bool item = option.type == OptionType::list || option.type == OptionType::map;
    if (item && option.options.size() != 1)
      throw Error(Failure::config, "the option '", option.name, "' must describe exactly one item");
    if (option.type == OptionType::choice && option.choices.empty())
      throw Error(Failure::config, "the option '", option.name, "' has no choices");
    if (option.type == OptionType::section) check_options(option.options, {}, catalogues);
    option.required = false;
    if (!option.fallback.json().is_null()) OptionReader(catalogues, {}).read_fields({option}, map_node({}), "");
  }
}

// Names of factories and entries go into messages.
void check_names(const std::string& path, const Names& before, const Names& now, const std::string& what) {
  for (const auto& [kind, names] : now) {
    const auto found = before.find(kind);
    for (const std::string& name : names)
      if (!is_name(name) && (found == before.end() || !std::count(found->second.begin(), found->second.end(), name)))
        reject(path, str(what, " ", printable(kind), " ", shown(name), "; use letters, digits, '.', '_', '-'"));
  }
}

// Each new entry must have a factory, and each new factory an entry. Otherwise a configuration could not use the name,
// or could not build its component.
void check_added(const std::string& path, const Registry& registry, const Names& factories, const Names& entries) {
  const Names now = entries_of(registry);
  check_names(path, entries, now, "describes a");
  check_names(path, factories, factories_of(registry), "adds a factory for a");
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

// Adds the path of the library to every exception of its code.
void call_registration(const std::string& path, void (*registration)(Registry&), Registry& registry) {
  std::string thrown;
  try {
    return registration(registry);
  } catch (const Error& error) {
    reject(path, printable(error.what()));
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
  const std::string file = trusted_plugin_file(path);  // dlopen gets the path that was checked
  if (std::find(registry.plugins.begin(), registry.plugins.end(), file) != registry.plugins.end())
    reject(path, "is listed twice; list it once, under model.plugin or plugins");

  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    reject(path, str("cannot be loaded: ", dlerror(), "; was it built against this build (", CONVOY_PLUGIN_BUILD,
                     "; -Dconvoy_DIR=the build folder)?"));
  const char* const built_for = symbol<const char*()>(library, path, "convoy_plugin_version")();
  if (built_for == nullptr)
    reject(path,
           "its convoy_plugin_version returns null; remove it, and end the plugin with CONVOY_PLUGIN(registry) { … }");
  const std::string version = built_for;
  if (version != CONVOY_PLUGIN_BUILD)
    reject(path, str("was built for ", printable(version), ", but this is ", CONVOY_PLUGIN_BUILD,
                     "; build it again against this convoy (-Dconvoy_DIR=the build folder)"));
  const Names factories = factories_of(registry), entries = entries_of(registry);
  call_registration(path, symbol<void(Registry&)>(library, path, "convoy_plugin_register"), registry);
  check_added(path, registry, factories, entries);
  registry.plugins.push_back(file);
}

}  // namespace convoy
