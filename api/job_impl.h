// Parts of a Job that the rest of the library uses.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <convoy/job.h>
#include "api/crash.h"
#include "core/context.h"
#include "core/inject/injector.h"
#include "core/registry.h"
#include "core/trainer.h"

namespace convoy {

// Lifetime of an object that other objects refer to. Those hold `users`. The destructor of the object checks that they
// have ended, because later they would use freed memory. Threads: the thread of the rank.
class Lifetime {
 public:
  const std::shared_ptr<void>& users() const { return users_; }
  // Ends the process with a message if `object` ends before its users.
  void check_end(const char* object, const char* users) const;

 private:
  std::shared_ptr<void> users_ = std::make_shared<char>();
};

struct Job::Impl {
  virtual ~Impl() = default;
  // Reports the end after all ranks have reached it. May throw.
  virtual void end() = 0;
  // Reports a failure to the other ranks. Returns its exit code.
  virtual int fail(const TranslatedException& failure) noexcept = 0;
  // Called after the end or a failure: the object is no longer part of the job.
  virtual void leave() noexcept {}
  // True if a failure of finish() in the destructor ends this process.
  virtual bool supervised() const = 0;

  // --- Changes of the ranks (launch.min_ranks) ---
  // True if the job continues without lost ranks.
  virtual bool continues() const { return false; }
  // True if this process joined while the others trained, and has not entered Run::each_batch.
  bool joins() const { return joined && !in_loop; }
  // Collective. Connects this rank if it is not connected yet. A process that joins connects in Replicas.
  virtual void connect() {}
  // After a lost peer: takes the rank of this process in the next membership, and replaces `context` by one without
  // groups; `connect` follows. Nothing else may refer to groups of the old `context`. Returns false if the job ends.
  virtual bool leave_membership() { return false; }
  // Records that this rank enters or leaves Run::each_batch. Reports the entry to the supervisor.
  void enter_loop(bool enters);

  Context context;  // steps_per_epoch, total_steps and folder may be set by Run
  std::vector<std::string> arguments;
  TrainingResult result{false, Json::object(), Json::object()};  // set by Run
  // Thread-safe decorators of injected faults; null: none. Run calls `reached` and decorates its files.
  std::shared_ptr<Injector> injector;
  bool ended = false;
  int meshes = 0;        // number created so far
  int trained = 0;       // number of Trained objects created so far
  bool has_run = false;  // Job::resume was called
  int exceptions = 0;    // number in flight when the job was created
  bool joined = false;   // this process joined a running job
  bool in_loop = false;  // Run::each_batch runs
  Lifetime lifetime;
};

// Throws if this process joins a running job: the other ranks would not make this call.
void check_others_call(const Job::Impl& job, const char* call);

inline Context& context_of(const Job& job) { return job.impl().context; }

// A job without a supervisor.
struct EmbeddedRank {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int process_ranks = 1;  // ranks that are threads of this process
  std::shared_ptr<Channel> channel;
  std::string backend;                 // "": one rank needs none
  std::shared_ptr<Registry> backends;  // the backend `local` uses it to find its ranks
  std::vector<std::string> settings;
  std::vector<std::string> arguments;
  std::optional<int> mpi_communicator = std::nullopt;  // Fortran handle, for the backend mpi
  std::shared_ptr<void> holds = nullptr;               // keeps the channel's server alive for the job
};
Job embedded_job(const EmbeddedRank& rank);

// Registry and catalogues of all built-in components. `few_rows`: as for make_synthetic.
Registry builtin_registry(bool few_rows = false);

// The configuration of a job without a file.
RunConfig embedded_config(const std::vector<std::string>& arguments, const std::vector<std::string>& settings);
// Words of this process's command line.
std::vector<std::string> process_arguments();

}  // namespace convoy
