// A group's state: failure, figures, and the message of a stall.
#include "backends/group_state.h"

#include <thread>

namespace convoy {

GroupState::GroupState(GroupFacts facts, const std::shared_ptr<Transport>& transport)
    : facts_(std::move(facts)), transport_(transport) {
  if (facts_.notes && transport) place_ = facts_.notes->add_group(facts_.label.c_str());
  SupervisedChannel* channel = supervised(facts_.channel.get());
  if (channel != nullptr && transport && !transport->compares_calls() && facts_.checks != CallChecks::none)
    check_ = std::make_unique<CallCheck>(*this, *channel);
  // The destructor takes the handler off before `this` ends.
  facts_.board->add(facts_.label, [this](const std::string& reason) { fail(reason); });
}

GroupState::~GroupState() { facts_.board->remove(facts_.label); }

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

int64_t GroupState::called(Call& call) {
  call.rank = of_job(facts_.rank);
  if (!point_to_point(call.operation)) {
    call.number = ++calls_;
    call.seal();
    if (facts_.notes) note(*facts_.notes, place_, call);
  }
  return call.number;
}

void GroupState::late(const Call& call, double seconds, bool over) const {
  LateCall late;
  late.group = facts_.label;
  late.number = call.number;
  late.call = describe(call);
  late.members = facts_.members;
  if (call.peer >= 0) late.members = {of_job(facts_.rank), of_job(call.peer)};
  late.seconds = seconds;
  late.limit = 1e-3 * static_cast<double>(call.timeout.count());
  late.over = over;
  facts_.late(late);
}

std::shared_ptr<std::atomic<bool>> GroupState::ask_supervisor() const {
  SupervisedChannel* const channel = supervised(facts_.channel.get());
  if (channel == nullptr) return nullptr;
  auto answered = std::make_shared<std::atomic<bool>>(false);
  channel->agree_later(str("answers/", facts_.job, "/", facts_.label, "/", facts_.rank), 0, 1, "",
                       [answered](const std::vector<std::string>&) { *answered = true; });
  return answered;
}

void GroupState::sent(int64_t count) {
  for (GroupState* group = this; group != nullptr; group = group->facts_.parent.get()) group->bytes += count;
}

void GroupState::waited(int64_t nanoseconds, int64_t cpu_nanoseconds) {
  for (GroupState* group = this; group != nullptr; group = group->facts_.parent.get()) {
    group->wait_nanoseconds += nanoseconds;
    group->wait_cpu_nanoseconds += cpu_nanoseconds;
  }
}

std::string GroupState::who() const {
  return str("rank ", facts_.rank, " of ", facts_.size, " (", facts_.backend, ", group ", facts_.label, ")");
}

CommError GroupState::stalled(const Call& call, double seconds, const std::string& missing) const {
  std::string mine = describe(call);
  std::string others;
  bool differ = false;
  if (facts_.channel && !point_to_point(call.operation)) {
    // Ranks that wait in different calls run out of time together: each says where it waits, and looks at the others.
    std::string prefix = str("stalled/", facts_.job, "/", facts_.label, "/", call.number, "/");
    try {
      facts_.channel->set(prefix + std::to_string(facts_.rank), mine);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      for (int rank = 0; rank < facts_.size; ++rank) {
        if (rank == facts_.rank) continue;
        auto theirs = facts_.channel->peek(prefix + std::to_string(rank));
        if (!theirs) continue;
        others += str("; rank ", of_job(rank), " waits in ", *theirs);
        differ = differ || *theirs != mine;
      }
    } catch (const std::exception&) {
      // The channel's loss is told elsewhere.
    }
  }
  const std::string counted = point_to_point(call.operation) ? "" : str(" (call ", call.number, " of the group)");
  std::string text = str(who(), " waited ", human_seconds(seconds), " in ", mine, counted,
                         missing.empty() ? "" : ": " + missing, others);
  if (differ) return CommError(Failure::disagreement, -1, text + ". The ranks called different things.");
  return CommError(Failure::hang, -1,
                   text +
                       ". A peer is stopped, slow or waits elsewhere; where it is only slow, raise "
                       "launch.collective.");
}

}  // namespace convoy
