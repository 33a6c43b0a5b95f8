#include "core/control/channel.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "core/base/text.h"

namespace convoy {

// `next` changes only under the mutex and only before a boundary is named. So the rank's thread stops at the boundary
// that the channel's thread has named.
struct StopAgreement::State {
  std::shared_ptr<Channel> channel;
  int rank = 0;
  int size = 1;
  Timeout timeout{};

  std::mutex mutex;
  bool requested = false;
  int64_t next = -1;  // next boundary of this rank; -1: before its first one
  std::optional<int64_t> named;
  std::optional<int64_t> end;  // the largest boundary of all ranks

  void announce(int64_t boundary) { channel->vote(protocol::stop_at, rank, size, boundary); }

  // Runs on the channel's thread. A rank before its first boundary has no peers inside a step, so it names one when
  // it arrives.
  void request() {
    int64_t boundary = 0;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (requested) return;
      requested = true;
      if (next < 0) return;
      named = boundary = next;
    }
    announce(boundary);
  }

  int64_t largest() {
    try {
      return std::stoll(channel->get(protocol::stop_at, timeout));
    } catch (const CommError& error) {
      if (error.kind() != Failure::rendezvous) throw;
      const std::string who = error.rank() < 0 ? "a rank" : str("rank ", error.rank());
      throw CommError(Failure::rendezvous, error.rank(), "stopping all ranks: ", who, " did not report within ",
                      human_seconds(timeout), " before which step it holds (", error.what(), ")");
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

// A rank that ends its loop normally or by an exception names a boundary for ranks that wait or will wait.
StopAgreement::~StopAgreement() {
  int64_t boundary = 0;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->named) return;
    state_->requested = true;
    state_->named = boundary = std::max<int64_t>(state_->next, 0);
  }
  try {
    state_->announce(boundary);
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

}  // namespace convoy
