#include "launch/report/curves.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "core/files/files.h"

namespace convoy {
namespace {

constexpr double not_finite = std::numeric_limits<double>::quiet_NaN();

// Reads one line of metrics.jsonl. The parser calls it for each value, which takes a third of the time of building a
// tree.
class RecordHandler {
 public:
  std::string kind;
  double step = not_finite, seconds = not_finite, rate = not_finite;
  std::vector<std::pair<std::string, double>> scalars, metrics;
  std::vector<std::pair<std::string, std::vector<double>>> members;

  void clear() {
    kind.clear();
    step = seconds = rate = not_finite;
    scalars.clear();
    metrics.clear();
    members.clear();
    depth_ = 0;
    inside_ = Inside::record;
  }

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(Json::number_integer_t value) { return number(double(value)); }
  bool number_unsigned(Json::number_unsigned_t value) { return number(double(value)); }
  bool number_float(Json::number_float_t value, const std::string&) { return number(value); }
  bool string(std::string& text) {
    if (depth_ == 1 && key_ == "kind") kind = text;
    if (text == "nan" || text == "inf" || text == "-inf") return number(not_finite);
    return true;
  }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(size_t) {
    if (depth_ == 1)
      inside_ = key_ == "metrics" ? Inside::metrics : key_ == "members" ? Inside::members : Inside::other;
    return ++depth_ < deepest;
  }
  bool end_object() {
    if (--depth_ == 1) inside_ = Inside::record;
    return true;
  }
  bool start_array(size_t) {
    if (depth_ == 2 && inside_ == Inside::members) members.emplace_back(key_, std::vector<double>());
    if (depth_ == 1) inside_ = Inside::other;
    return ++depth_ < deepest;
  }
  bool end_array() { return end_object(); }
  bool key(std::string& name) {
    key_ = name;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) { return false; }

 private:
  enum class Inside { record, metrics, members, other };
  static constexpr int deepest = 100;

  bool number(double value) {
    if (depth_ == 1 && inside_ == Inside::record) {
      if (key_ == "step") step = value;
      if (key_ == "seconds") seconds = value;
      if (key_ == "samples_per_second") rate = value;
      if (key_ == "learning_rate" || key_ == "gradient_norm") scalars.emplace_back(key_, value);
    } else if (depth_ == 2 && inside_ == Inside::metrics) {
      metrics.emplace_back(key_, value);
    } else if (depth_ == 3 && inside_ == Inside::members) {
      members.back().second.push_back(value);
    }
    return true;
  }

  int depth_ = 0;
  Inside inside_ = Inside::record;
  std::string key_;
};

std::vector<Curve>& members_of(RecordedRun& run, const std::string& name) {
  for (auto& [known, curves] : run.members)
    if (known == name) return curves;
  return run.members.emplace_back(name, std::vector<Curve>()).second;
}

void add_record(const RecordHandler& record, RecordedRun& run) {
  const bool trains = record.kind == "train";
  if (!std::isfinite(record.step) || (!trains && record.kind != "evaluate")) return;
  if (std::isfinite(record.seconds)) {
    run.seconds.add(record.step, record.seconds);
    // Mean rate of this attempt × time of all attempts ÷ steps: close enough until the summary has the number.
    if (record.step > 0 && record.rate > 0) run.samples_per_step = record.rate * record.seconds / record.step;
  }
  for (const auto& [name, value] : record.metrics)
    curve_of(trains ? run.training : run.evaluation, name).add(record.step, value);
  if (trains)
    for (const auto& [name, value] : record.scalars) curve_of(run.training, name).add(record.step, value);
  for (const auto& [name, values] : record.members) {
    std::vector<Curve>& curves = members_of(run, name);
    if (curves.size() < values.size()) curves.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) curves[i].add(record.step, values[i]);
  }
}

// Area of the triangle of three points, times two.
double area(const Curve& curve, size_t a, size_t b, double x, double y) {
  return std::abs((curve.x[a] - x) * (curve.y[b] - curve.y[a]) - (curve.x[a] - curve.x[b]) * (y - curve.y[a]));
}

// A curve with few points keeps all of them: the page shows them as dots.
Curve finite_points(const Curve& curve) {
  const bool shortens = curve.x.size() > 60;
  Curve finite;
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (!std::isfinite(curve.y[i])) continue;
    const size_t n = finite.y.size();
    if (shortens && n > 1 && finite.y[n - 1] == curve.y[i] && finite.y[n - 2] == curve.y[i]) {
      finite.x.back() = curve.x[i];  // extends a horizontal line
      continue;
    }
    finite.x.push_back(curve.x[i]);
    finite.y.push_back(curve.y[i]);
  }
  return finite;
}

Curve largest_triangles(const Curve& curve, size_t points) {
  const size_t n = curve.x.size();
  if (n <= points || points < 3) return curve;
  Curve chosen;
  const auto choose = [&](size_t i) {
    chosen.x.push_back(curve.x[i]);
    chosen.y.push_back(curve.y[i]);
  };
  const double width = double(n - 2) / double(points - 2);
  const auto begin_of = [&](size_t bucket) { return std::min(n - 1, size_t(double(bucket) * width) + 1); };
  size_t last = 0;
  choose(0);
  for (size_t bucket = 0; bucket + 2 < points; ++bucket) {
    const size_t begin = begin_of(bucket), end = begin_of(bucket + 1);
    const size_t next_end = bucket + 3 < points ? begin_of(bucket + 2) : n;
    double x = 0, y = 0;  // mean of the next bucket
    for (size_t i = end; i < next_end; ++i) {
      x += curve.x[i] / double(next_end - end);
      y += curve.y[i] / double(next_end - end);
    }
    size_t best = begin;
    double largest = -1;
    for (size_t i = begin; i < end; ++i)
      if (const double size = area(curve, last, i, x, y); size > largest) {
        largest = size;
        best = i;
      }
    choose(best);
    last = best;
  }
  choose(n - 1);
  return chosen;
}

}  // namespace

void Curve::add(double step, double value) {
  while (!x.empty() && x.back() >= step) {
    x.pop_back();
    y.pop_back();
  }
  x.push_back(step);
  y.push_back(std::isfinite(value) ? value : not_finite);
}

Curve& curve_of(NamedCurves& curves, const std::string& name) {
  for (auto& [known, curve] : curves)
    if (known == name) return curve;
  return curves.emplace_back(name, Curve()).second;
}

const Curve* find_curve(const NamedCurves& curves, const std::string& name) {
  for (const auto& [known, curve] : curves)
    if (known == name) return &curve;
  return nullptr;
}

RecordedRun read_records(const std::string& path) {
  RecordedRun run;
  const std::string text = read_file_if_any(path);
  RecordHandler record;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
    if (end == begin) continue;
    record.clear();
    const char* const line = text.data() + begin;
    if (Json::sax_parse(line, text.data() + end, &record))
      add_record(record, run);
    else
      ++run.damaged;
  }
  return run;
}

Curve throughput(const Curve& seconds, double samples_per_step, size_t most) {
  Curve rate;
  if (seconds.x.size() < 2 || samples_per_step <= 0) return rate;
  const size_t stride = (seconds.x.size() - 1 + most - 1) / most;
  for (size_t from = 0; from + 1 < seconds.x.size(); from += stride) {
    const size_t to = std::min(from + stride, seconds.x.size() - 1);
    const double time = seconds.y[to] - seconds.y[from];
    if (time > 0) rate.add(seconds.x[to], samples_per_step * (seconds.x[to] - seconds.x[from]) / time);
  }
  return rate;
}

Curve downsampled(const Curve& curve, size_t points) {
  Curve chosen = largest_triangles(finite_points(curve), points);
  Curve gaps;  // the first value of each range that is not finite
  for (size_t i = 0; i < curve.x.size(); ++i)
    if (!std::isfinite(curve.y[i]) && (i == 0 || std::isfinite(curve.y[i - 1]))) {
      gaps.x.push_back(curve.x[i]);
      gaps.y.push_back(curve.y[i]);
    }
  if (gaps.x.empty()) return chosen;
  Curve merged;
  const size_t stride = gaps.x.size() / std::max<size_t>(points, 1) + 1;
  for (size_t i = 0, gap = 0; i < chosen.x.size() || gap < gaps.x.size();) {
    const bool is_gap = i == chosen.x.size() || (gap < gaps.x.size() && gaps.x[gap] < chosen.x[i]);
    merged.x.push_back(is_gap ? gaps.x[gap] : chosen.x[i]);
    merged.y.push_back(is_gap ? not_finite : chosen.y[i]);
    (is_gap ? gap : i) += is_gap ? stride : 1;
  }
  return merged;
}

double six_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return std::strtod(text, nullptr);
}

Json to_json(const Curve& curve, size_t points) {
  const Curve few = downsampled(curve, points);
  Json steps = Json::array(), values = Json::array();
  double before = 0;
  for (size_t i = 0; i < few.x.size(); ++i) {
    const double step = few.x[i] - before;
    before = few.x[i];
    steps.push_back(step == std::floor(step) && std::abs(step) < 1e15 ? Json(int64_t(step)) : Json(step));
    values.push_back(std::isfinite(few.y[i]) ? Json(six_digits(few.y[i])) : Json());
  }
  const auto bad = std::count_if(curve.y.begin(), curve.y.end(), [](double value) { return !std::isfinite(value); });
  Json json{{"n", curve.x.size()}, {"d", std::move(steps)}, {"y", std::move(values)}};
  if (bad > 0) json["bad"] = bad;
  return json;
}

}  // namespace convoy
