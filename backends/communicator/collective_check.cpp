// Collective reports over the control channel, and operations that wait for the check.
#include "backends/communicator/collective_check.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <optional>

#include "backends/communicator/call.h"
#include "backends/communicator/group_state.h"

namespace convoy {
namespace {

constexpr int64_t shortest_interval = 64, longest_interval = 8192;

int64_t interval_at(int64_t number) {
  int64_t interval = shortest_interval;
  while (interval < longest_interval && interval * 64 < number) interval *= 2;
  return interval;
}

}  // namespace

bool compared_at(int64_t number) { return number > checked_at_first && number % interval_at(number) == 0; }

// Created by the rank's thread. The channel's thread starts it when the ranks agree, or ends it when the group fails.
struct DeferredCall {
  // Requires GroupState::issue.
  void begin() {
    try {
      const c10::OptionalStreamGuard guard(stream);
      PendingOperationPtr pending = issue(call);
      issue = nullptr;  // releases the tensors before a waiter sees the end
      begun.set_value(std::move(pending));
    } catch (const CommError& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail(CommError(Failure::peer_lost, -1, message_without_backtrace(error)));
    }
  }
  void fail(const CommError& error) {
    issue = nullptr;
    begun.set_exception(std::make_exception_ptr(error));
  }

  const Call call;
  std::function<PendingOperationPtr(const Call&)> issue;
  const std::optional<c10::Stream> stream;
  std::promise<PendingOperationPtr> begun = {};
};

namespace {

class DeferredPendingOperation final : public PendingOperation {
 public:
  explicit DeferredPendingOperation(std::future<PendingOperationPtr> future) : future_(std::move(future)) {}
  bool done() override { return begun(Clock::now()) && (error_ || pending_->done()); }
  bool soon() override { return begun(Clock::now()) && (error_ || pending_->soon()); }
  bool wait_until(Clock::time_point deadline) override {
    if (!begun(deadline)) return false;
    if (error_) std::rethrow_exception(error_);
    return pending_->wait_until(deadline);
  }
  std::string missing() override {
    if (!begun(Clock::now())) return "not all ranks have called it";
    return error_ ? "" : pending_->missing();
  }

 private:
  // Returns false if the call has not started by `deadline`. Otherwise `pending_` or `error_` is set.
  bool begun(Clock::time_point deadline) {
    if (!future_.valid()) return true;
    if (future_.wait_until(deadline) != std::future_status::ready) return false;
    try {
      pending_ = future_.get();
    } catch (const CommError&) {
      error_ = std::current_exception();
    }
    return true;
  }

  std::future<PendingOperationPtr> future_;  // invalid once its value is taken
  PendingOperationPtr pending_;
  std::exception_ptr error_;
};

}  // namespace

CollectiveCheck::CollectiveCheck(GroupState& state, SupervisedChannel& channel)
    : state_(state), channel_(&channel), key_(str("calls/", state.facts().job, "/", state.facts().label, "/")) {}
CollectiveCheck::~CollectiveCheck() = default;

bool CollectiveCheck::must_defer(const Call& call) {
  const bool all = state_.facts().checks == CollectiveChecks::all;
  if (all || call.number <= checked_at_first) {
    sum_ = {};
    summed_from_ = call.number + 1;
    return true;
  }
  sum_.hash = (sum_.hash ^ call.hash) * 0x9e3779b97f4a7c15U;
  // Weights the balance by the number of the call, so that errors of two calls do not cancel. Summed over ranks it is 0
  // if all counts match.
  sum_.balance += call.balance * (2 * uint64_t(call.number) + 1);
  if (compared_at(call.number)) {
    std::string text = describe_call(call);
    if (summed_from_ < call.number)
      text += str(" (or another of the calls from ", summed_from_, " on; launch.check_collectives: all finds it)");
    send_report(call.number, sum_, text, describe_counts(call));
    sum_ = {};
    summed_from_ = call.number + 1;
  }
  // Keeps the order: no call may overtake a deferred one.
  std::lock_guard lock(mutex_);
  return !deferred_.empty();
}

PendingOperationPtr CollectiveCheck::defer(const Call& call, std::function<PendingOperationPtr(const Call&)> issue) {
  std::optional<c10::Stream> stream;
  const at::Device device = state_.facts().device;
  if (device.is_cuda()) stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  auto deferred = std::make_unique<DeferredCall>(DeferredCall{call, std::move(issue), stream});
  auto pending = std::make_unique<DeferredPendingOperation>(deferred->begun.get_future());
  {
    std::lock_guard lock(mutex_);
    deferred_.push_back(std::move(deferred));
  }
  if (call.number <= checked_at_first || state_.facts().checks == CollectiveChecks::all)
    send_report(call.number, {call.hash, call.balance}, describe_call(call), describe_counts(call));
  return pending;
}

std::string CollectiveCheck::as_bytes(const CollectiveReport& report) {
  std::string bytes(sizeof report, '\0');
  std::memcpy(bytes.data(), &report, sizeof report);
  return bytes;
}

CollectiveCheck::CollectiveReport CollectiveCheck::from_bytes(const std::string& bytes) {
  CollectiveReport report;
  CONVOY_CHECK(bytes.size() == sizeof report, "a collective report has ", bytes.size(), " bytes");
  std::memcpy(&report, bytes.data(), sizeof report);
  return report;
}

void CollectiveCheck::send_report(int64_t number, const CollectiveReport& report, const std::string& text,
                                  const std::string& counts) {
  const GroupFacts& facts = state_.facts();
  channel_->agree_later(
      str(key_, number), facts.rank, facts.size, as_bytes(report),
      [weak = state_.weak_from_this(), number, text, counts](const std::vector<std::string>& reports) {
        if (const auto state = weak.lock()) state->check()->compare_reports(number, text, counts, reports);
      });
}

// Runs on the channel's thread. Every rank gets the same reports, so all ranks take the same decision.
void CollectiveCheck::compare_reports(int64_t number, const std::string& text, const std::string& counts,
                                      const std::vector<std::string>& reports) {
  bool match = true;
  uint64_t balance = 0;
  for (const std::string& bytes : reports) {
    const CollectiveReport report = from_bytes(bytes);
    match = match && report.hash == from_bytes(reports.front()).hash;
    balance += report.balance;
  }
  if (match && balance == 0) {
    std::lock_guard issue(state_.issue);
    {
      std::lock_guard lock(mutex_);
      agreed_ = std::max(agreed_, number);
    }
    return begin_agreed();
  }
  const GroupFacts& facts = state_.facts();
  channel_->agree_later(str(key_, number, "/text"), facts.rank, facts.size,
                        match && !counts.empty() ? str(text, " that ", counts) : text,
                        [weak = state_.weak_from_this(), number](const std::vector<std::string>& texts) {
                          if (const auto state = weak.lock()) state->check()->report_mismatch(number, texts);
                        });
}

void CollectiveCheck::begin_agreed() {
  const bool all = state_.facts().checks == CollectiveChecks::all;
  while (true) {
    std::unique_ptr<DeferredCall> next;
    {
      std::lock_guard lock(mutex_);
      if (deferred_.empty()) return;
      const int64_t number = deferred_.front()->call.number;
      if (number > agreed_ && (all || number <= checked_at_first)) return;
      next = std::move(deferred_.front());
      deferred_.pop_front();
    }
    next->begin();
  }
}

void CollectiveCheck::report_mismatch(int64_t number, const std::vector<std::string>& texts) {
  const CallDifference difference = difference_of(state_.facts().members, texts);
  state_.fail(
      CommError(Failure::disagreement, difference.odd, "the ranks called different operations as call ", number,
                " of group ", state_.facts().label, ": ", difference.message,
                ". Every rank has to make the same calls in the same order; in a program, equally many calls of "
                "step(), accumulate() and the like, and no rank may leave the loop or end before the others"));
}

void CollectiveCheck::fail(const CommError& error) {
  std::deque<std::unique_ptr<DeferredCall>> deferred;
  {
    std::lock_guard lock(mutex_);
    deferred.swap(deferred_);
  }
  for (const auto& one : deferred) one->fail(error);
}

}  // namespace convoy
