#include "launch/farm/monitor/run_view.h"

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <fstream>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/rank_state/position.h"
#include "core/rank_state/state_file.h"
#include "core/rank_state/summary.h"
#include "launch/farm/report/report.h"
#include "launch/farm/run/farm.h"
#include "launch/job/console.h"
#include "launch/prepare/used_run.h"
#include "launch/text/text_table.h"

namespace convoy {

// --- RunDetails: times and curves of one run ---

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

// Calls `use` with each object of a JSON Lines file after the first `read` bytes, which it increases. An incomplete
// last line waits for the next call. If the file is shorter than `read`, a resumed run has dropped lines: calls
// `restart`, and reads from the beginning.
void for_new_objects(const std::string& path, long& read, const std::function<void()>& restart,
                     const std::function<void(const Json&)>& use) {
  if (!irregular(path).empty()) return;  // opening a FIFO would block
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return;
  if (file.tellg() < read) {
    read = 0;
    restart();
  }
  file.seekg(read);
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) return;
    read += static_cast<long>(line.size()) + 1;
    if (const Json object = parsed_json(line); object.is_object()) use(object);
  }
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
    const double fraction = last > first ? (step - first) / (last - first) : 0;
    const size_t column = std::min(width - 1, static_cast<size_t>(fraction * static_cast<double>(width)));
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
    const double fraction = most > least ? (sums[column] / counts[column] - least) / (most - least) : 0;
    const auto up = static_cast<size_t>(std::lround(fraction * static_cast<double>(height - 1)));
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
  const auto forget = [&] {
    names_.clear();
    curves_.clear();
  };
  for_new_objects(folder_ + "/metrics.jsonl", read_, forget, [&](const Json& record) {
    const Json metrics = record.value("metrics", Json());
    if (!metrics.is_object()) return;
    const bool evaluated = text_in(record, "kind") == "evaluate";
    for (const auto& [name, value] : metrics.items()) {
      if (!value.is_number() || name == "skipped_updates") continue;
      const std::string curve = evaluated ? "evaluated " + name : name;
      std::vector<std::pair<double, double>>& points = curves_[curve];
      if (points.empty()) names_.push_back(curve);
      points.emplace_back(number_in(record, "step", 0), value.get<double>());
    }
  });
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

// --- RunReader: the state of a run or of a farm's pipelines ---

namespace {

Json read_json(const std::string& path) {
  const std::string text = read_file_if_any(path);
  return text.empty() ? Json() : parsed_json(text);
}

// Status of a run that is over and has no summary.
constexpr char lost[] = "ended, and its summary.json is missing or damaged; the same command resumes it";

// All phases of a step are shown as "training", because they change too fast to read.
std::string state_of_rank(const std::string& folder) {
  const auto position = read_state_file(folder + "/logs/rank0.state");
  if (!position) return "starting";
  if (is_set_up(position->phase)) return position->phase.empty() ? starting_phase : position->phase;
  for (const char* slow : {"evaluating", "saving"})
    if (position->phase == slow) return slow;
  return position->phase == "done" ? "ending" : "training";
}

void add_progress(const std::string& folder, ViewRow& row) {
  const Json progress = read_json(folder + "/progress.json");
  row.step = whole_in(progress, "step", -1);
  row.steps = whole_in(progress, "steps", -1);
  row.rate = number_in(progress, "samples_per_second", -1);
  row.loss = number_in(progress, "loss", std::nan(""));
  row.remaining = number_in(progress, "remaining_seconds", -1);
  if (const auto position = read_state_file(folder + "/logs/rank0.state"))
    row.step = std::max(row.step, position->step);
  if (row.step > row.steps) row.steps = -1;  // a program has begun another epoch since
}

// The summary of a run that failed or was killed may lack `steps`.
double last_step(const Json& summary, const std::string& folder) {
  const double steps = number_in(summary, "steps", -1);
  const double step = steps >= 0 ? steps : number_in(summary.value("failure", Json()), "step", -1);
  if (step >= 0 || text_in(summary, "status") == "done") return step;
  const auto position = read_state_file(folder + "/logs/rank0.state");
  return position ? static_cast<double>(position->step) : -1;
}

void add_summary(const Json& summary, ViewRow& row) {
  row.step = static_cast<int64_t>(last_step(summary, row.folder));
  if (text_in(summary, "status") == "done") row.steps = row.step;
  row.rate = number_in(summary, "samples_per_second", -1);
  const auto metrics = summary.find("metrics");
  if (metrics == summary.end() || !metrics->is_object()) return;
  const auto loss = metrics->find("loss");
  if (loss != metrics->end()) row.loss = number_in(*loss, "last", std::nan(""));
}

// Sets kind, state and attempts of a row from a journal event.
void show_event(const Json& event, ViewRow& row) {
  const std::string what = text_in(event, "event");
  row.attempts = static_cast<int>(whole_in(event, "attempt", 0));
  const std::string cause = text_in(event, "cause");
  if (what == "started") {
    row.kind = ViewRow::Kind::running;
    row.state = state_of_rank(row.folder);
  } else if (what == "done") {
    row.kind = ViewRow::Kind::done;
    row.state = "done";
  } else if (what == "cancelled" || what == "lost") {
    row.kind = ViewRow::Kind::stopped;
    row.state = what == "lost" ? str("lost at rung ", static_cast<int>(whole_in(event, "rung", 0)) + 1) : "stopped";
  } else if (what == "failed") {
    row.kind = ViewRow::Kind::failed;
    row.state = cause.empty() ? what : "failed: " + cause;
  } else {
    row.kind = ViewRow::Kind::waiting;
    row.state = what == "retry" ? "waits: " + cause : what == "preempted" || what == "paused" ? what : "waiting";
  }
}

constexpr std::streamoff tail_bytes = 64 << 10;

std::string steps_cell(const ViewRow& row) {
  if (row.step < 0) return "-";
  return row.steps > 0 ? str(row.step, "/", row.steps) : std::to_string(row.step);
}

// "612M", "1.42G", in units of 1024.
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

// Removes escape sequences and control characters, which would disturb the screen.
std::string without_escapes(const std::string& line) {
  std::string clean;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    if (byte == 0x1b && i + 1 < line.size() && line[i + 1] == '[') {
      while (i + 1 < line.size() && (line[i + 1] < '@' || line[i + 1] == '[')) ++i;
      ++i;
    } else if (byte == '\t') {
      clean += ' ';
    } else if (byte >= 0x20 && byte != 0x7f) {
      clean += line[i];
    }
  }
  return valid_utf8(clean);
}

// Path of the log that was written last; "" if there is none.
std::string newest_log(const std::string& folder) {
  std::string newest;
  timespec when{};
  for (const std::string& name : names_in(folder + "/logs")) {
    if (name.size() < 5 || name.compare(name.size() - 4, 4, ".log") != 0) continue;
    struct stat status {};
    const std::string path = folder + "/logs/" + name;
    if (stat(path.c_str(), &status) != 0 || status.st_size == 0) continue;
    const timespec& modified = status.st_mtim;
    if (modified.tv_sec < when.tv_sec || (modified.tv_sec == when.tv_sec && modified.tv_nsec <= when.tv_nsec)) continue;
    newest = path;
    when = modified;
  }
  return newest;
}

}  // namespace

RunReader::RunReader(const std::string& folder) : folder_(folder) {
  while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
  require_folder(folder_, "give a run folder, such as runs/NAME");
  const std::string file = folder_ + "/summary.json";
  if (const std::string kind = irregular(file); !kind.empty())
    throw Error(Failure::io, file, ": ", kind, ", but convoy needs a regular file there; remove it");
  if (read_summary(folder_).contains("status") || lock_owner(folder_).held) return;  // the run may have just started
  // A run may resume from a checkpoint, and a farm from its journal, without a summary.
  if (!newest_config(folder_).manifest.empty() || access((folder_ + "/journal.jsonl").c_str(), R_OK) == 0) return;
  throw Error(Failure::command_line, folder_,
              ": is no run folder (no summary.json, and no process that writes one); give the "
              "folder that `convoy run` printed, such as runs/NAME");
}

void RunReader::read_journal() {
  for_new_objects(
      folder_ + "/journal.jsonl", journal_read_,
      [&] {  // another farm
        order_.clear();
        events_.clear();
        ended_.clear();
      },
      [&](const Json& event) {
        const std::string name = text_in(event, "pipeline");
        if (name.empty()) return;
        if (events_.count(name) == 0) order_.push_back(name);
        if (text_in(event, "event") != "priority") events_[name] = event;
        ended_.erase(name);
      });
}

RunView RunReader::read() {
  RunView view;
  const LockOwner owner = lock_owner(folder_);
  const Json summary = read_summary(folder_);
  view.folder = folder_;
  view.name = text_in(summary, "name", folder_);
  view.over = !owner.held;
  view.status = text_in(summary, "status", view.over ? lost : "starting");
  if (!view.over && view.status == "stopped") view.status = "stopping";  // ranks still write a checkpoint
  read_journal();
  view.farm = summary.contains("pipelines") || !order_.empty();
  if (view.farm)
    read_farm(summary, view);
  else
    read_single(summary, view);
  if (!view.farm && owner.pid > 0) measure(owner.pid, view.rows.front());
  if (view.over && view.status == "running")
    view.status = "ended without a result: its convoy was killed; the same command resumes it";
  for (const ViewRow& row : view.rows)
    if (row.use) view.cpu_cores = std::max(view.cpu_cores, 0.0) + row.use->cpu;
  std::stable_sort(view.rows.begin(), view.rows.end(),
                   [](const ViewRow& a, const ViewRow& b) { return a.kind < b.kind; });
  return view;
}

void RunReader::read_farm(const Json& summary, RunView& view) {
  std::map<std::string, ResourceSample> uses;
  const Json live = read_json(folder_ + "/resources.json");
  if (live.is_array() && !view.over)
    for (const Json& line : live) {
      const ResourceSample sample = resource_sample(line);
      uses[sample.pipeline] = sample;
    }
  for (const std::string& name : order_) {
    if (const auto known = ended_.find(name); known != ended_.end()) {
      view.rows.push_back(known->second);
      continue;
    }
    ViewRow row;
    row.name = name;
    row.folder = folder_ + "/pipelines/" + name;
    show_event(events_.at(name), row);
    if (row.kind == ViewRow::Kind::running && view.over) {
      row.kind = ViewRow::Kind::failed;
      row.state = "gone";
    }
    if (row.kind == ViewRow::Kind::running) {
      add_progress(row.folder, row);
      if (const auto use = uses.find(name); use != uses.end()) row.use = use->second;
    } else {
      add_summary(read_summary(row.folder), row);
      if (row.kind != ViewRow::Kind::waiting) ended_[name] = row;
    }
    view.rows.push_back(row);
  }
  if (!view.over) return;
  const Json failure = summary.value("failure", Json());
  if (failure.is_object()) view.status += ": " + text_in(failure, "message");
  const Json board = summary.value("leaderboard", Json());
  if (board.is_object() && board.contains("rows")) view.result = leaderboard_table(board);
}

void RunReader::read_single(const Json& summary, RunView& view) {
  ViewRow row;
  row.name = view.name;
  row.folder = folder_;
  row.attempts = static_cast<int>(whole_in(summary, "attempt", 0)) + 1;
  if (!view.over) {
    row.kind = ViewRow::Kind::running;
    row.state = state_of_rank(folder_);
    add_progress(folder_, row);
  } else {
    add_summary(summary, row);
    const Json failure = summary.value("failure", Json());
    row.kind = view.status == "done"      ? ViewRow::Kind::done
               : view.status == "stopped" ? ViewRow::Kind::stopped
                                          : ViewRow::Kind::failed;
    row.state = view.status == "running" ? "gone" : view.status == lost ? "unknown" : view.status;
    if (failure.is_object()) {
      if (text_in(failure, "cause") != row.state) row.state += ": " + text_in(failure, "cause");
      view.status += ": " + text_in(failure, "message");
    } else if (view.status == "done") {
      view.result = result_text(summary, folder_);
    }
  }
  view.rows.push_back(row);
}

// Measures the process tree of a single run on this host, which writes no resources.json.
void RunReader::measure(pid_t process, ViewRow& row) {
  if (measured_ != process) {
    trees_.add("run", process);
    measured_ = process;
    use_ = {};
    use_.cpu = -1;  // unknown at the first call
  }
  trees_.refresh();
  convoy::measure(trees_, "run", use_.time > 0 ? unix_seconds() - use_.time : 0, use_);
  row.use = use_;
}

// --- Texts: cells, headings, the tail of a log ---

std::string view_heading(const RunView& view) {
  std::string heading = view.name + ": " + view.status;
  if (view.farm) {
    std::vector<std::string> counts;
    const auto add = [&](ViewRow::Kind kind, const char* word) {
      if (const size_t count = count_of(view, kind); count > 0) counts.push_back(str(count, word));
    };
    add(ViewRow::Kind::running, " running");
    add(ViewRow::Kind::waiting, " waiting");
    add(ViewRow::Kind::done, " done");
    add(ViewRow::Kind::stopped, " stopped");
    add(ViewRow::Kind::failed, " failed");
    if (!counts.empty()) heading += " (" + join(counts, ", ") + ")";
  }
  if (view.cpu_cores >= 0) heading += formatted(", %.1f cores busy", view.cpu_cores);
  return heading;
}

std::vector<std::string> view_lines(const RunView& view, size_t first, size_t count) {
  std::vector<std::vector<std::string>> table{
      {view.farm ? "pipeline" : "run", "state", "step", "rate", "loss", "eta", "cpu", "memory", "gpu", "gpu memory"}};
  // Uses all rows, so that column widths do not change while scrolling.
  for (const ViewRow& row : view.rows) table.push_back(cells(row));
  const std::vector<std::string> all = split(text_table(table, {2, 3, 4, 5, 6, 7, 8, 9}), '\n');
  std::vector<std::string> lines;
  for (size_t line = 0; line + 1 < all.size(); ++line)
    if (line == 0 || (line > first && line <= first + count)) lines.push_back(all[line]);
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
  if (from > 0) std::getline(file, line);  // incomplete
  while (std::getline(file, line)) tail.push_back(without_escapes(line));
  if (tail.size() > lines) tail.erase(tail.begin(), tail.end() - static_cast<std::ptrdiff_t>(lines));
  return tail;
}

}  // namespace convoy
