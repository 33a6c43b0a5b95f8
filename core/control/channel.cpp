// Common to all channels: StopAgreement, Abort as JSON, addresses, the clock's offset, secrets.
#include "core/control/channel.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "core/base/text.h"

namespace convoy {

// --- StopAgreement ---

// A stop step is a step before which a rank can stop. `next` changes only under the mutex and only before a stop step
// is named. So the rank's thread stops at the stop step that the channel's thread has named.
struct StopAgreement::State {
  std::shared_ptr<Channel> channel;
  int rank = 0;
  int size = 1;
  Timeout timeout{};

  std::mutex mutex;
  bool requested = false;
  int64_t next = -1;  // next possible stop step of this rank; -1: its first step has not started
  std::optional<int64_t> named;
  std::optional<int64_t> end;  // the largest stop step of all ranks

  void announce(int64_t stop_step) { channel->vote(protocol::stop_at, rank, size, stop_step); }

  // Runs on the channel's thread. A rank that has not started its first step names its stop step later, when it starts.
  void request() {
    int64_t stop_step = 0;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (requested) return;
      requested = true;
      if (next < 0) return;
      named = stop_step = next;
    }
    announce(stop_step);
  }

  int64_t largest() {
    try {
      return std::stoll(channel->get(protocol::stop_at, timeout));
    } catch (const CommError& error) {
      if (error.kind() != Failure::rendezvous) throw;
      const std::string who = error.rank() < 0 ? "a rank" : str("rank ", error.rank());
      throw CommError(Failure::rendezvous, error.rank(), "stopping all ranks: ", who, " did not report within ",
                      human_seconds(timeout), " the step before which it stops (", error.what(), ")");
    }
  }
};

StopAgreement::StopAgreement(std::shared_ptr<Channel> channel, int rank, int size, Timeout timeout)
    : state_(std::make_shared<State>()) {
  state_->channel = std::move(channel);
  state_->rank = rank;
  state_->size = size;
  state_->timeout = timeout;
  state_->channel->watch(protocol::stop_request,
                         [weak = std::weak_ptr<State>(state_)](const std::string&, const std::string&) {
                           if (const auto state = weak.lock()) state->request();
                         });
}

// A rank that leaves its loop without a stop step sends one, so that no rank waits for it.
StopAgreement::~StopAgreement() {
  int64_t stop_step = 0;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->named) return;
    state_->requested = true;
    state_->named = stop_step = std::max<int64_t>(state_->next, 0);
  }
  try {
    state_->announce(stop_step);
  } catch (const std::exception&) {
    // The channel is gone, so no rank waits for this answer.
  }
}

bool StopAgreement::stops_before(int64_t step) {
  bool name = false;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->end) return step >= *state_->end;
    if (!state_->requested) {
      state_->next = step + 1;
      return false;
    }
    if (!state_->named) {
      state_->named = step;
      name = true;
    } else if (step < *state_->named) {
      return false;
    }
  }
  if (name) state_->announce(step);
  const int64_t end = state_->largest();
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->end = end;
  return step >= end;
}

// --- Abort as JSON, addresses, the clock's offset, random tokens ---

Json to_json(const Abort& abort) {
  return {{"kind", name_of(abort.kind)}, {"rank", abort.rank}, {"step", abort.step},
          {"signal", abort.signal},      {"host", abort.host}, {"message", valid_utf8(abort.message)}};
}

Abort abort_from_json(const Json& json) {
  Abort abort;
  try {
    abort.kind = failure_named(json.at("kind").get<std::string>());
    abort.rank = json.value("rank", -1);
    abort.step = json.value("step", int64_t{-1});
    abort.signal = json.value("signal", 0);
    abort.host = json.value("host", "");
    abort.message = json.value("message", "");
  } catch (const Json::exception& error) {
    throw Error(Failure::internal, "cannot read this abort: ", error.what());
  }
  return abort;
}

// Format: host,port,job,secret. No numeric address or token contains a comma, and shells need no quotes for it.
std::string to_string(const ChannelAddress& address) {
  CONVOY_CHECK(address.job.find_first_of(",\n") == std::string::npos, "job id '", address.job, "'");
  return str(address.host, ',', address.port, ',', address.job, ',', address.secret);
}

ChannelAddress channel_address(const std::string& line) {
  const std::vector<std::string> fields = split(line.substr(0, line.find('\n')), ',');
  // The line contains the secret, so the message does not repeat it.
  auto fail = [](const std::string& reason) -> Error {
    return Error(Failure::rendezvous, "the control channel's address is not 'host,port,job,secret': ", reason,
                 "; it comes from CONVOY_CHANNEL or OUTPUT/.rendezvous");
  };
  if (fields.size() != 4) throw fail(str(fields.size(), " fields"));
  const std::string& port = fields[1];
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(port) < 1 || std::stoi(port) > 65535)
    throw fail(str("port '", port, "' is not in 1 to 65535"));
  if (fields[0].empty() || fields[2].empty() || fields[3].empty()) throw fail("an empty field");
  return {fields[0], static_cast<uint16_t>(std::stoi(port)), fields[2], fields[3]};
}

int64_t clock_offset(SupervisedChannel& channel) {
  constexpr int requests = 8;
  const auto now = [] { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  int64_t offset = 0, fastest = 0;
  for (int i = 0; i < requests; ++i) {
    const int64_t from = now(), there = channel.clock(), to = now();
    if (i > 0 && to - from >= fastest) continue;
    fastest = to - from;
    // The server read its clock between `from` and `to`.
    offset = from <= there && there <= to ? 0 : there - (from + (to - from) / 2);
  }
  return offset;
}

bool equal_secrets(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? '\1' : b[i % b.size()]));
  return difference == 0;
}

}  // namespace convoy
