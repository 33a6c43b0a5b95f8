// Rank: one rank of a supervised job, from its state file to its result. It connects the rank with the others and
// reports its end. convoy-rank and Job use it.
//
// Call order: open; start, or prepare and join; then end, or fail at any time. `prepare` and later calls come from the
// rank's thread.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/crash.h"
#include "api/file_progress.h"
#include "api/stall_reporter.h"
#include "core/context.h"
#include "core/control/assignment.h"
#include "core/inject/injector.h"
#include "core/registry.h"
#include "core/trainer.h"

namespace convoy {

class Rank {
 public:
  Rank(const ProcessAssignment& assignment, int rank, std::shared_ptr<Channel> channel,
       std::shared_ptr<StallReporter> stall_reporter);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return plan_.rank; }
  // Creates the state file, which shows this rank's position to other processes.
  FileProgress::Rank open(const char* phase);
  // Attributes crashes of the calling thread to this rank.
  void attribute_crashes() const;

  // Binds this thread. The context has no groups yet.
  Context prepare();
  // Reports that this rank is ready, and connects it with the others.
  void join(Context& context, const Registry& backends);
  Context start(const Registry& backends);  // prepare and join
  std::shared_ptr<Injector> injector() const { return injector_; }
  // Keeps the injector of the previous membership, in which this process had another rank. Call it before `start`.
  void keep_injector(std::shared_ptr<Injector> injector) { injector_ = std::move(injector); }
  bool shares_gpu() const;  // another rank of this process uses the same GPU

  // Waits for all ranks, and reports the results.
  void end(const Context& context, const TrainingResult& result);
  // Reports the failure to the supervisor, to the other ranks and in the log. Returns its exit code.
  int fail(const TranslatedException& failure);

 private:
  std::string state_path() const;
  Context make_context();
  void connect(Context& context, const Registry& backends);
  void report_info(const Context& context);
  void report_more(const Json& more);

  const ProcessAssignment& assignment_;
  const RankPlan& plan_;
  const std::shared_ptr<Channel> channel_;
  const std::shared_ptr<StallReporter> stall_reporter_;
  const std::string host_;
  std::shared_ptr<StateFile> state_;
  std::shared_ptr<CollectiveRecords> records_;  // in the same file
  const std::shared_ptr<TimeBreakdown> times_ = std::make_shared<TimeBreakdown>();
  std::shared_ptr<Injector> injector_;
  Json info_;
};

}  // namespace convoy
