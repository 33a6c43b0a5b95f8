#include "launch/farm/schedule/queue.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace convoy {
namespace {

constexpr double rounding = 1e-9;     // ten shares of 0.1 fit into one
constexpr size_t most_passed = 1000;  // waiting jobs that next() may pass over

bool has_share(double taken, double share) { return taken + share <= 1 + rounding; }

// `all` 0: unknown and unlimited.
bool has_memory(int64_t taken, int64_t more, int64_t all) { return more == 0 || all <= 0 || taken + more <= all; }

// Candidates whose usage leaves room for `share`. Sorted: those free in `preferred` first, then the fullest, then by
// index.
std::vector<int> with_room(const std::vector<int>& candidates, const std::vector<double>& usage,
                           const std::vector<double>& preferred, double share) {
  std::vector<int> found;
  for (int index : candidates)
    if (has_share(usage[static_cast<size_t>(index)], share)) found.push_back(index);
  std::stable_sort(found.begin(), found.end(), [&](int a, int b) {
    const auto x = static_cast<size_t>(a), y = static_cast<size_t>(b);
    const bool free_x = has_share(preferred[x], share), free_y = has_share(preferred[y], share);
    return std::make_tuple(!free_x, -usage[x]) < std::make_tuple(!free_y, -usage[y]);
  });
  return found;
}

}  // namespace

bool Queue::QueueOrder::operator<(const QueueOrder& other) const {
  return std::make_tuple(-priority, -estimate, job) < std::make_tuple(-other.priority, -other.estimate, other.job);
}

Queue::Queue(Inventory inventory, int max_parallel) : inventory_(std::move(inventory)), max_parallel_(max_parallel) {
  for (const Inventory::Slot& slot : inventory_.slots) hosts_ = std::max(hosts_, slot.host + 1);
}

Queue::Usage Queue::no_usage() const {
  return {std::vector<double>(inventory_.slots.size()), std::vector<double>(inventory_.gpus.size()),
          std::vector<int64_t>(static_cast<size_t>(hosts_)), std::vector<int64_t>(inventory_.gpus.size())};
}

void Queue::put(Usage& usage, const Allocation& allocation, const ResourceRequest& request, int times) {
  for (int slot : allocation.slots) usage.slots[static_cast<size_t>(slot)] += times * request.share;
  for (int gpu : allocation.gpus) usage.gpus[static_cast<size_t>(gpu)] += times * request.share;
  usage.memory[static_cast<size_t>(allocation.host)] += times * request.memory;
  for (int gpu : allocation.gpus) usage.gpu_memory[static_cast<size_t>(gpu)] += times * request.gpu_memory;
}

Queue::Usage Queue::usage_of_running(bool with_stopping, const std::set<int>& without) const {
  Usage usage = no_usage();
  for (const auto& [job, running] : running_)
    if ((with_stopping || !running.stopping) && without.count(job) == 0)
      put(usage, running.allocation, running.request);
  return usage;
}

std::optional<Allocation> Queue::place_on(int host, const ResourceRequest& request, const Usage& usage,
                                          const Usage& preferred) const {
  Allocation allocation;
  allocation.host = host;
  const auto index = static_cast<size_t>(host);
  if (index < inventory_.memory.size() && !has_memory(usage.memory[index], request.memory, inventory_.memory[index]))
    return std::nullopt;
  std::vector<int> candidates, gpus;
  for (size_t i = 0; i < inventory_.slots.size(); ++i) {
    const std::vector<int>& cores = inventory_.slots[i].cores;
    const bool named = request.core_list.empty() || std::any_of(cores.begin(), cores.end(), [&](int core) {
                         return std::count(request.core_list.begin(), request.core_list.end(), core) > 0;
                       });
    if (inventory_.slots[i].host == host && named) candidates.push_back(static_cast<int>(i));
  }
  for (size_t i = 0; i < inventory_.gpus.size(); ++i) {
    const int gpu = inventory_.gpus[i].gpu;
    const bool named =
        request.gpu_list.empty() || std::count(request.gpu_list.begin(), request.gpu_list.end(), gpu) > 0;
    const bool fits = has_memory(usage.gpu_memory[i], request.gpu_memory, inventory_.gpus[i].memory);
    if (inventory_.gpus[i].host == host && named && fits) gpus.push_back(static_cast<int>(i));
  }
  const std::vector<int> free = with_room(candidates, usage.slots, preferred.slots, request.share);
  int cores = 0;
  std::set<int> threads;
  for (int slot : free) {
    if (request.core_list.empty() && cores >= std::max(request.cores, 1)) break;
    allocation.slots.push_back(slot);
    const std::vector<int>& of_slot = inventory_.slots[static_cast<size_t>(slot)].cores;
    cores += inventory_.slots[static_cast<size_t>(slot)].size;
    threads.insert(of_slot.begin(), of_slot.end());
  }
  if (request.core_list.empty() ? cores < std::max(request.cores, 1)
                                : std::any_of(request.core_list.begin(), request.core_list.end(),
                                              [&](int core) { return threads.count(core) == 0; }))
    return std::nullopt;
  const std::vector<int> free_gpus = with_room(gpus, usage.gpus, preferred.gpus, request.share);
  const size_t wanted = request.gpu_list.empty() ? static_cast<size_t>(request.gpus) : request.gpu_list.size();
  if (free_gpus.size() < wanted) return std::nullopt;
  allocation.gpus.assign(free_gpus.begin(), free_gpus.begin() + static_cast<std::ptrdiff_t>(wanted));
  std::sort(allocation.slots.begin(), allocation.slots.end());
  std::sort(allocation.gpus.begin(), allocation.gpus.end());
  return allocation;
}

// Chooses the host with the least free room, to keep others free for large pipelines.
std::optional<Allocation> Queue::place(const ResourceRequest& request, const Usage& usage,
                                       const Usage& preferred) const {
  std::optional<Allocation> best;
  double least = std::numeric_limits<double>::infinity();
  for (int host = 0; host < hosts_; ++host) {
    auto allocation = place_on(host, request, usage, preferred);
    if (!allocation) continue;
    if (!request.core_list.empty()) return allocation;
    double room = 0;
    for (size_t i = 0; i < inventory_.slots.size(); ++i)
      if (inventory_.slots[i].host == host) room += 1 - preferred.slots[i];
    if (room >= least) continue;
    least = room;
    best = std::move(allocation);
  }
  return best;
}

bool Queue::possible(const ResourceRequest& request) const {
  return place(request, no_usage(), no_usage()).has_value();
}

bool Queue::room_for_one(size_t running) const {
  return max_parallel_ == 0 || running < static_cast<size_t>(max_parallel_);
}

void Queue::add(int job, const ResourceRequest& request, double not_before) {
  order_.insert({request.priority, request.estimate, job});
  waiting_.emplace(job, Waiting{request, not_before});
}

bool Queue::drop(int job) {
  const auto found = waiting_.find(job);
  if (found == waiting_.end()) return false;
  const ResourceRequest& request = found->second.request;
  order_.erase({request.priority, request.estimate, job});
  waiting_.erase(found);
  return true;
}

void Queue::set_priority(int job, int64_t priority) {
  if (const auto waiting = waiting_.find(job); waiting != waiting_.end()) {
    ResourceRequest& request = waiting->second.request;
    order_.erase({request.priority, request.estimate, job});
    request.priority = priority;
    order_.insert({request.priority, request.estimate, job});
  }
  if (const auto running = running_.find(job); running != running_.end()) running->second.request.priority = priority;
}

std::set<int> Queue::lower_priority(int64_t priority) const {
  std::set<int> jobs;
  for (const auto& [job, running] : running_)
    if (!running.stopping && running.request.priority < priority) jobs.insert(job);
  return jobs;
}

bool Queue::is_blocked(const ResourceRequest& request, const Reservation& reservation) const {
  return request.preempt && !would_fit(request, lower_priority(request.priority), reservation);
}

void Queue::release(Reservation& reservation, int64_t next_priority) const {
  for (auto entry = reservation.blocked.begin(); entry != reservation.blocked.end();) {
    if (entry->request.priority <= next_priority) {
      ++entry;
      continue;
    }
    put(reservation.usage, entry->allocation, entry->request, -1);
    entry = reservation.blocked.erase(entry);
  }
}

void Queue::reserve_for(const ResourceRequest& request, const Usage& lasting, Reservation& reservation) const {
  const bool blocked = is_blocked(request, reservation);
  const auto later = place(request, reservation.usage, lasting);
  if (!later) return;
  put(reservation.usage, *later, request);
  if (blocked)
    reservation.blocked.push_back({request, *later});
  else
    ++reservation.coming;
}

std::optional<Allocation> Queue::next(double now) {
  if (!room_for_one(running_.size())) return std::nullopt;
  const Usage running = usage_of_running(true);
  const Usage lasting = usage_of_running(false);
  Reservation reservation{no_usage(), {}, 0};  // for waiting pipelines before the present one
  size_t passed = 0;
  for (const QueueOrder& entry : order_) {
    const Waiting& waiting = waiting_.at(entry.job);
    if (waiting.not_before > now) continue;
    const ResourceRequest request = waiting.request;
    release(reservation, request.priority);
    const Usage taken = sum_of(running, reservation.usage);
    if (auto allocation = place(request, taken, taken)) {
      allocation->job = entry.job;
      drop(allocation->job);
      running_.emplace(allocation->job, Running{request, *allocation, starts_++, false});
      return allocation;
    }
    if (++passed > most_passed) break;
    reserve_for(request, lasting, reservation);
  }
  return std::nullopt;
}

Queue::Usage Queue::sum_of(Usage usage, const Usage& other) {
  for (size_t i = 0; i < usage.slots.size(); ++i) usage.slots[i] += other.slots[i];
  for (size_t i = 0; i < usage.gpus.size(); ++i) usage.gpus[i] += other.gpus[i];
  for (size_t i = 0; i < usage.memory.size(); ++i) usage.memory[i] += other.memory[i];
  for (size_t i = 0; i < usage.gpu_memory.size(); ++i) usage.gpu_memory[i] += other.gpu_memory[i];
  return usage;
}

bool Queue::would_fit(const ResourceRequest& request, const std::set<int>& without,
                      const Reservation& reservation) const {
  size_t running = reservation.coming;
  for (const auto& [job, job_running] : running_)
    if (!job_running.stopping && without.count(job) == 0) ++running;
  const Usage usage = sum_of(usage_of_running(false, without), reservation.usage);
  return room_for_one(running) && place(request, usage, usage).has_value();
}

std::set<int> Queue::blockers_of(const ResourceRequest& request, const Reservation& reservation) const {
  if (would_fit(request, {}, reservation)) return {};
  // Lowest priority first, then the latest start: it loses the least work.
  std::vector<std::pair<std::pair<int64_t, uint64_t>, int>> candidates;
  for (int job : lower_priority(request.priority)) {
    const Running& running = running_.at(job);
    candidates.push_back({{running.request.priority, ~running.number}, job});
  }
  std::sort(candidates.begin(), candidates.end());
  std::set<int> chosen;
  std::vector<int> order;
  for (const auto& [key, job] : candidates) {
    if (would_fit(request, chosen, reservation)) break;
    chosen.insert(job);
    order.push_back(job);
  }
  if (!would_fit(request, chosen, reservation)) return {};
  // Spares jobs that need not stop after all.
  for (auto job = order.rbegin(); job != order.rend(); ++job) {
    chosen.erase(*job);
    if (!would_fit(request, chosen, reservation)) chosen.insert(*job);
  }
  return chosen;
}

std::vector<int> Queue::preempt(double now) {
  std::vector<int> victims;
  auto asking = std::count_if(waiting_.begin(), waiting_.end(), [&](const auto& waiting) {
    return waiting.second.request.preempt && waiting.second.not_before <= now;
  });
  // Each waiting job reserves resources, also one that may not preempt: a higher priority gets freed resources first.
  Reservation reservation{no_usage(), {}, 0};
  Usage lasting = usage_of_running(false);
  for (auto entry = order_.begin(); asking > 0; ++entry) {
    const Waiting& waiting = waiting_.at(entry->job);
    if (waiting.not_before > now) continue;
    release(reservation, entry->priority);
    if (waiting.request.preempt) {
      --asking;
      for (int job : blockers_of(waiting.request, reservation)) {
        running_.at(job).stopping = true;
        victims.push_back(job);
      }
      lasting = usage_of_running(false);
    }
    reserve_for(waiting.request, lasting, reservation);
  }
  return victims;
}

void Queue::ended(int job) { running_.erase(job); }

double Queue::next_time(double now) const {
  double earliest = std::numeric_limits<double>::infinity();
  for (const auto& [job, waiting] : waiting_)
    if (waiting.not_before > now) earliest = std::min(earliest, waiting.not_before);
  return earliest;
}

}  // namespace convoy
