// Makes the faults of one rank happen (core/inject/fault.h) without anybody else knowing of them: it is told where the rank
// is, and stands around its model, communicator and files where a fault belongs there. What no fault concerns is handed
// back as it is, so that a run without faults pays nothing.
//
// Call order: construct; wrap; then `reached` and `waiting` as the rank goes. Threads: any. Ownership: what it wraps keeps
// it alive, so make it as a shared_ptr. Each fault happens once, is written into the log and posted to the channel before.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/control/channel.h"
#include "core/files.h"
#include "core/inject/fault.h"
#include "core/model_interface.h"

namespace convoy {

struct InjectRequest {
  std::vector<std::string> faults;  // as written; all of the job's
  int rank = 0;
  int size = 1;
  int attempt = 0;
  std::string host;
  std::shared_ptr<Channel> channel;
};

class Injector : public std::enable_shared_from_this<Injector> {
 public:
  explicit Injector(const InjectRequest& request);
  ~Injector();  // warns of faults that never came to happen

  bool idle() const { return faults_.empty(); }
  // The rank's own thread. May throw, pause, or not return.
  void reached(InjectPoint point, int64_t number);
  // A wait for a collective begins; any thread.
  void waiting();

  ModelPtr around(ModelPtr model);
  CommunicatorPtr around(CommunicatorPtr group);
  FileSystem& around(FileSystem& files);

  // ---- for what stands around things -------------------------------------------------------------------------
  // A block of the model goes forward in training; true: its output is to be no number.
  bool forward(int64_t block);
  // The part of the next collective that is to differ; none: let it be.
  Fault::Part differing();
  // Whether this call of a file fails now, for want of space.
  bool fails(Fault::Part call);
  // Whether this rank's model is to have a parameter that the others' have not.
  bool has_other_parameters();

 private:
  struct Planned {
    Fault fault;
    enum class State { waits, armed, done } state = State::waits;
  };
  // Of the first that `wanted` holds for, now done; nothing where there is none.
  template <class Wanted>
  const Fault* take(Wanted wanted);
  void act(const Fault& fault);
  void tell(const Fault& fault);

  InjectRequest request_;
  std::mutex mutex_;  // of the states
  std::vector<Planned> faults_;
  std::atomic<int64_t> step_{-1};
  std::unique_ptr<FileSystem> files_;
};

}  // namespace convoy
