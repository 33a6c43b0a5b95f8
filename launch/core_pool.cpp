#include "launch/core_pool.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"

namespace convoy {
namespace {

int distance(const Core& core, const Nearness& near) {
  if (near.numa >= 0 && core.numa == near.numa) return 0;
  if (near.socket >= 0 && core.socket == near.socket) return 1;
  return 2;
}

// The nearest of `domains` that has `count`; null where none has.
const std::vector<Core>* nearest_with(const std::vector<std::vector<Core>>& domains, size_t count,
                                      const Nearness& near) {
  const std::vector<Core>* best = nullptr;
  for (const std::vector<Core>& domain : domains)
    if (domain.size() >= count && (best == nullptr || distance(domain.front(), near) < distance(best->front(), near)))
      best = &domain;
  return best;
}

template <class Key>
std::vector<std::vector<Core>> divided(const std::vector<Core>& cores, Key key) {
  std::map<int, std::vector<Core>> domains;
  for (const Core& core : cores) domains[key(core)].push_back(core);
  std::vector<std::vector<Core>> in_order;
  for (auto& [id, domain] : domains) in_order.push_back(std::move(domain));
  return in_order;
}

// The least that one of the domains has for each of the ranks that want it; `limit` where none is wanted.
template <class Key>
size_t least_near(const std::vector<std::vector<Core>>& domains, const std::vector<Nearness>& ranks, Key key,
                  size_t limit) {
  for (const std::vector<Core>& domain : domains) {
    const auto wanted = static_cast<size_t>(
        std::count_if(ranks.begin(), ranks.end(), [&](const Nearness& near) { return key(near, domain.front()); }));
    if (wanted > 0 && domain.size() >= wanted) limit = std::min(limit, domain.size() / wanted);
  }
  return limit;
}

}  // namespace

// Cores as far as `units` allow them; empty: all.
std::vector<Core> restricted(const std::vector<Core>& cores, const std::vector<int>& units) {
  if (units.empty()) return cores;
  const std::set<int> allowed(units.begin(), units.end());
  std::vector<Core> result;
  for (Core core : cores) {
    auto gone = [&](int unit) { return allowed.count(unit) == 0; };
    core.siblings.erase(std::remove_if(core.siblings.begin(), core.siblings.end(), gone), core.siblings.end());
    if (core.siblings.empty()) continue;
    core.id = core.siblings.front();
    result.push_back(core);
  }
  return result;
}

std::vector<int> units_of(const std::vector<Core>& cores) {
  std::vector<int> units;
  for (const Core& core : cores) units.insert(units.end(), core.siblings.begin(), core.siblings.end());
  std::sort(units.begin(), units.end());
  return units;
}

// One processing unit as a core of its own.
std::vector<Core> split_units(const std::vector<Core>& cores) {
  std::vector<Core> units;
  for (const Core& core : cores)
    for (int unit : core.siblings) units.push_back({unit, core.numa, core.socket, {unit}});
  return units;
}

std::vector<std::vector<Core>> by_numa(const std::vector<Core>& cores) {
  return divided(cores, [](const Core& core) { return core.numa; });
}

std::vector<std::vector<Core>> by_socket(const std::vector<Core>& cores) {
  return divided(cores, [](const Core& core) { return core.socket; });
}

CorePool::CorePool(std::vector<Core> cores) : free_(std::move(cores)) {
  std::stable_sort(free_.begin(), free_.end(), [](const Core& a, const Core& b) {
    return std::tie(a.socket, a.numa) < std::tie(b.socket, b.numa);
  });
}

std::vector<Core> CorePool::take(size_t count, const Nearness& near) {
  CONVOY_CHECK(count <= free_.size(), count, " cores of ", free_.size());
  const auto nodes = by_numa(free_), sockets = by_socket(free_);
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

size_t even_share(const std::vector<Core>& cores, const std::vector<Nearness>& ranks) {
  if (ranks.empty()) return cores.size();
  const size_t even = cores.size() / ranks.size();
  if (even == 0) return 0;
  if (std::any_of(ranks.begin(), ranks.end(), wants_a_place)) {
    const size_t in_node = least_near(
        by_numa(cores), ranks, [](const Nearness& near, const Core& core) { return near.numa == core.numa; }, even);
    return least_near(
        by_socket(cores), ranks, [](const Nearness& near, const Core& core) { return near.socket == core.socket; },
        in_node);
  }
  const auto fitting = [nodes = by_numa(cores)](size_t each) {
    size_t ranks = 0;
    for (const std::vector<Core>& node : nodes) ranks += node.size() / each;
    return ranks;
  };
  for (size_t each = even; 4 * each >= 3 * even; --each)
    if (fitting(each) >= ranks.size()) return each;
  return even;
}

}  // namespace convoy
