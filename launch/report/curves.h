// Curves of a run from its metrics.jsonl, and their reduction to few points. Without LibTorch. Threads: stateless.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"

namespace convoy {

// Values by step, ascending. A value that is not finite is NaN.
struct Curve {
  std::vector<double> x, y;
  // A value of an earlier record with the same or a later step is replaced: a resumed run repeated that step.
  void add(double step, double value);
};

// In the order in which the file first names them.
using NamedCurves = std::vector<std::pair<std::string, Curve>>;
Curve& curve_of(NamedCurves& curves, const std::string& name);
const Curve* find_curve(const NamedCurves& curves, const std::string& name);

struct RecordedRun {
  NamedCurves training;                                             // metrics of training, learning_rate, gradient_norm
  NamedCurves evaluation;                                           // metrics on held-out rows
  std::vector<std::pair<std::string, std::vector<Curve>>> members;  // by member of an ensemble, on held-out rows
  Curve seconds;                                                    // training time by step
  double samples_per_step = 0;                                      // 0: unknown
  int64_t damaged = 0;  // lines that are no record; an incomplete last line does not count
};

// Reads every complete line. A missing file gives no curves.
RecordedRun read_records(const std::string& path);

// Samples per second in at most `most` intervals, from the training time.
Curve throughput(const Curve& seconds, double samples_per_step, size_t most);

// At most `points` finite points, and a NaN where values are not finite. Keeps the first and the last point, drops
// points on a horizontal line, and chooses the others by LTTB: Steinarsson, Downsampling Time Series for Visual
// Representation, 2013.
Curve downsampled(const Curve& curve, size_t points);

// {"n": number of points before, "d": [first step, differences…], "y": [six digits, or null], "bad": number of values
// that are not finite; absent: 0}
Json to_json(const Curve& curve, size_t points);

double six_digits(double value);

}  // namespace convoy
