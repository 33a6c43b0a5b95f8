// Registry: maps a name of the configuration to the factory of its class. Each folder's registry.cpp and the plugins
// fill it. It is passed in, never global. Needs LibTorch.
// Threads: filled before the ranks start, const afterwards.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/communicator.h"
#include "core/data/dataset.h"
#include "core/model_interface.h"

namespace convoy {

class Strategy;         // core/strategy.h
struct BackendRequest;  // core/backend.h

// Factories of one kind. `kind` appears in messages: "model".
// Errors: Error(config) for a name that exists already, an empty factory, and a factory that returns null.
template <class T, class... Arguments>
class Factories {
 public:
  using Factory = std::function<T(Arguments...)>;
  explicit Factories(std::string kind) : kind_(std::move(kind)) {}
  void add(const std::string& name, Factory factory) {
    if (!factory) throw Error(Failure::config, "adds an empty factory for the ", kind_, " '", name, "'");
    if (!factories_.emplace(name, std::move(factory)).second)
      throw Error(Failure::config, "adds a factory for the ", kind_, " '", name,
                  "', which exists already; choose another name");
  }
  bool has(const std::string& name) const { return factories_.count(name) != 0; }
  T make(const std::string& name, Arguments... arguments) const {
    auto found = factories_.find(name);
    CONVOY_CHECK(found != factories_.end(), "no factory for the ", kind_, " '", name,
                 "': catalogue and registry differ");
    T made = found->second(arguments...);
    if (!made)
      throw Error(Failure::config, "the factory of the ", kind_, " '", name,
                  "' returned null; it must return an object or throw");
    return made;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : factories_) all.push_back(entry.first);
    return all;
  }

 private:
  std::string kind_;
  std::map<std::string, Factory> factories_;
};

struct Registry {
  Factories<ModelPtr, const Options&, const Schema&> models{"model"};
  Factories<LossPtr, const Options&> losses{"loss"};
  Factories<std::shared_ptr<const Dataset>, const Options&, uint64_t /* seed */> datasets{"data"};
  Factories<std::shared_ptr<const Transform>, const Options&> transforms{"transform"};
  Factories<std::unique_ptr<Strategy>, const Options&> strategies{"strategy"};
  Factories<CommunicatorPtr, const BackendRequest&> backends{"backend"};
  // Entries that plugins add to the catalogues, so that their options are checked like all others.
  Catalogues catalogues;
  std::vector<std::string> plugins;  // files of the loaded plugins
};

// Adds the data sets, transforms and losses of core. `few_rows`: as for make_synthetic.
void register_core(Registry& registry, bool few_rows = false);
}  // namespace convoy
