#include "launch/farm/queue.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace convoy {
namespace {

constexpr double rounding = 1e-9;     // ten shares of 0.1 fit into one
constexpr size_t most_passed = 1000;  // waiting ones that are looked at behind others that have to wait

bool has_room(double taken, double share) { return taken + share <= 1 + rounding; }

// Of memory; `all` 0: nobody knows.
bool may_promise(int64_t taken, int64_t more, int64_t all) { return more == 0 || all <= 0 || taken + more <= all; }

// Indices of `load` with room for `share`, those first that are better left to nobody else: by `preferred`, then the
// fullest, then their order.
std::vector<int> with_room(const std::vector<int>& candidates, const std::vector<double>& load,
                           const std::vector<double>& preferred, double share) {
  std::vector<int> found;
  for (int index : candidates)
    if (has_room(load[static_cast<size_t>(index)], share)) found.push_back(index);
  std::stable_sort(found.begin(), found.end(), [&](int a, int b) {
    const auto x = static_cast<size_t>(a), y = static_cast<size_t>(b);
    const bool free_x = has_room(preferred[x], share), free_y = has_room(preferred[y], share);
    return std::make_tuple(!free_x, -load[x]) < std::make_tuple(!free_y, -load[y]);
  });
  return found;
}

}  // namespace

bool Queue::Urgency::operator<(const Urgency& other) const {
  return std::make_tuple(-priority, -estimate, job) < std::make_tuple(-other.priority, -other.estimate, other.job);
}

Queue::Queue(Machines machines, int max_parallel) : machines_(std::move(machines)), max_parallel_(max_parallel) {
  for (const Machines::Slot& slot : machines_.slots) hosts_ = std::max(hosts_, slot.host + 1);
}

Queue::Load Queue::no_load() const {
  return {std::vector<double>(machines_.slots.size()), std::vector<double>(machines_.gpus.size()),
          std::vector<int64_t>(static_cast<size_t>(hosts_)), std::vector<int64_t>(machines_.gpus.size())};
}

void Queue::put(Load& load, const Grant& grant, const Claim& claim, int times) {
  for (int slot : grant.slots) load.slots[static_cast<size_t>(slot)] += times * claim.share;
  for (int gpu : grant.gpus) load.gpus[static_cast<size_t>(gpu)] += times * claim.share;
  load.memory[static_cast<size_t>(grant.host)] += times * claim.memory;
  for (int gpu : grant.gpus) load.gpu_memory[static_cast<size_t>(gpu)] += times * claim.gpu_memory;
}

Queue::Load Queue::load_of_running(bool with_stopping, const std::set<int>& without) const {
  Load load = no_load();
  for (const auto& [job, running] : running_)
    if ((with_stopping || !running.stopping) && without.count(job) == 0) put(load, running.grant, running.claim);
  return load;
}

std::optional<Grant> Queue::place_on(int host, const Claim& claim, const Load& load, const Load& preferred) const {
  Grant grant;
  grant.host = host;
  const auto index = static_cast<size_t>(host);
  if (index < machines_.memory.size() && !may_promise(load.memory[index], claim.memory, machines_.memory[index]))
    return std::nullopt;
  std::vector<int> candidates, gpus;
  for (size_t i = 0; i < machines_.slots.size(); ++i) {
    const std::vector<int>& cores = machines_.slots[i].cores;
    const bool named = claim.core_list.empty() || std::any_of(cores.begin(), cores.end(), [&](int core) {
                         return std::count(claim.core_list.begin(), claim.core_list.end(), core) > 0;
                       });
    if (machines_.slots[i].host == host && named) candidates.push_back(static_cast<int>(i));
  }
  for (size_t i = 0; i < machines_.gpus.size(); ++i) {
    const int gpu = machines_.gpus[i].gpu;
    const bool named = claim.gpu_list.empty() || std::count(claim.gpu_list.begin(), claim.gpu_list.end(), gpu) > 0;
    const bool fits = may_promise(load.gpu_memory[i], claim.gpu_memory, machines_.gpus[i].memory);
    if (machines_.gpus[i].host == host && named && fits) gpus.push_back(static_cast<int>(i));
  }
  const std::vector<int> free = with_room(candidates, load.slots, preferred.slots, claim.share);
  int cores = 0;
  std::set<int> units;
  for (int slot : free) {
    if (claim.core_list.empty() && cores >= std::max(claim.cores, 1)) break;
    grant.slots.push_back(slot);
    const std::vector<int>& of_slot = machines_.slots[static_cast<size_t>(slot)].cores;
    cores += machines_.slots[static_cast<size_t>(slot)].size;
    units.insert(of_slot.begin(), of_slot.end());
  }
  if (claim.core_list.empty() ? cores < std::max(claim.cores, 1)
                              : std::any_of(claim.core_list.begin(), claim.core_list.end(),
                                            [&](int core) { return units.count(core) == 0; }))
    return std::nullopt;
  const std::vector<int> free_gpus = with_room(gpus, load.gpus, preferred.gpus, claim.share);
  const size_t wanted = claim.gpu_list.empty() ? static_cast<size_t>(claim.gpus) : claim.gpu_list.size();
  if (free_gpus.size() < wanted) return std::nullopt;
  grant.gpus.assign(free_gpus.begin(), free_gpus.begin() + static_cast<std::ptrdiff_t>(wanted));
  std::sort(grant.slots.begin(), grant.slots.end());
  std::sort(grant.gpus.begin(), grant.gpus.end());
  return grant;
}

// Of several hosts the one with the least room to spare: wide gangs find the others.
std::optional<Grant> Queue::place(const Claim& claim, const Load& load, const Load& preferred) const {
  std::optional<Grant> best;
  double least = std::numeric_limits<double>::infinity();
  for (int host = 0; host < hosts_; ++host) {
    auto grant = place_on(host, claim, load, preferred);
    if (!grant) continue;
    if (!claim.core_list.empty()) return grant;
    double room = 0;
    for (size_t i = 0; i < machines_.slots.size(); ++i)
      if (machines_.slots[i].host == host) room += 1 - preferred.slots[i];
    if (room >= least) continue;
    least = room;
    best = std::move(grant);
  }
  return best;
}

bool Queue::possible(const Claim& claim) const { return place(claim, no_load(), no_load()).has_value(); }

bool Queue::room_for_one(size_t running) const {
  return max_parallel_ == 0 || running < static_cast<size_t>(max_parallel_);
}

void Queue::add(int job, const Claim& claim, double not_before) {
  order_.insert({claim.priority, claim.estimate, job});
  waiting_.emplace(job, Waiting{claim, not_before});
}

bool Queue::drop(int job) {
  const auto found = waiting_.find(job);
  if (found == waiting_.end()) return false;
  const Claim& claim = found->second.claim;
  order_.erase({claim.priority, claim.estimate, job});
  waiting_.erase(found);
  return true;
}

std::set<int> Queue::less_urgent(int64_t priority) const {
  std::set<int> jobs;
  for (const auto& [job, running] : running_)
    if (!running.stopping && running.claim.priority < priority) jobs.insert(job);
  return jobs;
}

// Of one that may make others give way, and yet has to wait for some that need not.
bool Queue::is_held_up(const Claim& claim, const Kept& kept) const {
  return claim.preempt && !would_fit(claim, less_urgent(claim.priority), kept);
}

// For those after `next_priority` nothing stands in the way that is kept from equals only.
void Queue::release(Kept& kept, int64_t next_priority) const {
  for (auto equal = kept.from_equals.begin(); equal != kept.from_equals.end();) {
    if (equal->claim.priority <= next_priority) {
      ++equal;
      continue;
    }
    put(kept.load, equal->grant, equal->claim, -1);
    equal = kept.from_equals.erase(equal);
  }
}

void Queue::keep_for(const Claim& claim, const Load& lasting, Kept& kept) const {
  const bool held_up = is_held_up(claim, kept);
  const auto later = place(claim, kept.load, lasting);
  if (!later) return;
  put(kept.load, *later, claim);
  if (held_up)
    kept.from_equals.push_back({claim, *later});
  else
    ++kept.coming;
}

std::optional<Grant> Queue::next(double now) {
  if (!room_for_one(running_.size())) return std::nullopt;
  const Load running = load_of_running(true);
  const Load lasting = load_of_running(false);
  Kept kept{no_load(), {}, 0};  // behind the first that waits
  size_t passed = 0;
  for (const Urgency& urgency : order_) {
    const Waiting& waiting = waiting_.at(urgency.job);
    if (waiting.not_before > now) continue;
    const Claim claim = waiting.claim;
    release(kept, claim.priority);
    const Load taken = sum_of(running, kept.load);
    if (auto grant = place(claim, taken, taken)) {
      grant->job = urgency.job;
      drop(grant->job);
      running_.emplace(grant->job, Running{claim, *grant, starts_++, false});
      return grant;
    }
    if (++passed > most_passed) break;
    keep_for(claim, lasting, kept);
  }
  return std::nullopt;
}

Queue::Load Queue::sum_of(Load load, const Load& other) {
  for (size_t i = 0; i < load.slots.size(); ++i) load.slots[i] += other.slots[i];
  for (size_t i = 0; i < load.gpus.size(); ++i) load.gpus[i] += other.gpus[i];
  for (size_t i = 0; i < load.memory.size(); ++i) load.memory[i] += other.memory[i];
  for (size_t i = 0; i < load.gpu_memory.size(); ++i) load.gpu_memory[i] += other.gpu_memory[i];
  return load;
}

bool Queue::would_fit(const Claim& claim, const std::set<int>& without, const Kept& kept) const {
  size_t running = kept.coming;
  for (const auto& [job, job_running] : running_)
    if (!job_running.stopping && without.count(job) == 0) ++running;
  const Load load = sum_of(load_of_running(false, without), kept.load);
  return room_for_one(running) && place(claim, load, load).has_value();
}

// Empty where what stops already is enough, and where nothing helps.
std::set<int> Queue::in_the_way_of(const Claim& claim, const Kept& kept) const {
  if (would_fit(claim, {}, kept)) return {};
  // The least urgent first, of those the one that started last: it has the least behind it.
  std::vector<std::pair<std::pair<int64_t, uint64_t>, int>> candidates;
  for (int job : less_urgent(claim.priority)) {
    const Running& running = running_.at(job);
    candidates.push_back({{running.claim.priority, ~running.number}, job});
  }
  std::sort(candidates.begin(), candidates.end());
  std::set<int> chosen;
  std::vector<int> order;
  for (const auto& [key, job] : candidates) {
    if (would_fit(claim, chosen, kept)) break;
    chosen.insert(job);
    order.push_back(job);
  }
  if (!would_fit(claim, chosen, kept)) return {};
  // Some may stand where they are in nobody's way.
  for (auto job = order.rbegin(); job != order.rend(); ++job) {
    chosen.erase(*job);
    if (!would_fit(claim, chosen, kept)) chosen.insert(*job);
  }
  return chosen;
}

std::vector<int> Queue::give_way(double now) {
  std::vector<int> victims;
  auto asking = std::count_if(waiting_.begin(), waiting_.end(), [&](const auto& waiting) {
    return waiting.second.claim.preempt && waiting.second.not_before <= now;
  });
  // What becomes free is kept for those first that are more urgent still: nobody is to stop for that.
  Kept kept{no_load(), {}, 0};
  Load lasting = load_of_running(false);
  for (auto urgency = order_.begin(); asking > 0; ++urgency) {
    const Waiting& waiting = waiting_.at(urgency->job);
    if (waiting.not_before > now) continue;
    release(kept, urgency->priority);
    if (waiting.claim.preempt) {
      --asking;
      for (int job : in_the_way_of(waiting.claim, kept)) {
        running_.at(job).stopping = true;
        victims.push_back(job);
      }
      lasting = load_of_running(false);
    }
    keep_for(waiting.claim, lasting, kept);
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
