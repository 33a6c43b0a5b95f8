// Joining, operations, waiting and failing of ranks in one process.

#include "backends/local/local_group.h"

#include <algorithm>
#include <cstring>

#include "backends/communicator/reduce.h"
#include "core/tensors/tensor_memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace convoy {
namespace {

constexpr auto spin_time = std::chrono::microseconds(40);  // about the cost of sleeping and waking

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// --- Tasks of an operation ---

constexpr int64_t chunk_bytes = 128 << 10;  // largest task: fits into the second-level cache
constexpr int64_t least_bytes = 16 << 10;   // smallest task: distributing work has a cost too

// Returns the bytes of a task, so that each of `workers` gets two tasks.
int64_t fair_chunk(int64_t bytes, size_t workers) {
  const int64_t each = bytes / (2 * int64_t(workers)) + 1;
  return (std::clamp(each, least_bytes, chunk_bytes) + 63) / 64 * 64;
}

char* bytes_at(const at::Tensor& tensor, int64_t offset) { return static_cast<char*>(tensor.data_ptr()) + offset; }

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
  throw CommError(Failure::rendezvous, absent[0], "rank ", rank, " of ", size_, " (local): ", listed_ranks(absent),
                  absent.size() == 1 ? " has" : " have", " not joined within launch.rendezvous");
}

void LocalGroup::leave(int rank) {
  std::lock_guard lock(mutex_);
  left_[rank] = true;
  fail_open(
      [rank](const Open& open) {
        auto found = std::find(open.ranks.begin(), open.ranks.end(), rank);
        return found != open.ranks.end() && !open.operation->deposits_[found - open.ranks.begin()];
      },
      CommError(Failure::peer_lost, rank, "rank ", rank, " has left the group"));
}

std::shared_ptr<LocalOperation> LocalGroup::join_operation(const Key& key, size_t index, const std::vector<int>& ranks,
                                                           Deposit deposit) {
  std::lock_guard lock(mutex_);
  Open& open = open_[key];
  if (!open.operation) {
    open.operation = std::make_shared<LocalOperation>(int(ranks.size()));
    open.ranks = ranks;
  }
  auto operation = open.operation;
  operation->deposits_[index] = std::move(deposit);
  const auto& all = operation->deposits_;
  if (std::all_of(all.begin(), all.end(), [](const auto& one) { return one.has_value(); })) {
    open_.erase(key);
    if (failed_) {
      operation->error_ = std::make_exception_ptr(*failed_);
      operation->conclude(LocalOperation::Phase::failed);
    } else if (const std::string difference = operation->prepare(); !difference.empty()) {
      // After a mismatch the later calls of the ranks do not match either.
      failed_ = CommError(Failure::disagreement, -1, difference);
      fail_open([](const Open&) { return true; }, *failed_);
    }
    if (sleepers_ > 0) changed_.notify_all();
    return operation;
  }
  if (failed_) {
    fail_open([&](const Open& one) { return one.operation == operation; }, *failed_);
    return operation;
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (all[i] || !left_[ranks[i]]) continue;
    fail_open([&](const Open& one) { return one.operation == operation; },
              CommError(Failure::peer_lost, ranks[i], "rank ", ranks[i], " has left the group"));
    break;
  }
  return operation;
}

bool LocalGroup::help(LocalOperation& operation, size_t index) {
  if (!operation.help(index)) return false;
  // The rank that finishes the last task wakes the sleeping ranks.
  wake();
  return true;
}

bool LocalGroup::wait(LocalOperation& operation, size_t index, Clock::time_point deadline) {
  auto spin_until = Clock::now() + spin_time;
  bool own_tasks_done = false;
  while (!help(operation, index)) {
    if (!own_tasks_done && operation.phase() == LocalOperation::Phase::working) {
      // This rank has no task left and the others finish theirs soon: sleeping would cost more than it saves.
      own_tasks_done = true;
      spin_until = Clock::now() + spin_time;
    }
    if (Clock::now() >= std::min(deadline, spin_until)) break;
    for (int i = 0; i < 16; ++i) relax();
  }
  while (true) {
    auto phase = operation.phase();
    if (phase != LocalOperation::Phase::open && help(operation, index)) break;
    // Open: a rank has not called yet. Working: all tasks are taken, and the others finish theirs soon.
    std::unique_lock lock(mutex_);
    ++sleepers_;
    bool in_time = changed_.wait_until(lock, deadline, [&] { return operation.phase() != phase; });
    --sleepers_;
    if (!in_time && phase == LocalOperation::Phase::open) return false;
  }
  if (operation.phase() == LocalOperation::Phase::failed) std::rethrow_exception(operation.error_);
  return true;
}

void LocalGroup::wake() {
  if (sleepers_ == 0) return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::string LocalGroup::missing(LocalOperation& operation) {
  std::lock_guard lock(mutex_);
  for (const auto& [key, open] : open_) {
    if (open.operation.get() != &operation) continue;
    std::vector<int> absent;
    for (size_t i = 0; i < open.ranks.size(); ++i) {
      if (!operation.deposits_[i]) absent.push_back(open.ranks[i]);
    }
    return listed_ranks(absent) + " did not call it";
  }
  return "";
}

void LocalGroup::fail_open(const std::function<bool(const Open&)>& which, const CommError& error) {
  for (auto it = open_.begin(); it != open_.end();) {
    if (!which(it->second)) {
      ++it;
      continue;
    }
    it->second.operation->error_ = std::make_exception_ptr(error);
    it->second.operation->conclude(LocalOperation::Phase::failed);
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
  Common& common = common_memories_[number];
  if (!common.memory.defined()) common.memory = untouched_zeros({bytes}, at::kByte, Touched::little);
  const at::Tensor memory = common.memory;
  CONVOY_CHECK(memory.numel() == bytes, "common memory of ", memory.numel(), " bytes for one rank and ", bytes,
               " for another");
  if (++common.taken == size_) common_memories_.erase(number);
  return memory;
}

std::shared_ptr<LocalGroup> LocalGroup::child(const std::string& label, int size) {
  std::lock_guard lock(mutex_);
  auto& known = children_[label];
  auto group = known.lock();
  if (!group) known = group = std::make_shared<LocalGroup>(size);
  return group;
}

std::string LocalOperation::differences() const {
  const Deposit& first = *deposits_[0];
  const bool transfer = deposits_.size() == 2 && first.input.defined() != deposits_[1]->input.defined();
  const bool match = std::all_of(deposits_.begin(), deposits_.end(), [&](const auto& other) {
    if (!transfer) return other->call.hash == first.call.hash;
    return other->call.dtype == first.call.dtype && other->call.elements == first.call.elements;
  });
  if (!match) {
    std::vector<int> ranks;
    std::vector<std::string> texts;
    for (const auto& deposit : deposits_) {
      ranks.push_back(deposit->call.rank);
      texts.push_back(describe_call(deposit->call));
    }
    return "the ranks called different operations: " + difference_of(ranks, texts).message;
  }
  if (first.call.operation != Operation::all_to_all_v) return "";
  for (size_t from = 0; from < deposits_.size(); ++from) {
    for (size_t to = 0; to < deposits_.size(); ++to) {
      int64_t sent = deposits_[from]->input_bounds[to + 1] - deposits_[from]->input_bounds[to];
      int64_t wanted = deposits_[to]->output_bounds[from + 1] - deposits_[to]->output_bounds[from];
      if (sent != wanted) return str("rank ", from, " sends ", sent, " bytes to rank ", to, ", which expects ", wanted);
    }
  }
  return "";
}

void LocalOperation::copy(void* to, const void* from, int64_t bytes) {
  if (to == from) return;
  for (int64_t begin = 0; begin < bytes; begin += chunk_bytes) {
    int64_t n = std::min(chunk_bytes, bytes - begin);
    tasks_.push_back([to = static_cast<char*>(to) + begin, from = static_cast<const char*>(from) + begin, n] {
      std::memcpy(to, from, n);
    });
  }
}

void LocalOperation::prepare_reduction() {
  const Deposit& first = *deposits_[0];
  bool scatter = first.call.operation == Operation::reduce_scatter;
  at::ScalarType dtype = first.output.scalar_type();
  int64_t size = first.output.element_size();
  int64_t elements = first.output.numel();
  size_t ranks = deposits_.size();
  int64_t chunk = fair_chunk(elements * size * (scatter ? int64_t(ranks) : 1), ranks) / size;
  for (size_t slice = 0; slice < (scatter ? ranks : 1); ++slice) {
    for (int64_t begin = 0; begin < elements; begin += chunk) {
      int64_t n = std::min(chunk, elements - begin);
      std::vector<const void*> in;
      std::vector<void*> out;
      for (const auto& deposit : deposits_) {
        if (scatter) {
          in.push_back(bytes_at(deposit->input, (int64_t(slice) * elements + begin) * size));
        } else {
          in.push_back(bytes_at(deposit->output, begin * size));
          out.push_back(bytes_at(deposit->output, begin * size));
        }
      }
      if (scatter) out = {bytes_at(deposits_[slice]->output, begin * size)};
      tasks_.push_back([in, out, n, dtype, op = first.op, bytes = n * size] {
        reduce(out[0], in, n, dtype, op);
        for (size_t i = 1; i < out.size(); ++i) std::memcpy(out[i], out[0], bytes);
      });
    }
  }
}

std::string LocalOperation::prepare() {
  std::string reason = differences();
  if (!reason.empty()) {
    error_ = std::make_exception_ptr(CommError(Failure::disagreement, -1, reason));
    conclude(Phase::failed);
    return reason;
  }
  const Deposit& first = *deposits_[0];
  size_t ranks = deposits_.size();
  switch (first.call.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter:
      prepare_reduction();
      break;
    case Operation::broadcast:
      for (const auto& deposit : deposits_) {
        copy(deposit->output.data_ptr(), deposits_[first.root]->output.data_ptr(), first.output.numel());
      }
      break;
    case Operation::all_gather:
    case Operation::all_gather_v:
    case Operation::split:
    case Operation::all_to_all_v:
      for (size_t to = 0; to < ranks; ++to) {
        // Memory that all ranks share is written once.
        if (to > 0 && deposits_[to]->output.data_ptr() == deposits_[0]->output.data_ptr()) continue;
        for (size_t from = 0; from < ranks; ++from) {
          const Deposit& source = *deposits_[from];
          const Offsets& bounds = deposits_[to]->output_bounds;
          int64_t offset = source.input_bounds.empty() ? 0 : source.input_bounds[to];
          copy(bytes_at(deposits_[to]->output, bounds[from]), bytes_at(source.input, offset),
               bounds[from + 1] - bounds[from]);
        }
      }
      break;
    case Operation::send:
    case Operation::receive:
    case Operation::group:
      copy(deposits_[1]->output.data_ptr(), first.input.data_ptr(), first.input.numel());
      break;
    case Operation::barrier:
      break;
  }
  if (tasks_.empty()) {
    conclude(Phase::over);
    return "";
  }
  count_ = int64_t(tasks_.size());
  assign_tasks();
  phase_ = Phase::working;
  return "";
}

void LocalOperation::assign_tasks() {
  ranges_ = std::make_unique<TaskRange[]>(participants_);
  const auto participants = int64_t(participants_);
  for (int64_t index = 0; index < participants; ++index) {
    ranges_[size_t(index)].next = count_ * index / participants;
    ranges_[size_t(index)].end = count_ * (index + 1) / participants;
  }
}

void LocalOperation::conclude(Phase phase) {
  // The tensors are dropped before a waiter sees the end.
  deposits_.clear();
  tasks_.clear();
  phase_ = phase;
}

bool LocalOperation::help(size_t index) {
  for (size_t k = 0; k < participants_ && phase() == Phase::working; ++k) {
    TaskRange& range = ranges_[(index + k) % participants_];
    for (int64_t i = range.next++; i < range.end; i = range.next++) {
      tasks_[size_t(i)]();
      if (++finished_ == count_) conclude(Phase::over);
    }
  }
  return phase() == Phase::over || phase() == Phase::failed;
}

}  // namespace convoy
