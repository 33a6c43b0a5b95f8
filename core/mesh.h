// The rank grid: named axes whose degrees multiply to the number of ranks. Row-major: the last axis varies fastest.
// Pure data, copyable, thread-safe when not modified.
#pragma once
#include <string>
#include <vector>

namespace convoy {

struct Axis {
  std::string name;  // "data", "pipeline", "tensor"
  int degree = 1;
};

class Mesh {
 public:
  Mesh() = default;                       // one rank, no axis
  explicit Mesh(std::vector<Axis> axes);  // throws Error(config) for a degree below 1 or a name given twice

  int size() const;                                         // product of the degrees
  int degree(const std::string& axis) const;                // 1 for an axis that is not there
  int coordinate(int rank, const std::string& axis) const;  // 0 for an axis that is not there
  // Ranks that differ from `rank` along `axis` only, in order of their coordinate; {rank} for an axis that is not there.
  std::vector<int> group(int rank, const std::string& axis) const;
  const std::vector<Axis>& axes() const { return axes_; }

 private:
  std::vector<Axis> axes_;
};

}  // namespace convoy
