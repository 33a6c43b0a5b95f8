// How a run that is watched reads: cells, headings, the tail of a log.
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "core/files.h"
#include "core/utf8.h"
#include "launch/farm/run_view.h"
#include "launch/progress.h"
#include "launch/text_table.h"

namespace convoy {
namespace {

constexpr std::streamoff tail_bytes = 64 << 10;

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string steps_cell(const ViewRow& row) {
  if (row.step < 0) return "-";
  return row.steps > 0 ? str(row.step, "/", row.steps) : std::to_string(row.step);
}

// "612M", "1.42G": of 1024, as memory is.
std::string memory_cell(int64_t bytes) {
  if (bytes < 0) return "-";
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1000 ? formatted("%.0fM", mib) : formatted("%.2fG", mib / 1024);
}

std::vector<std::string> cells(const ViewRow& row) {
  const bool running = row.kind == ViewRow::Kind::running;
  std::vector<std::string> cells{row.name,
                                 row.state,
                                 steps_cell(row),
                                 row.rate > 0 ? short_number(row.rate) + "/s" : "-",
                                 std::isfinite(row.loss) ? formatted("%.4g", row.loss) : "-",
                                 running && row.remaining >= 0 ? clock_text(row.remaining) : "-",
                                 "-",
                                 "-",
                                 "-",
                                 "-"};
  if (!row.use) return cells;
  if (row.use->cpu >= 0) cells[6] = formatted("%.0f%%", row.use->cpu * 100);
  cells[7] = memory_cell(row.use->memory);
  const char* mark = row.use->gpu_of_device ? "*" : "";
  if (row.use->gpu >= 0) cells[8] = formatted("%.0f%%", row.use->gpu * 100) + mark;
  if (row.use->gpu_memory >= 0) cells[9] = memory_cell(row.use->gpu_memory) + mark;
  return cells;
}

size_t count_of(const RunView& view, ViewRow::Kind kind) {
  return static_cast<size_t>(
      std::count_if(view.rows.begin(), view.rows.end(), [kind](const ViewRow& row) { return row.kind == kind; }));
}

// Colours and movements of a program's output would move our screen.
std::string plain(const std::string& line) {
  std::string kept;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    if (byte == 0x1b && i + 1 < line.size() && line[i + 1] == '[') {
      while (i + 1 < line.size() && (line[i + 1] < '@' || line[i + 1] == '[')) ++i;
      ++i;
    } else if (byte == '\t') {
      kept += ' ';
    } else if (byte >= 0x20 && byte != 0x7f) {
      kept += line[i];
    }
  }
  return valid_utf8(kept);
}

// "" where there is none.
std::string newest_log(const std::string& folder) {
  std::string newest;
  timespec when{};
  for (const std::string& name : names_in(folder + "/logs")) {
    if (name.size() < 5 || name.compare(name.size() - 4, 4, ".log") != 0) continue;
    struct stat status {};
    const std::string path = folder + "/logs/" + name;
    if (stat(path.c_str(), &status) != 0 || status.st_size == 0) continue;
    const timespec& own = status.st_mtim;
    if (own.tv_sec < when.tv_sec || (own.tv_sec == when.tv_sec && own.tv_nsec <= when.tv_nsec)) continue;
    newest = path;
    when = own;
  }
  return newest;
}

}  // namespace

std::string view_heading(const RunView& view) {
  std::string heading = view.name + ": " + view.status;
  if (view.farm) {
    std::vector<std::string> parts;
    const auto add = [&](ViewRow::Kind kind, const char* word) {
      if (const size_t count = count_of(view, kind); count > 0) parts.push_back(str(count, word));
    };
    add(ViewRow::Kind::running, " running");
    add(ViewRow::Kind::waiting, " waiting");
    add(ViewRow::Kind::done, " done");
    add(ViewRow::Kind::stopped, " stopped");
    add(ViewRow::Kind::failed, " failed");
    if (!parts.empty()) heading += " (" + join(parts, ", ") + ")";
  }
  if (view.cpu_cores >= 0) heading += formatted(", %.1f cores busy", view.cpu_cores);
  return heading;
}

std::vector<std::string> view_lines(const RunView& view, size_t first, size_t count) {
  std::vector<std::vector<std::string>> table{
      {view.farm ? "pipeline" : "run", "state", "step", "rate", "loss", "eta", "cpu", "memory", "gpu", "gpu memory"}};
  for (const ViewRow& row : view.rows) table.push_back(cells(row));  // all: columns do not move while one scrolls
  const std::string text = text_table(table, {2, 3, 4, 5, 6, 7, 8, 9});
  std::vector<std::string> lines;
  size_t at = 0;
  for (size_t line = 0; at < text.size(); ++line) {
    const size_t end = text.find('\n', at);
    if (line == 0 || (line > first && line <= first + count)) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::vector<std::string> log_tail(const std::string& folder, size_t lines, std::string& path) {
  path = newest_log(folder);
  std::vector<std::string> tail;
  if (!irregular(path).empty()) return tail;  // opening a FIFO would wait
  std::ifstream file(path, std::ios::binary);
  if (path.empty() || !file.seekg(0, std::ios::end)) return tail;
  const std::streamoff size = file.tellg();
  const std::streamoff from = std::max<std::streamoff>(0, size - tail_bytes);
  file.seekg(from);
  std::string line;
  if (from > 0) std::getline(file, line);  // cut
  while (std::getline(file, line)) tail.push_back(plain(line));
  if (tail.size() > lines) tail.erase(tail.begin(), tail.end() - static_cast<std::ptrdiff_t>(lines));
  return tail;
}

}  // namespace convoy
