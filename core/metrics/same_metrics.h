// SameMetrics: whether all ranks evaluate to the same metrics. Their sums are added up by order alone.
// Threads: one rank's thread. Failure: CommError(disagreement) on every rank, with both lists.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/context.h"

namespace convoy {

class SameMetrics {
 public:
  explicit SameMetrics(const Context& context) : context_(context) {}
  // Collective the first time for each `kind` of evaluation. Later this rank's names are held against those, without
  // talking to anybody: Error(training) where they changed.
  void check(const std::string& kind, const std::vector<std::string>& names);

 private:
  const Context& context_;
  std::map<std::string, std::vector<std::string>> agreed_;  // by kind
};

}  // namespace convoy
