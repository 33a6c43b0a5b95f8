// Votes over the control channel, and operations that wait for them.
#include "backends/consistency.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "backends/group_state.h"
#include "backends/plain_what.h"

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

// Made by the rank's thread and begun by whoever hears that the ranks agree.
class HeldBack {
 public:
  HeldBack(Call call, std::function<PendingPtr(const Call&)> issue, std::optional<c10::Stream> stream)
      : call_(std::move(call)), issue_(std::move(issue)), stream_(stream) {}

  // Under GroupState::issue.
  void begin() {
    PendingPtr pending;
    std::exception_ptr error;
    try {
      const c10::OptionalStreamGuard guard(stream_);
      pending = issue_(call_);
    } catch (const CommError&) {
      error = std::current_exception();
    } catch (const std::exception& failure) {
      error = std::make_exception_ptr(CommError(Failure::peer_lost, -1, plain_what(failure)));
    }
    issue_ = nullptr;  // and with it the tensors, before anyone can see the end
    conclude(std::move(pending), error);
  }
  void fail(const CommError& error) {
    issue_ = nullptr;
    conclude(nullptr, std::make_exception_ptr(error));
  }

  bool begun() {
    std::lock_guard lock(mutex_);
    return begun_;
  }
  bool wait_begun(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return begun_; });
  }
  // Once begun. Throws what the beginning failed with.
  Pending& pending() {
    std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    return *pending_;
  }
  bool failed() {
    std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }

 private:
  void conclude(PendingPtr pending, std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (begun_) return;
    pending_ = std::move(pending);
    error_ = std::move(error);
    begun_ = true;
    changed_.notify_all();
  }

  const Call call_;
  std::function<PendingPtr(const Call&)> issue_;
  const std::optional<c10::Stream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false;
  PendingPtr pending_;
  std::exception_ptr error_;
};

namespace {

class HeldBackPending final : public Pending {
 public:
  explicit HeldBackPending(std::shared_ptr<HeldBack> held) : held_(std::move(held)) {}
  bool done() override { return held_->begun() && (held_->failed() || held_->pending().done()); }
  bool soon() override { return held_->begun() && (held_->failed() || held_->pending().soon()); }
  bool wait_until(Clock::time_point deadline) override {
    return held_->wait_begun(deadline) && held_->pending().wait_until(deadline);
  }
  std::string missing() override {
    if (!held_->begun()) return "not all ranks have called it";
    return held_->failed() ? "" : held_->pending().missing();
  }

 private:
  std::shared_ptr<HeldBack> held_;
};

}  // namespace

CallCheck::CallCheck(GroupState& state, SupervisedChannel& channel)
    : state_(state), channel_(&channel), key_(str("calls/", state.facts().job, "/", state.facts().label, "/")) {}
CallCheck::~CallCheck() = default;

bool CallCheck::holds_back(const Call& call) {
  const bool all = state_.facts().checks == CallChecks::all;
  if (all || call.number <= checked_at_first) {
    sum_ = {};
    summed_from_ = call.number + 1;
    return true;
  }
  sum_.hash = (sum_.hash ^ call.hash) * 0x9e3779b97f4a7c15U;
  // Times what all have alike, so that the mistakes of two calls do not make up for each other; 0 where all is right.
  sum_.balance += call.balance * (2 * static_cast<uint64_t>(call.number) + 1);
  if (compared_at(call.number)) {
    std::string text = describe(call);
    if (summed_from_ < call.number)
      text += str(" (or another of the calls from ", summed_from_, " on; launch.check_collectives: all tells which)");
    tell(call.number, sum_, text, described_between(call));
    sum_ = {};
    summed_from_ = call.number + 1;
  }
  // In order: nothing may pass what is held back.
  std::lock_guard lock(mutex_);
  return !held_.empty();
}

PendingPtr CallCheck::begin_later(const Call& call, std::function<PendingPtr(const Call&)> issue) {
  std::optional<c10::Stream> stream;
  const at::Device device = state_.facts().device;
  if (device.is_cuda()) stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  auto held = std::make_shared<HeldBack>(call, std::move(issue), stream);
  {
    std::lock_guard lock(mutex_);
    held_.emplace_back(call.number, held);
  }
  if (call.number <= checked_at_first || state_.facts().checks == CallChecks::all)
    tell(call.number, {call.hash, call.balance}, describe(call), described_between(call));
  return std::make_unique<HeldBackPending>(std::move(held));
}

std::string CallCheck::as_bytes(const Vote& vote) {
  std::string bytes(sizeof vote, '\0');
  std::memcpy(bytes.data(), &vote, sizeof vote);
  return bytes;
}

CallCheck::Vote CallCheck::from_bytes(const std::string& bytes) {
  Vote vote;
  CONVOY_CHECK(bytes.size() == sizeof vote, "a vote on a call has ", bytes.size(), " bytes");
  std::memcpy(&vote, bytes.data(), sizeof vote);
  return vote;
}

void CallCheck::tell(int64_t number, const Vote& vote, const std::string& text, const std::string& between) {
  const GroupFacts& facts = state_.facts();
  channel_->agree_later(str(key_, number), facts.rank, facts.size, as_bytes(vote),
                        [weak = state_.weak_from_this(), number, text, between](const std::vector<std::string>& votes) {
                          if (const auto state = weak.lock()) state->check()->told(number, text, between, votes);
                        });
}

// On the channel's thread. Every rank gets the same votes, so all of them go on or none.
void CallCheck::told(int64_t number, const std::string& text, const std::string& between,
                     const std::vector<std::string>& votes) {
  bool alike = true;
  uint64_t balance = 0;
  for (const std::string& bytes : votes) {
    const Vote vote = from_bytes(bytes);
    alike = alike && vote.hash == from_bytes(votes.front()).hash;
    balance += vote.balance;
  }
  if (alike && balance == 0) {
    std::lock_guard issue(state_.issue);
    {
      std::lock_guard lock(mutex_);
      agreed_ = std::max(agreed_, number);
    }
    return begin_agreed();
  }
  const GroupFacts& facts = state_.facts();
  channel_->agree_later(str(key_, number, "/text"), facts.rank, facts.size,
                        alike && !between.empty() ? str(text, " that ", between) : text,
                        [weak = state_.weak_from_this(), number](const std::vector<std::string>& texts) {
                          if (const auto state = weak.lock()) state->check()->differ(number, texts);
                        });
}

void CallCheck::begin_agreed() {
  const bool all = state_.facts().checks == CallChecks::all;
  while (true) {
    std::shared_ptr<HeldBack> next;
    {
      std::lock_guard lock(mutex_);
      if (held_.empty()) return;
      const int64_t number = held_.front().first;
      if (number > agreed_ && (all || number <= checked_at_first)) return;
      next = std::move(held_.front().second);
      held_.pop_front();
    }
    next->begin();
  }
}

void CallCheck::differ(int64_t number, const std::vector<std::string>& texts) {
  const Difference difference = difference_of(state_.facts().members, texts);
  state_.fail(CommError(Failure::disagreement, difference.odd,
                        str("the ranks called different things as call ", number, " of group ", state_.facts().label,
                            ": ", difference.message)));
}

void CallCheck::fail(const CommError& error) {
  std::deque<std::pair<int64_t, std::shared_ptr<HeldBack>>> held;
  {
    std::lock_guard lock(mutex_);
    held.swap(held_);
  }
  for (auto& entry : held) entry.second->fail(error);
}

}  // namespace convoy
