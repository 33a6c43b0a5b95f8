#include "launch/machine/core_pool.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/base/error.h"

namespace convoy {
namespace {

int distance(const Core& core, const Affinity& near) {
  if (near.numa >= 0 && core.numa == near.numa) return 0;
  if (near.socket >= 0 && core.socket == near.socket) return 1;
  return 2;
}

// The nearest of `domains` with at least `count` cores; null if there is none.
const std::vector<Core>* nearest_with(const std::vector<std::vector<Core>>& domains, size_t count,
                                      const Affinity& near) {
  const std::vector<Core>* best = nullptr;
  for (const std::vector<Core>& domain : domains)
    if (domain.size() >= count && (best == nullptr || distance(domain.front(), near) < distance(best->front(), near)))
      best = &domain;
  return best;
}

// Smallest number of cores per rank over the nodes or sockets that ranks prefer; `limit` if none is preferred.
size_t least_near(const std::vector<Core>& cores, int Core::*place, const std::vector<Affinity>& ranks,
                  int Affinity::*preferred, size_t limit) {
  for (const std::vector<Core>& domain : grouped(cores, place)) {
    const auto wanted = static_cast<size_t>(std::count_if(
        ranks.begin(), ranks.end(), [&](const Affinity& near) { return near.*preferred == domain.front().*place; }));
    if (wanted > 0 && domain.size() >= wanted) limit = std::min(limit, domain.size() / wanted);
  }
  return limit;
}

}  // namespace

std::vector<Core> restricted(const std::vector<Core>& cores, const std::vector<int>& threads) {
  if (threads.empty()) return cores;
  const std::set<int> allowed(threads.begin(), threads.end());
  std::vector<Core> result;
  for (Core core : cores) {
    auto gone = [&](int thread) { return allowed.count(thread) == 0; };
    core.siblings.erase(std::remove_if(core.siblings.begin(), core.siblings.end(), gone), core.siblings.end());
    if (core.siblings.empty()) continue;
    core.id = core.siblings.front();
    result.push_back(core);
  }
  return result;
}

std::vector<int> hardware_threads_of(const std::vector<Core>& cores) {
  std::vector<int> threads;
  for (const Core& core : cores) threads.insert(threads.end(), core.siblings.begin(), core.siblings.end());
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::vector<Core> split_hardware_threads(const std::vector<Core>& cores) {
  std::vector<Core> threads;
  for (const Core& core : cores)
    for (int thread : core.siblings) threads.push_back({thread, core.numa, core.socket, {thread}});
  return threads;
}

std::vector<int> distinct(const std::vector<Core>& cores, int Core::*place) {
  std::set<int> numbers;
  for (const Core& core : cores) numbers.insert(core.*place);
  return {numbers.begin(), numbers.end()};
}

std::vector<std::vector<Core>> grouped(const std::vector<Core>& cores, int Core::*place) {
  std::map<int, std::vector<Core>> groups;
  for (const Core& core : cores) groups[core.*place].push_back(core);
  std::vector<std::vector<Core>> in_order;
  for (auto& [number, group] : groups) in_order.push_back(std::move(group));
  return in_order;
}

CorePool::CorePool(std::vector<Core> cores) : free_(std::move(cores)) {
  std::stable_sort(free_.begin(), free_.end(), [](const Core& a, const Core& b) {
    return std::tie(a.socket, a.numa) < std::tie(b.socket, b.numa);
  });
}

std::vector<Core> CorePool::take(size_t count, const Affinity& near) {
  CONVOY_CHECK(count <= free_.size(), count, " cores of ", free_.size());
  const auto nodes = grouped(free_, &Core::numa), sockets = grouped(free_, &Core::socket);
  const std::vector<Core>* domain = nearest_with(nodes, count, near);
  if (domain == nullptr) domain = nearest_with(sockets, count, near);
  std::vector<Core> taken = domain == nullptr ? free_ : *domain;
  std::stable_sort(taken.begin(), taken.end(),
                   [&](const Core& a, const Core& b) { return distance(a, near) < distance(b, near); });
  taken.resize(count);
  const auto is_taken = [&](const Core& core) {
    return std::any_of(taken.begin(), taken.end(), [&](const Core& mine) { return mine.id == core.id; });
  };
  free_.erase(std::remove_if(free_.begin(), free_.end(), is_taken), free_.end());
  return taken;
}

size_t even_share(const std::vector<Core>& cores, const std::vector<Affinity>& ranks) {
  if (ranks.empty()) return cores.size();
  const size_t even = cores.size() / ranks.size();
  if (even == 0) return 0;
  if (std::any_of(ranks.begin(), ranks.end(), prefers_location)) {
    const size_t in_node = least_near(cores, &Core::numa, ranks, &Affinity::numa, even);
    return least_near(cores, &Core::socket, ranks, &Affinity::socket, in_node);
  }
  const auto fitting = [nodes = grouped(cores, &Core::numa)](size_t each) {
    size_t ranks = 0;
    for (const std::vector<Core>& node : nodes) ranks += node.size() / each;
    return ranks;
  };
  for (size_t each = even; 4 * each >= 3 * even; --each)
    if (fitting(each) >= ranks.size()) return each;
  return even;
}

}  // namespace convoy
