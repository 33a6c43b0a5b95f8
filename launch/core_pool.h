// Free cores of a host, given out so that a rank's are near to each other and to its GPU. Pure data.
#pragma once
#include <cstddef>
#include <vector>

#include "core/topology.h"

namespace convoy {

// Where a rank wants to be; -1: anywhere.
struct Nearness {
  int numa = -1;
  int socket = -1;
};
inline bool wants_a_place(const Nearness& near) { return near.numa >= 0 || near.socket >= 0; }

// Cores as far as `units` allow them; empty: all.
std::vector<Core> restricted(const std::vector<Core>& cores, const std::vector<int>& units);
// All processing units, ascending.
std::vector<int> units_of(const std::vector<Core>& cores);
// One processing unit as a core of its own.
std::vector<Core> split_units(const std::vector<Core>& cores);
// Cores of one NUMA node each, or of one socket, in their order.
std::vector<std::vector<Core>> by_numa(const std::vector<Core>& cores);
std::vector<std::vector<Core>> by_socket(const std::vector<Core>& cores);

class CorePool {
 public:
  CorePool() = default;
  // Takes them in the order of sockets, NUMA nodes, numbers.
  explicit CorePool(std::vector<Core> cores);

  size_t size() const { return free_.size(); }
  // Of one NUMA node where any has as many left, else of one socket, else of any; of several that would do the nearest,
  // of equally near ones the first. Needs count ≤ size().
  std::vector<Core> take(size_t count, const Nearness& near);

 private:
  std::vector<Core> free_;
};

// Cores that each of several ranks gets when all are to have as many; 0 where there are more ranks than cores.
//
// The even share, made smaller where a rank would else leave the node (or socket) of its GPU, or where as many ranks fit
// into single NUMA nodes with three quarters of it at least: crossing nodes costs more than it brings.
size_t even_share(const std::vector<Core>& cores, const std::vector<Nearness>& ranks);

}  // namespace convoy
