#include "launch/farm/run_view.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "core/control/phases.h"
#include "core/control/state_file.h"
#include "core/error.h"
#include "launch/farm/holder.h"
#include "launch/farm/leaderboard.h"
#include "launch/progress.h"
#include "launch/session.h"
#include "launch/summary.h"

namespace convoy {
namespace {

double number(const Json& json, const char* key, double fallback) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_number() ? found->get<double>() : fallback;
}

std::string text(const Json& json, const char* key, const std::string& fallback = "") {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_string() ? found->get<std::string>() : fallback;
}

Json read_json(const std::string& path) {
  const std::string text = read_file_if_any(path);
  return text.empty() ? Json() : Json::parse(text, nullptr, false);
}

// Phases of a step all read as one: they change faster than anybody looks.
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
  row.step = static_cast<int64_t>(number(progress, "step", -1));
  row.steps = static_cast<int64_t>(number(progress, "steps", -1));
  row.rate = number(progress, "samples_per_second", -1);
  row.loss = number(progress, "loss", std::nan(""));
  row.remaining = number(progress, "remaining_seconds", -1);
  if (const auto position = read_state_file(folder + "/logs/rank0.state"))
    row.step = std::max(row.step, position->step);
}

void add_summary(const Json& summary, ViewRow& row) {
  row.step = static_cast<int64_t>(number(summary, "steps", -1));
  if (text(summary, "status") == "done") row.steps = row.step;
  row.rate = number(summary, "samples_per_second", -1);
  const auto metrics = summary.find("metrics");
  if (metrics == summary.end() || !metrics->is_object()) return;
  const auto loss = metrics->find("loss");
  if (loss != metrics->end()) row.loss = number(*loss, "last", std::nan(""));
}

// What a journal's event comes to.
void show_event(const Json& event, ViewRow& row) {
  const std::string what = text(event, "event");
  row.attempts = static_cast<int>(number(event, "attempt", 0));
  const std::string cause = text(event, "cause");
  if (what == "started") {
    row.kind = ViewRow::Kind::running;
    row.state = state_of_rank(row.folder);
  } else if (what == "done") {
    row.kind = ViewRow::Kind::done;
    row.state = "done";
  } else if (what == "cancelled") {
    row.kind = ViewRow::Kind::stopped;
    row.state = "stopped";
  } else if (what == "failed") {
    row.kind = ViewRow::Kind::failed;
    row.state = cause.empty() ? what : "failed: " + cause;
  } else {
    row.kind = ViewRow::Kind::waiting;
    row.state = what == "retry" ? "waits: " + cause : what == "preempted" ? "preempted" : "waiting";
  }
}

}  // namespace

RunReader::RunReader(const std::string& folder) : folder_(folder) {
  while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
  struct stat status {};
  if (stat(folder_.c_str(), &status) != 0)
    throw Error(Failure::command_line, str(folder_, ": there is no such folder; give a run's, such as runs/NAME"));
  if (!S_ISDIR(status.st_mode))
    throw Error(Failure::command_line, str(folder_, ": is no folder; give that of a run, such as runs/NAME"));
  const std::string file = folder_ + "/summary.json";
  if (const std::string kind = irregular(file); !kind.empty())
    throw Error(Failure::io, str(file, ": ", kind, ", where the summary of a run should be; remove it"));
  if (read_summary(folder_).contains("status") || lock_holder(folder_).held) return;  // it may have just begun
  throw Error(Failure::command_line,
              str(folder_,
                  ": holds no run (there is no summary.json in it, and nobody is writing one); give the "
                  "folder that `convoy run` names, such as runs/NAME"));
}

void RunReader::read_journal() {
  const std::string path = folder_ + "/journal.jsonl";
  if (!irregular(path).empty()) return;  // opening a FIFO would wait
  std::ifstream file(path);
  if (!file.seekg(journal_read_)) return;
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) return;  // the end of it is still to come
    journal_read_ += static_cast<long>(line.size()) + 1;
    const Json event = Json::parse(line, nullptr, false);
    const std::string name = text(event, "pipeline");
    if (name.empty()) continue;
    if (events_.count(name) == 0) order_.push_back(name);
    events_[name] = event;
    ended_.erase(name);
  }
}

RunView RunReader::read() {
  RunView view;
  const LockHolder holder = lock_holder(folder_);
  const Json summary = read_summary(folder_);
  view.folder = folder_;
  view.name = text(summary, "name", folder_);
  view.status = text(summary, "status", "starting");
  view.over = !holder.held;
  if (!view.over && view.status == "stopped") view.status = "stopping";  // asked to, and ranks still save
  read_journal();
  view.farm = summary.contains("pipelines") || !order_.empty();
  if (view.farm)
    read_farm(summary, view);
  else
    read_single(summary, view);
  if (!view.farm && holder.pid > 0) measure(holder.pid, view.rows.front());
  if (view.over && view.status == "running")
    view.status = "ended without a word: its convoy was killed; the same command as before goes on with it";
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
      const Json own = read_summary(row.folder);
      add_summary(own, row);
      if (row.kind != ViewRow::Kind::waiting) ended_[name] = row;
    }
    view.rows.push_back(row);
  }
  if (!view.over) return;
  const Json failure = summary.value("failure", Json());
  if (failure.is_object()) view.status += ": " + text(failure, "message");
  const Json board = summary.value("leaderboard", Json());
  if (board.is_object() && board.contains("rows")) view.result = leaderboard_table(board);
}

void RunReader::read_single(const Json& summary, RunView& view) {
  ViewRow row;
  row.name = view.name;
  row.folder = folder_;
  row.attempts = static_cast<int>(number(summary, "attempt", 0)) + 1;
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
    row.state = view.status == "running" ? "gone" : view.status;
    if (failure.is_object()) {
      if (text(failure, "cause") != row.state) row.state += ": " + text(failure, "cause");
      view.status += ": " + text(failure, "message");
    } else if (view.status == "done") {
      view.result = result_text(summary, folder_);
    }
  }
  view.rows.push_back(row);
}

// Of a run that nobody else measures: the tree below its convoy, if that is on this host.
void RunReader::measure(pid_t convoy, ViewRow& row) {
  if (measured_ != convoy) {
    trees_.add("run", convoy);
    measured_ = convoy;
    cpu_before_ = time_before_ = 0;
  }
  trees_.refresh();
  ResourceSample sample;
  sample.time = unix_seconds();
  sample.cpu_seconds = trees_.cpu_seconds("run");
  sample.cpu = -1;  // of nothing but a moment
  if (time_before_ > 0 && sample.time > time_before_)
    sample.cpu = (sample.cpu_seconds - cpu_before_) / (sample.time - time_before_);
  cpu_before_ = sample.cpu_seconds;
  time_before_ = sample.time;
  const MemoryUse use = trees_.memory("run");
  sample.memory = use.anonymous;
  sample.mapped = use.mapped;
  sample.processes = static_cast<int>(trees_.processes("run").size());
  row.use = sample;
}

}  // namespace convoy
