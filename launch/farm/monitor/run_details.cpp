#include "launch/farm/monitor/run_details.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "core/base/text.h"
#include "core/files/breakdown.h"
#include "core/files/files.h"
#include "core/files/summary.h"
#include "launch/cli/text_table.h"

namespace convoy {
namespace {

constexpr size_t curve_rows = 3, most_curves = 2;

// While a run trains, waits in collectives are not divided yet into waiting and communication.
std::string live_times(const std::string& folder) {
  const Json progress = parsed_json(read_file_if_any(folder + "/progress.json"));
  const Json times = progress.is_object() ? progress.value("times", Json()) : Json();
  if (!times.is_object()) return "";
  double wall = 0;
  for (const auto& [part, seconds] : times.items())
    if (seconds.is_number()) wall += seconds.get<double>();
  return "time of " + time_text(times, 0, wall);
}

}  // namespace

std::vector<std::string> braille_curve(const std::vector<std::pair<double, double>>& points, size_t columns,
                                       size_t rows) {
  constexpr size_t dots_wide = 2, dots_high = 4;
  static constexpr int bits[dots_wide][dots_high] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
  const size_t width = dots_wide * columns, height = dots_high * rows;
  std::vector<double> sums(width, 0), counts(width, 0);
  const double first = points.empty() ? 0 : points.front().first, last = points.empty() ? 0 : points.back().first;
  for (const auto& [step, value] : points) {
    if (!std::isfinite(value)) continue;
    const double place = last > first ? (step - first) / (last - first) : 0;
    const size_t column = std::min(width - 1, static_cast<size_t>(place * static_cast<double>(width)));
    sums[column] += value;
    ++counts[column];
  }
  double least = INFINITY, most = -INFINITY;
  for (size_t column = 0; column < width; ++column)
    if (counts[column] > 0) {
      least = std::min(least, sums[column] / counts[column]);
      most = std::max(most, sums[column] / counts[column]);
    }
  std::vector<std::vector<int>> cells(rows, std::vector<int>(columns, 0));
  for (size_t column = 0; column < width; ++column) {
    if (counts[column] == 0) continue;
    const double place = most > least ? (sums[column] / counts[column] - least) / (most - least) : 0;
    const auto up = static_cast<size_t>(std::lround(place * static_cast<double>(height - 1)));
    const size_t row = height - 1 - up;
    cells[row / dots_high][column / dots_wide] |= bits[column % dots_wide][row % dots_high];
  }
  std::vector<std::string> lines;
  for (const std::vector<int>& line : cells) {
    std::string text;
    for (const int cell : line) {  // U+2800 and the bits of the dots, in UTF-8
      text += '\xe2';
      text += static_cast<char>(0xa0 | (cell >> 6));
      text += static_cast<char>(0x80 | (cell & 0x3f));
    }
    lines.push_back(text);
  }
  return lines;
}

void RunDetails::read_metrics() {
  const std::string path = folder_ + "/metrics.jsonl";
  if (!irregular(path).empty()) return;  // opening a FIFO would block
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return;
  if (file.tellg() < read_) {  // a resumed run has dropped lines
    read_ = 0;
    names_.clear();
    curves_.clear();
  }
  file.seekg(read_);
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) return;  // the line is not complete yet
    read_ += static_cast<long>(line.size()) + 1;
    const Json record = parsed_json(line);
    const Json metrics = record.is_object() ? record.value("metrics", Json()) : Json();
    if (!metrics.is_object()) continue;
    const bool evaluated = text_in(record, "kind") == "evaluate";
    for (const auto& [name, value] : metrics.items()) {
      if (!value.is_number() || name == "skipped_updates") continue;
      const std::string curve = evaluated ? "evaluated " + name : name;
      std::vector<std::pair<double, double>>& points = curves_[curve];
      if (points.empty()) names_.push_back(curve);
      points.emplace_back(number_in(record, "step", 0), value.get<double>());
    }
  }
}

std::vector<std::string> RunDetails::lines(size_t width) {
  std::vector<std::string> lines;
  const Json summary = read_summary(folder_);
  std::string times = breakdown_line(summary);
  if (times.empty()) times = live_times(folder_);
  if (!times.empty()) lines.push_back(times);
  read_metrics();
  size_t drawn = 0;
  for (const std::string& name : names_) {
    const auto& points = curves_[name];
    if (points.size() < 2 || drawn == most_curves) continue;
    ++drawn;
    const auto [least, most] = std::minmax_element(points.begin(), points.end(),
                                                   [](const auto& a, const auto& b) { return a.second < b.second; });
    lines.push_back(str(name, ": ", formatted("%.4g", least->second), " to ", formatted("%.4g", most->second),
                        ", last ", formatted("%.4g", points.back().second), ", steps ",
                        formatted("%.0f", points.front().first), " to ", formatted("%.0f", points.back().first)));
    for (std::string& line : braille_curve(points, std::max<size_t>(width, 1), curve_rows)) lines.push_back(line);
  }
  return lines;
}

}  // namespace convoy
