// Failure, counters and stall messages of a group, and the Work of every backend.

#include "backends/communicator/group_state.h"

#include <algorithm>
#include <thread>

#include "backends/communicator/call.h"
#include "backends/communicator/staging.h"
#include "core/base/log.h"
#include "core/files/limits.h"

namespace convoy {

// Abort over the control channel: key "abort-comm/JOB/GROUP" holds the reason.

AbortNotifier::AbortNotifier(std::shared_ptr<Channel> channel, const std::string& job)
    : channel_(std::move(channel)), prefix_("abort-comm/" + job + "/") {}

std::shared_ptr<AbortNotifier> AbortNotifier::create(std::shared_ptr<Channel> channel, const std::string& job) {
  std::shared_ptr<AbortNotifier> notifier(new AbortNotifier(std::move(channel), job));
  if (!notifier->channel_) return notifier;
  // The channel keeps its callbacks for its whole life and may outlive the notifier.
  std::weak_ptr<AbortNotifier> weak = notifier;
  notifier->channel_->watch(notifier->prefix_, [weak](const std::string& key, const std::string& value) {
    if (auto self = weak.lock()) self->on_key(key, value);
  });
  notifier->channel_->on_abort([weak](const Abort& abort) {
    auto self = weak.lock();
    if (!self) return;
    const std::string whose = abort.rank < 0 ? "" : str(" because of rank ", abort.rank);
    self->on_end(str("the job ends", whose, " (", name_of(abort.kind), "): ", abort.message));
  });
  notifier->channel_->on_lost([weak] {
    if (auto self = weak.lock()) self->on_end("the control channel is gone: the launcher of rank 0's host has ended");
  });
  return notifier;
}

void AbortNotifier::add(const std::string& group, Handler handler) {
  std::lock_guard lock(mutex_);
  if (ended_) {
    handler(*ended_);
  } else if (auto found = aborted_.find(group); found != aborted_.end()) {
    handler(found->second);
  }
  handlers_[group] = std::move(handler);
}

void AbortNotifier::remove(const std::string& group) {
  std::lock_guard lock(mutex_);
  handlers_.erase(group);
}

void AbortNotifier::notify_peers(const std::string& group, const std::string& reason) {
  if (!channel_) return;
  try {
    channel_->set(prefix_ + group, reason);
  } catch (const std::exception&) {
    // The channel is lost, and its loss notifies the peers.
  }
}

void AbortNotifier::on_key(const std::string& key, const std::string& reason) {
  std::string group = key.substr(prefix_.size());
  std::lock_guard lock(mutex_);
  aborted_.emplace(group, reason);
  if (auto found = handlers_.find(group); found != handlers_.end()) found->second(reason);
}

void AbortNotifier::on_end(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!ended_) ended_ = reason;
  for (const auto& [group, handler] : handlers_) handler(reason);
}

GroupState::GroupState(GroupFacts facts, const std::shared_ptr<Transport>& transport)
    : facts_(std::move(facts)), transport_(transport) {
  if (facts_.notes && transport) group_index_ = facts_.notes->add_group(facts_.label.c_str());
  if (facts_.times && transport) times_ = facts_.times->add_group(facts_.label, facts_.members);
  SupervisedChannel* const channel = facts_.channel ? facts_.channel->supervised() : nullptr;
  if (channel != nullptr && transport && !transport->compares_calls() && facts_.checks != CollectiveChecks::none)
    check_ = std::make_unique<CollectiveCheck>(*this, *channel);
  // The destructor removes the handler before `this` ends.
  facts_.abort_notifier->add(facts_.label, [this](const std::string& reason) { fail(reason); });
}

GroupState::~GroupState() { facts_.abort_notifier->remove(facts_.label); }

void GroupState::fail(const std::string& reason) { fail(CommError(Failure::peer_lost, -1, reason)); }

void GroupState::fail(const CommError& error) {
  {
    std::lock_guard lock(mutex_);
    if (failed_) return;
    failure_.emplace(error);
    failed_ = true;
  }
  if (check_) check_->fail(error);
  if (auto transport = transport_.lock()) transport->fail(error.what());
}

std::optional<CommError> GroupState::failure() const {
  if (!failed_) return std::nullopt;
  std::lock_guard lock(mutex_);
  return failure_;
}

int64_t GroupState::record_call(Call& call) {
  call.rank = job_rank_of(facts_.rank);
  if (!is_point_to_point(call.operation)) {
    call.number = ++calls_;
    if (times_) times_->called(call.number);
    call.seal();
    if (facts_.notes) record(*facts_.notes, group_index_, call);
  }
  return call.number;
}

void GroupState::report_slow(const Call& call, double seconds, bool over) const {
  SlowCollective slow;
  slow.group = facts_.label;
  slow.number = call.number;
  slow.call = describe_call(call);
  slow.members = facts_.members;
  if (call.peer >= 0) slow.members = {job_rank_of(facts_.rank), job_rank_of(call.peer)};
  slow.seconds = seconds;
  slow.limit = 1e-3 * double(call.timeout.count());
  slow.over = over;
  facts_.slow_collective(slow);
}

std::shared_ptr<std::atomic<bool>> GroupState::ask_supervisor() const {
  SupervisedChannel* const channel = facts_.channel ? facts_.channel->supervised() : nullptr;
  if (channel == nullptr) return nullptr;
  auto answered = std::make_shared<std::atomic<bool>>(false);
  channel->agree_later(str("answers/", facts_.job, "/", facts_.label, "/", facts_.rank), 0, 1, "",
                       [answered](const std::vector<std::string>&) { *answered = true; });
  return answered;
}

void GroupState::add_bytes_sent(int64_t count) {
  for (GroupState* group = this; group != nullptr; group = group->facts_.parent.get()) group->bytes += count;
}

void GroupState::add_wait(int64_t nanoseconds, int64_t cpu_nanoseconds) {
  for (GroupState* group = this; group != nullptr; group = group->facts_.parent.get()) {
    group->wait_nanoseconds += nanoseconds;
    group->wait_cpu_nanoseconds += cpu_nanoseconds;
  }
}

std::string GroupState::who() const {
  return str("rank ", facts_.rank, " of ", facts_.size, " (", facts_.backend, ", group ", facts_.label, ")");
}

CommError GroupState::time_limit_error(const Call& call, double seconds, const std::string& missing) const {
  std::string mine = describe_call(call);
  std::string others;
  bool differ = false;
  if (facts_.channel && !is_point_to_point(call.operation)) {
    // Ranks that wait in different calls reach their limits together: each publishes its call and reads the others'.
    std::string prefix = str("stalled/", facts_.job, "/", facts_.label, "/", call.number, "/");
    try {
      facts_.channel->set(prefix + std::to_string(facts_.rank), mine);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      for (int rank = 0; rank < facts_.size; ++rank) {
        if (rank == facts_.rank) continue;
        auto theirs = facts_.channel->peek(prefix + std::to_string(rank));
        if (!theirs) continue;
        others += str("; rank ", job_rank_of(rank), " waits in ", *theirs);
        differ = differ || *theirs != mine;
      }
    } catch (const std::exception&) {
      // The loss of the channel is reported by the channel itself.
    }
  }
  const std::string counted = is_point_to_point(call.operation) ? "" : str(" (call ", call.number, " of the group)");
  std::string text = str(who(), " waited ", human_seconds(seconds), " in ", mine, counted,
                         missing.empty() ? "" : ": " + missing, others);
  if (differ) return CommError(Failure::disagreement, -1, text + ". The ranks called different operations.");
  return CommError(Failure::hang, -1,
                   text +
                       ". A peer is stopped, slow or waits elsewhere; where it is only slow, raise "
                       "launch.collective.");
}

// --- Work: waits for a PendingOperation within the time limit, copies staged results back, drops all tensors ---

namespace {

int64_t nanoseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

// Reports a wait to the observer and adds it to the counters during its lifetime.
class Waiting {
 public:
  Waiting(GroupState& state, const Call& call) : state_(state) {
    if (state_.facts().waiting) {
      std::string text = name_of(call.operation);
      if (!call.name.empty()) text += " " + call.name;
      state_.facts().waiting(text.c_str());
    }
  }
  ~Waiting() {
    state_.add_wait(nanoseconds(Clock::now() - start_), int64_t(1e9 * (thread_cpu_seconds() - cpu_)));
    if (state_.facts().waiting) state_.facts().waiting("");
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  Clock::time_point start() const { return start_; }
  double seconds() const { return 1e-9 * nanoseconds(Clock::now() - start_); }

 private:
  GroupState& state_;
  Clock::time_point start_ = Clock::now();
  double cpu_ = thread_cpu_seconds();
};

// Adds the time between its construction and its destruction to the waits of the rank's thread.
class CountedWait {
 public:
  CountedWait(GroupState& state, const Call& call) : state_(state), call_(call) {
    const bool message = is_point_to_point(call.operation);
    if (TimeBreakdown* const times = state.facts().times.get())
      scope_.emplace(*times, message ? TimePart::waiting : TimePart::communication);
  }
  ~CountedWait() {
    if (!scope_ || !scope_->counts()) return;
    const int64_t from = scope_->from(), to = scope_->end();
    TimeBreakdown& times = *state_.facts().times;
    if (call_.number > 0) {
      if (state_.times() != nullptr) state_.times()->waited(call_.number, from, to);
    } else if (call_.peer >= 0) {
      times.waited_for(state_.job_rank_of(call_.peer), to - from);
    }
    if (TraceLog* const trace = times.trace())
      trace->add(
          {"", str("wait: ", name_of(call_.operation), call_.name.empty() ? "" : " " + call_.name), "wait", from, to});
  }
  CountedWait(const CountedWait&) = delete;
  CountedWait& operator=(const CountedWait&) = delete;

 private:
  GroupState& state_;
  const Call& call_;
  std::optional<TimeBreakdown::Scope> scope_;
};

class GroupWork final : public Work {
 public:
  GroupWork(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport, Call call, Staging staging,
            PendingOperationPtr pending)
      : state_(std::move(state)),
        transport_(std::move(transport)),
        call_(std::move(call)),
        staging_(std::move(staging)),
        pending_(std::move(pending)) {}

  void wait() override {
    std::lock_guard lock(mutex_);
    if (pending_) conclude([this] { block(); });
    if (error_) std::rethrow_exception(error_);
  }

  bool done() override {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    if (!pending_) return true;
    if (!pending_->done()) return false;
    conclude([this] { pending_->wait_until(Clock::now()); });
    return true;
  }

 private:
  void block() {
    const CountedWait counted(*state_, call_);
    if (pending_->soon()) {
      pending_->wait_until(Clock::now());
      return;
    }
    Waiting waiting(*state_, call_);
    const auto half = call_.timeout / 2;
    if (waited(half)) return;
    if (state_->has_stall_reporter())
      state_->report_slow(call_, waiting.seconds(), false);
    else
      log::warning(str(state_->who(), " has waited ", human_seconds(waiting.seconds()), " in ", describe_call(call_),
                       ", half of its time limit"));
    if (waited(call_.timeout - half)) return;
    // The stall reporter sees all ranks and names the stalled one; this rank only waited for it.
    if (state_->has_stall_reporter()) state_->report_slow(call_, waiting.seconds(), true);
    if (const auto failure = state_->failure()) throw CommError(*failure);
    CommError error = state_->time_limit_error(call_, waiting.seconds(), pending_->missing());
    error_ = std::make_exception_ptr(error);
    // A started operation cannot be cancelled, so the first time limit fails the group.
    state_->fail(error.what());
  }

  // Waits in intervals of one second at most. Each counts as its planned length at most, also if it took longer because
  // the job was suspended. An interval without an answer from the supervisor does not
  // count: this rank or a peer may wait for the supervisor. If the connection to it breaks, the group fails.
  bool waited(Clock::duration limit) {
    constexpr Clock::duration longest = std::chrono::seconds(1);
    while (limit > Clock::duration::zero()) {
      const auto piece = std::min(limit, longest);
      if (pending_->wait_until(Clock::now() + piece)) return true;
      if (!supervisor_answered_ || *supervisor_answered_) {
        limit -= piece;
        supervisor_answered_ = state_->ask_supervisor();
      }
    }
    return false;
  }

  template <class Finish>
  void conclude(Finish finish) {
    try {
      finish();
      if (!error_) staging_.finish();
    } catch (const CommError& error) {
      // A transport's exception after the failure of a group only reports that failure.
      const auto failure = state_->failure();
      const bool differ = failure && failure->kind() == Failure::disagreement;
      error_ =
          std::make_exception_ptr(differ ? *failure
                                         : CommError(error.kind(), state_->job_rank_of(error.rank()), state_->who(),
                                                     ": ", describe_call(call_), ": ", error.what()));
    } catch (const std::exception& error) {
      error_ = std::make_exception_ptr(CommError(Failure::internal, -1, state_->who(), ": ", describe_call(call_), ": ",
                                                 message_without_backtrace(error)));
    }
    staging_.drop();
    pending_.reset();
    transport_.reset();
  }

  std::mutex mutex_;
  std::shared_ptr<GroupState> state_;
  std::shared_ptr<Transport> transport_;  // kept alive as long as its operation
  Call call_;
  Staging staging_;
  PendingOperationPtr pending_;  // null: the operation is over
  std::exception_ptr error_;
  std::shared_ptr<std::atomic<bool>>
      supervisor_answered_;  // answer to the last request; null: no request yet, or no supervisor
};

class FinishedWork final : public Work {
 public:
  explicit FinishedWork(std::exception_ptr error) : error_(std::move(error)) {}
  void wait() override {
    if (error_) std::rethrow_exception(error_);
  }
  bool done() override { return true; }

 private:
  std::exception_ptr error_;
};

}  // namespace

WorkPtr make_work(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport, Call call, Staging staging,
                  PendingOperationPtr pending) {
  return std::make_shared<GroupWork>(std::move(state), std::move(transport), std::move(call), std::move(staging),
                                     std::move(pending));
}

WorkPtr make_finished_work(std::exception_ptr error) { return std::make_shared<FinishedWork>(std::move(error)); }

}  // namespace convoy
