// Coming together of threads: joining, meeting, waiting, failing.
#include "backends/local_group.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/error.h"
#include "core/large_tensor.h"

namespace convoy {
namespace {

constexpr auto spin_time = std::chrono::microseconds(40);  // about what sleeping and waking costs

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

std::string list(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (int rank : ranks) names.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(names, ", ");
}

}  // namespace

LocalGroup::LocalGroup(int size) : size_(size), joined_(size, false), left_(size, false) {}

void LocalGroup::join(int rank, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  CONVOY_CHECK(rank >= 0 && rank < size_ && !joined_[rank], "rank ", rank, " of ", size_, " joins a second time");
  joined_[rank] = true;
  changed_.notify_all();
  auto all_here = [this] { return std::find(joined_.begin(), joined_.end(), false) == joined_.end(); };
  if (changed_.wait_until(lock, deadline, [&] { return failed_ || all_here(); })) {
    if (!all_here()) throw CommError(*failed_);
    return;
  }
  std::vector<int> absent;
  for (int i = 0; i < size_; ++i) {
    if (!joined_[i]) absent.push_back(i);
  }
  joined_[rank] = false;
  throw CommError(Failure::rendezvous, absent[0],
                  str("rank ", rank, " of ", size_, " (local): ", list(absent), " did not come"));
}

void LocalGroup::leave(int rank) {
  std::lock_guard lock(mutex_);
  left_[rank] = true;
  fail_open(
      [rank](const Open& open) {
        auto found = std::find(open.ranks.begin(), open.ranks.end(), rank);
        return found != open.ranks.end() && !open.meeting->deposits_[found - open.ranks.begin()];
      },
      CommError(Failure::peer_lost, rank, str("rank ", rank, " has gone")));
}

std::shared_ptr<Meeting> LocalGroup::meet(const Key& key, size_t place, const std::vector<int>& ranks,
                                          Deposit deposit) {
  std::lock_guard lock(mutex_);
  Open& open = open_[key];
  if (!open.meeting) {
    open.meeting = std::make_shared<Meeting>(static_cast<int>(ranks.size()));
    open.ranks = ranks;
  }
  auto meeting = open.meeting;
  meeting->deposits_[place] = std::move(deposit);
  const auto& all = meeting->deposits_;
  if (std::all_of(all.begin(), all.end(), [](const auto& one) { return one.has_value(); })) {
    open_.erase(key);
    if (failed_) {
      meeting->error_ = std::make_exception_ptr(*failed_);
      meeting->conclude(Meeting::Phase::failed);
    } else if (const std::string difference = meeting->prepare(); !difference.empty()) {
      // Whatever the ranks call next does not belong together either.
      failed_ = CommError(Failure::disagreement, -1, difference);
      fail_open([](const Open&) { return true; }, *failed_);
    }
    if (sleepers_ > 0) changed_.notify_all();
    return meeting;
  }
  if (failed_) {
    fail_open([&](const Open& one) { return one.meeting == meeting; }, *failed_);
    return meeting;
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (all[i] || !left_[ranks[i]]) continue;
    fail_open([&](const Open& one) { return one.meeting == meeting; },
              CommError(Failure::peer_lost, ranks[i], str("rank ", ranks[i], " has gone")));
    break;
  }
  return meeting;
}

bool LocalGroup::help(Meeting& meeting, size_t place) {
  if (!meeting.help(place)) return false;
  // Whoever slept through the last task has to be told, by the one who finished it.
  wake();
  return true;
}

bool LocalGroup::wait(Meeting& meeting, size_t place, Clock::time_point deadline) {
  auto spin_until = Clock::now() + spin_time;
  bool shared_out = false;
  while (!help(meeting, place)) {
    if (!shared_out && meeting.phase() == Meeting::Phase::working) {
      // This rank's part is done, and the others are within a task of theirs: no time to sleep.
      shared_out = true;
      spin_until = Clock::now() + spin_time;
    }
    if (Clock::now() >= std::min(deadline, spin_until)) break;
    for (int i = 0; i < 16; ++i) relax();
  }
  while (true) {
    auto phase = meeting.phase();
    if (phase != Meeting::Phase::open && help(meeting, place)) break;
    // Open: someone is still to come. Working: all tasks are taken, and the others are about to end.
    std::unique_lock lock(mutex_);
    ++sleepers_;
    bool in_time = changed_.wait_until(lock, deadline, [&] { return meeting.phase() != phase; });
    --sleepers_;
    if (!in_time && phase == Meeting::Phase::open) return false;
  }
  if (meeting.phase() == Meeting::Phase::failed) std::rethrow_exception(meeting.error_);
  return true;
}

void LocalGroup::wake() {
  if (sleepers_ == 0) return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::string LocalGroup::missing(Meeting& meeting) {
  std::lock_guard lock(mutex_);
  for (const auto& [key, open] : open_) {
    if (open.meeting.get() != &meeting) continue;
    std::vector<int> absent;
    for (size_t i = 0; i < open.ranks.size(); ++i) {
      if (!meeting.deposits_[i]) absent.push_back(open.ranks[i]);
    }
    return list(absent) + " did not call it";
  }
  return "";
}

void LocalGroup::fail_open(const std::function<bool(const Open&)>& which, const CommError& error) {
  for (auto it = open_.begin(); it != open_.end();) {
    if (!which(it->second)) {
      ++it;
      continue;
    }
    it->second.meeting->error_ = std::make_exception_ptr(error);
    it->second.meeting->conclude(Meeting::Phase::failed);
    it = open_.erase(it);
  }
  changed_.notify_all();
}

void LocalGroup::fail(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!failed_) failed_ = CommError(Failure::peer_lost, -1, reason);
  fail_open([](const Open&) { return true; }, *failed_);
}

at::Tensor LocalGroup::common_memory(int64_t number, int64_t bytes) {
  std::lock_guard lock(mutex_);
  Common& common = commons_[number];
  if (!common.memory.defined()) common.memory = untouched_zeros({bytes}, at::kByte, Touched::little);
  const at::Tensor memory = common.memory;
  CONVOY_CHECK(memory.numel() == bytes, "common memory of ", memory.numel(), " bytes for one rank and ", bytes,
               " for another");
  if (++common.taken == size_) commons_.erase(number);
  return memory;
}

std::shared_ptr<LocalGroup> LocalGroup::child(const std::string& label, int size) {
  std::lock_guard lock(mutex_);
  auto& known = children_[label];
  auto group = known.lock();
  if (!group) known = group = std::make_shared<LocalGroup>(size);
  return group;
}

}  // namespace convoy
