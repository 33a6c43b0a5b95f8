// A group's state: failure, figures, and the message of a stall.
#include "backends/group_state.h"

#include <thread>

namespace convoy {

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::all_gather:
      return "all_gather";
    case Operation::all_gather_v:
      return "all_gather_v";
    case Operation::all_to_all_v:
      return "all_to_all_v";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::broadcast:
      return "broadcast";
    case Operation::send:
      return "send";
    case Operation::receive:
      return "receive";
    case Operation::group:
      return "group";
    case Operation::barrier:
      return "barrier";
    case Operation::split:
      return "split";
  }
  return "?";
}

std::string describe(const Call& call) {
  std::string text = name_of(call.operation);
  if (!call.name.empty()) text += " '" + call.name + "'";
  if (call.operation == Operation::barrier) return text;
  return str(text, " of ", call.elements, " ", c10::toString(call.dtype));
}

GroupState::GroupState(GroupFacts facts, std::shared_ptr<Transport> transport)
    : facts_(std::move(facts)), transport_(transport) {
  // The destructor takes the handler off before `this` ends.
  facts_.board->add(facts_.label, [this](const std::string& reason) { fail(reason); });
}

GroupState::~GroupState() { facts_.board->remove(facts_.label); }

void GroupState::fail(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (failed_) return;
    reason_ = reason;
    failed_ = true;
  }
  if (auto transport = transport_.lock()) transport->fail(reason);
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

bool point_to_point(Operation operation) {
  return operation == Operation::send || operation == Operation::receive || operation == Operation::group;
}

std::string GroupState::who() const {
  return str("rank ", facts_.rank, " of ", facts_.size, " (", facts_.backend, ", group ", facts_.label, ")");
}

std::optional<std::string> GroupState::failure() const {
  if (!failed_) return std::nullopt;
  std::lock_guard lock(mutex_);
  return reason_;
}

CommError GroupState::stalled(const Call& call, int64_t number, double seconds, const std::string& missing) const {
  std::string mine = describe(call);
  std::string others;
  bool differ = false;
  if (facts_.channel && !point_to_point(call.operation)) {
    // Ranks that wait in different calls run out of time together: each says where it waits, and looks at the others.
    std::string prefix = str("stalled/", facts_.job, "/", facts_.label, "/", number, "/");
    try {
      facts_.channel->set(prefix + std::to_string(facts_.rank), mine);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      for (int rank = 0; rank < facts_.size; ++rank) {
        if (rank == facts_.rank) continue;
        auto theirs = facts_.channel->peek(prefix + std::to_string(rank));
        if (!theirs) continue;
        others += str("; rank ", rank, " waits in ", *theirs);
        differ = differ || *theirs != mine;
      }
    } catch (const std::exception&) {
      // The channel's loss is told elsewhere.
    }
  }
  const std::string counted = point_to_point(call.operation) ? "" : str(" (call ", number, " of the group)");
  std::string text = str(who(), " waited ", human_seconds(seconds), " in ", mine, counted,
                         missing.empty() ? "" : ": " + missing, others);
  if (differ) return CommError(Failure::disagreement, -1, text + ". The ranks called different things.");
  return CommError(Failure::hang, -1,
                   text +
                       ". A peer is stopped, slow or waits elsewhere; where it is only slow, raise "
                       "launch.timeouts.collective.");
}

}  // namespace convoy
