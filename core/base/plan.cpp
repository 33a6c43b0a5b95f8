#include "core/base/plan.h"

#include <limits>
#include <set>

#include "core/base/error.h"

namespace convoy {

// The rank grid: strides follow from degrees.

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {
  std::set<std::string> names;
  int64_t ranks = 1;
  for (const Axis& axis : axes_) {
    if (axis.name.empty()) throw Error(Failure::config, "a mesh axis has no name");
    if (axis.degree < 1) {
      throw Error(Failure::config, "mesh axis '", axis.name, "': the degree is ", axis.degree,
                  " and must be at least 1");
    }
    if (!names.insert(axis.name).second) {
      throw Error(Failure::config, "mesh axis '", axis.name, "' is given twice");
    }
    ranks *= axis.degree;
    if (ranks > std::numeric_limits<int>::max()) {
      throw Error(Failure::config, "mesh axis '", axis.name, "': the number of ranks does not fit into an int");
    }
  }
}

int Mesh::size() const {
  int ranks = 1;
  for (const Axis& axis : axes_) ranks *= axis.degree;
  return ranks;
}

int Mesh::degree(const std::string& name) const {
  for (const Axis& axis : axes_) {
    if (axis.name == name) return axis.degree;
  }
  return 1;
}

int Mesh::coordinate(int rank, const std::string& name) const {
  CONVOY_CHECK(rank >= 0 && rank < size(), "rank ", rank, " is not in a mesh of ", size());
  int stride = 1;
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
    if (axis->name == name) return rank / stride % axis->degree;
    stride *= axis->degree;
  }
  return 0;
}

std::vector<int> Mesh::group(int rank, const std::string& name) const {
  CONVOY_CHECK(rank >= 0 && rank < size(), "rank ", rank, " is not in a mesh of ", size());
  int stride = 1;
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
    if (axis->name == name) {
      const int first = rank - rank / stride % axis->degree * stride;
      std::vector<int> ranks;
      for (int i = 0; i < axis->degree; ++i) ranks.push_back(first + i * stride);
      return ranks;
    }
    stride *= axis->degree;
  }
  return {rank};
}

}  // namespace convoy
