// The Work of every backend: waits for a Pending within the time limit, brings staged results back, drops all tensors.
#include <algorithm>
#include <ctime>

#include "backends/group_state.h"
#include "backends/plain_what.h"
#include "backends/staging.h"
#include "core/log.h"

namespace convoy {
namespace {

int64_t thread_cpu_nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int64_t nanoseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

// Tells the observer, and adds to the figures, for as long as it lives.
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
    state_.waited(nanoseconds(Clock::now() - start_), thread_cpu_nanoseconds() - cpu_);
    if (state_.facts().waiting) state_.facts().waiting("");
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  Clock::time_point start() const { return start_; }
  double seconds() const { return 1e-9 * nanoseconds(Clock::now() - start_); }

 private:
  GroupState& state_;
  Clock::time_point start_ = Clock::now();
  int64_t cpu_ = thread_cpu_nanoseconds();
};

class GroupWork final : public Work {
 public:
  GroupWork(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport, Call call, Staging staging,
            PendingPtr pending)
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
    if (pending_->soon()) {
      pending_->wait_until(Clock::now());
      return;
    }
    Waiting waiting(*state_, call_);
    const auto half = call_.timeout / 2;
    if (waited(half)) return;
    if (state_->watched())
      state_->late(call_, waiting.seconds(), false);
    else
      log::warning(str(state_->who(), " has waited ", human_seconds(waiting.seconds()), " in ", describe(call_),
                       ", half of its time limit"));
    if (waited(call_.timeout - half)) return;
    // Whoever watches sees all ranks, and names the one that is missing; this one only waited for it.
    if (state_->watched()) state_->late(call_, waiting.seconds(), true);
    if (const auto failure = state_->failure()) throw CommError(*failure);
    CommError error = state_->stalled(call_, waiting.seconds(), pending_->missing());
    error_ = std::make_exception_ptr(error);
    // What was begun cannot be taken back, so the group ends here with its first time limit.
    state_->fail(error.what());
  }

  // Waits in pieces. A piece counts for no more than its length: while this process is halted (a suspended job), its
  // peers mostly are too. A piece in which the supervisor does not answer counts for nothing: this rank or a peer may
  // wait for the supervisor. If its connection breaks, the group fails.
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
      // What transports throw when a group has failed only tells that it has.
      const auto failure = state_->failure();
      const bool differ = failure && failure->kind() == Failure::disagreement;
      error_ =
          std::make_exception_ptr(differ ? *failure
                                         : CommError(error.kind(), state_->of_job(error.rank()),
                                                     str(state_->who(), ": ", describe(call_), ": ", error.what())));
    } catch (const std::exception& error) {
      error_ = std::make_exception_ptr(
          CommError(Failure::internal, -1, str(state_->who(), ": ", describe(call_), ": ", plain_what(error))));
    }
    staging_.drop();
    pending_.reset();
    transport_.reset();
  }

  std::mutex mutex_;
  std::shared_ptr<GroupState> state_;
  std::shared_ptr<Transport> transport_;  // alive as long as an operation of it is
  Call call_;
  Staging staging_;
  PendingPtr pending_;  // null: over
  std::exception_ptr error_;
  std::shared_ptr<std::atomic<bool>> supervisor_answered_;  // the last question; null: none yet, or nobody to ask
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
                  PendingPtr pending) {
  return std::make_shared<GroupWork>(std::move(state), std::move(transport), std::move(call), std::move(staging),
                                     std::move(pending));
}

WorkPtr make_finished_work(std::exception_ptr error) { return std::make_shared<FinishedWork>(std::move(error)); }

}  // namespace convoy
