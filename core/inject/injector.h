// Injector: causes the faults of one rank (core/control/fault.h). The rank reports the points that it reaches; the
// injector decorates the rank's model, communicator and files if a fault needs it. Without such a fault it returns them
// unchanged, so that a run without faults has no cost.
//
// Call order: construct; decorate; then `reached` and `waiting` during the run. Threads: any. Ownership: decorators
// keep it alive, so create it as a shared_ptr. Each fault happens once; before it happens it is logged and posted to
// the channel.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/control/channel.h"
#include "core/control/fault.h"
#include "core/files/files.h"
#include "core/model_interface.h"
#include "core/rank_state/state_file.h"

namespace convoy {

struct InjectRequest {
  std::vector<std::string> faults;  // as written; all faults of the job
  int rank = 0;
  int size = 1;
  int attempt = 0;
  std::string host;
  std::shared_ptr<Channel> channel;
  std::shared_ptr<StateFile> state = {};  // may be null
};

class Injector : public std::enable_shared_from_this<Injector> {
 public:
  explicit Injector(const InjectRequest& request);
  ~Injector();  // warns of faults that did not happen

  bool idle() const { return faults_.empty(); }
  // The rank has joined the next membership of its job. Its faults keep the rank numbers of the first one.
  void joined(std::shared_ptr<Channel> channel, std::shared_ptr<StateFile> state) {
    request_.channel = std::move(channel);
    request_.state = std::move(state);
  }
  // Called by the rank's thread. May throw, pause, or not return.
  void reached(InjectPoint point, int64_t number);
  // Called by any thread when a wait for a collective begins.
  void waiting();

  ModelPtr decorate(ModelPtr model);
  CommunicatorPtr decorate(CommunicatorPtr group);
  FileSystem& decorate(FileSystem& files);

  // --- for the decorators ---
  // Called when a block runs forward in training. Returns true if its output must become NaN.
  bool forward(int64_t block);
  // Returns the property of the next collective that must differ; none: leave it unchanged.
  Fault::Detail next_mismatch();
  // True if this file operation must fail now with a full disk.
  bool must_fail(Fault::Detail call);
  // True if this rank's model must have a parameter that other ranks lack.
  bool has_other_parameters();

 private:
  enum class State { waits, armed, done };
  struct Planned {
    Fault fault;
    State state = State::waits;
  };
  template <class Wanted>
  bool any(Wanted wanted) const;
  // Returns the first fault in that state for which `wanted` is true, and marks it as done; null if there is none.
  template <class Wanted>
  const Fault* take(State state, Wanted wanted);
  void act(const Fault& fault);
  void report(const Fault& fault);

  InjectRequest request_;
  std::mutex mutex_;  // guards the states
  std::vector<Planned> faults_;
  std::atomic<int64_t> step_{-1};
  std::unique_ptr<FileSystem> files_;
};

// Decorators for a rank's model, communicator and files. Each forwards all calls, except the one that a fault changes.

ModelPtr injected_model(ModelPtr model, std::shared_ptr<Injector> injector);
CommunicatorPtr injected_communicator(CommunicatorPtr group, std::shared_ptr<Injector> injector);
// `files` and `injector` outlive it.
std::unique_ptr<FileSystem> injected_files(FileSystem& files, Injector& injector);

}  // namespace convoy
