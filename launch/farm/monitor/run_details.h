// Details of the selected run for `convoy top`: where its time goes, and a curve of its metric.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"

namespace convoy {

// Reads only what a growing metrics.jsonl has gained. Threads: one.
class RunDetails {
 public:
  explicit RunDetails(std::string folder) : folder_(std::move(folder)) {}

  // The time of rank 0 by part, the advice after the end, and curves of `width` columns. Empty without figures.
  std::vector<std::string> lines(size_t width);

 private:
  void read_metrics();

  const std::string folder_;
  long read_ = 0;                                                         // bytes of metrics.jsonl
  std::vector<std::string> names_;                                        // of curves, in order of their first value
  std::map<std::string, std::vector<std::pair<double, double>>> curves_;  // step and value, by name
};

// A curve of dots, `rows` lines of `columns` characters of Braille: each has two columns and four rows of dots. Each
// column of dots is the mean of the values in its range of steps.
std::vector<std::string> braille_curve(const std::vector<std::pair<double, double>>& points, size_t columns,
                                       size_t rows);

}  // namespace convoy
