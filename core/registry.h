// Registry: from a name in a configuration to the class that serves it, with LibTorch. Filled by each folder's
// registry.cpp and by plugins; passed in, never global.
// Threads: filled before the ranks start, const after.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/config/run_config.h"
#include "core/context.h"
#include "core/control/call_notes.h"
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "core/strategy.h"

namespace convoy {

// A wait that takes long, as it is told to whoever watches the job.
struct LateCall {
  std::string group;         // label, as in RankCall
  int64_t number = 0;        // of the call in the group; 0 for sends and receives, which are not numbered
  std::string call;          // "all_reduce 'bucket 2' float32[1024] sum"
  std::vector<int> members;  // ranks of the job that take part
  double seconds = 0;        // waited so far
  double limit = 0;
  bool over = false;  // the limit has passed
};

// How ranks make sure that they call the same collectives: name, operation, shape, dtype, reduction, root and counts,
// compared over the control channel. The first calls of each group are handed to the transport only once all ranks are
// known to call alike; of the later ones it is found out soon after.
enum class CallChecks { none, sampled, all };

// What a backend is given to build the group of all ranks of a job.
struct BackendRequest {
  int rank = 0;
  int size = 1;
  at::Device device{at::kCPU};
  std::shared_ptr<Channel> channel;              // rendezvous and abort
  std::string job;                               // unique per attempt: prefix of keys
  std::string address;                           // of this host's interface for data, numeric; "" : chosen
  std::chrono::milliseconds timeout{600000};     // C, of each operation
  std::chrono::milliseconds rendezvous{300000};  // R
  // Told the name of the collective when a wait begins to block, and "" when it ends; from any thread, must not block.
  std::function<void(const char* name)> waiting;
  std::shared_ptr<CallNotes> notes;  // get every collective; may be null
  CallChecks checks = CallChecks::sampled;
  // Told, in the waiting thread, when half of a time limit has passed, and all of it. The latter call may take its time to
  // have the job end with the right cause, and throws that; where it returns, the wait throws what it knows. Null: the
  // backend says by itself what it knows.
  std::function<void(const LateCall&)> late;
};

// Factories of one kind. `kind` is a word for messages: "model".
// Failure: Error(config) for a name that is taken, an empty factory, and a factory that returns nothing.
template <class T, class... Arguments>
class Factories {
 public:
  using Factory = std::function<T(Arguments...)>;
  explicit Factories(std::string kind) : kind_(std::move(kind)) {}
  void add(const std::string& name, Factory factory) {
    if (!factory) throw Error(Failure::config, str("adds an empty factory for the ", kind_, " '", name, "'"));
    if (!factories_.emplace(name, std::move(factory)).second)
      throw Error(Failure::config,
                  str("adds a factory for the ", kind_, " '", name, "', which exists already; choose another name"));
  }
  bool has(const std::string& name) const { return factories_.count(name) != 0; }
  T make(const std::string& name, Arguments... arguments) const {
    auto found = factories_.find(name);
    CONVOY_CHECK(found != factories_.end(), "no factory for the ", kind_, " '", name,
                 "': catalogue and registry differ");
    T made = found->second(arguments...);
    if (!made)
      throw Error(Failure::config,
                  str("the factory of the ", kind_, " '", name, "' returned null; it must return an object or throw"));
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
  Factories<std::shared_ptr<const LossFunction>, const Options&> losses{"loss"};
  Factories<std::shared_ptr<const Dataset>, const Options&, uint64_t /* seed */> datasets{"data"};
  Factories<std::shared_ptr<const Transform>, const Options&> transforms{"transform"};
  Factories<std::unique_ptr<Strategy>, const Options&> strategies{"strategy"};
  Factories<CommunicatorPtr, const BackendRequest&> backends{"backend"};
  // What a plugin adds to the catalogues, so that its options are checked like all others.
  Catalogues catalogues;
  std::vector<std::string> plugins;  // files that were loaded
};

}  // namespace convoy
