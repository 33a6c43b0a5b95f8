// Registry: maps a name of the configuration to the factory of its class. Each folder's registry.cpp and the plugins
// fill it. It is passed in, never global. Needs LibTorch.
// Threads: filled before the ranks start, const afterwards.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/config/run_config.h"
#include "core/context.h"
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "core/rank_state/position.h"
#include "core/strategy.h"

namespace convoy {

// A collective that takes longer than half of its limit, as reported to the supervisor.
struct SlowCollective {
  std::string group;         // label, as in RankCall
  int64_t number = 0;        // of the call in the group; 0 for sends and receives, which have no number
  std::string call;          // "all_reduce 'bucket 2' float32[1024] sum"
  std::vector<int> members;  // ranks of the job that take part
  double seconds = 0;        // waited so far
  double limit = 0;
  bool over = false;  // the limit has passed
};
CONVOY_JSON(SlowCollective, group, number, call, members, seconds, limit, over)

// Collective check: ranks compare name, operation, shape, dtype, reduction, root and counts over the control channel.
// The transport gets the first calls of each group only after the check. Later calls are checked shortly afterwards.
enum class CollectiveChecks { none, sampled, all };

// Inputs of a backend for the world group.
struct BackendRequest {
  int rank = 0;
  int size = 1;
  at::Device device{at::kCPU};
  std::shared_ptr<Channel> channel;              // rendezvous and abort
  std::string job;                               // unique per attempt: prefix of keys
  std::string address;                           // numeric address of this host's interface for data; "": chosen
  std::chrono::milliseconds timeout{600000};     // time limit of one operation (launch.collective)
  std::chrono::milliseconds rendezvous{300000};  // time limit of the rendezvous (launch.rendezvous)
  // Called with the name of the collective when a wait begins to block, and with "" when it ends. Called from any
  // thread; must not block.
  std::function<void(const char* name)> waiting;
  std::shared_ptr<CollectiveRecords> notes;  // get every collective; may be null
  CollectiveChecks checks = CollectiveChecks::sampled;
  // Called in the waiting thread when half of the time limit has passed, and again at the limit. The second call may
  // block while the job finds the cause of the stall; it throws that cause. If it returns, the wait throws its own
  // error. Null: the backend reports by itself.
  std::function<void(const SlowCollective&)> late;
};

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

// Adds the data sets, transforms and losses of core.
void register_core(Registry& registry);
}  // namespace convoy
