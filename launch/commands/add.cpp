#include "launch/commands/add.h"

#include <limits.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <utility>

#include "core/config/reader.h"
#include "launch/exit_codes.h"
#include "launch/farm/farm.h"
#include "launch/farm/growth.h"
#include "launch/farm/holder.h"
#include "launch/farm/inbox.h"
#include "launch/farm/read.h"
#include "launch/summary.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void over(const std::string& folder, const std::string& status) {
  throw Error(Failure::output,
              str(folder, ": nobody runs this farm any more (it is ", status == "running" ? "left unfinished" : status,
                  "); run the pipeline alone, or put it into the farm's file and start that with another --output"));
}

// The process that runs the farm, if there is one.
LockHolder holder_of_farm(const std::string& folder) {
  std::error_code none;
  if (!fs::is_directory(folder, none))
    throw Error(Failure::command_line, str(folder, ": there is no such folder; give a farm's, such as runs/farm"));
  if (!read_summary(folder).contains("pipelines") && !fs::exists(folder + "/journal.jsonl", none))
    throw Error(Failure::command_line,
                str(folder,
                    ": holds no run of several pipelines, to which one could be added; start one by `convoy run` "
                    "of a file that lists pipelines, or run this one by itself"));
  return lock_holder(folder);
}

// Paths of data count from where the farm was started, as they do for its other pipelines.
void go_where_it_runs(const LockHolder& holder) {
  if (holder.pid <= 0) return;
  char place[PATH_MAX];
  const ssize_t length = readlink(str("/proc/", holder.pid, "/cwd").c_str(), place, sizeof place - 1);
  if (length <= 0) return;  // another user's
  const std::string theirs(place, static_cast<size_t>(length));
  std::error_code none;
  if (fs::current_path(none) == theirs) return;
  if (chdir(theirs.c_str()) == 0)
    std::cerr << "convoy: paths of data count from " << theirs << ", where the farm was started\n";
}

void check_name(const std::string& folder, const Pipeline& pipeline) {
  const std::string& name = pipeline.name;
  std::error_code none;
  bool known = fs::exists(str(folder, "/pipelines/", name), none);
  for (const char* end : {".yaml", ".yaml.taken"}) known = known || fs::exists(str(folder, "/inbox/", name, end), none);
  if (known)
    throw ConfigError(pipeline.mark, "name",
                      str("is '", name, "', as another pipeline of ", folder, " is; give it another"));
}

// The farm knows the file that was put into the inbox, and its lines; its author knows `file`.
class Author {
 public:
  Author(std::string file, const Pipeline& pipeline) : file_(std::move(file)), pipeline_(pipeline) {}

  std::string reason(const std::string& told, const std::string& put) const {
    std::string all;
    std::istringstream lines(told);
    for (std::string line; std::getline(lines, line);) all += (all.empty() ? "" : "\n") + retold(line, put);
    return all;
  }

 private:
  std::string retold(std::string line, const std::string& put) const {
    const size_t place_end = line.find(": "), key_end = line.find(": ", place_end + 2);
    if (line.rfind(put, 0) == 0 && key_end != std::string::npos) {
      const std::string key = line.substr(place_end + 2, key_end - place_end - 2);
      return to_string(mark(key)) + line.substr(place_end);
    }
    for (size_t at = 0; (at = line.find(put, at)) != std::string::npos; at += file_.size())
      line.replace(at, put.size(), file_);
    return line;
  }

  // NAME.KEY is the pipeline's own, any other one its configuration's.
  Mark mark(const std::string& key) const {
    const std::string own = pipeline_.name + ".";
    if (key.rfind(own, 0) != 0) return mark_of(pipeline_.config, key);
    const Node root = read_yaml_file(file_);
    const Node* value = root.find(key.substr(own.size()));
    return value == nullptr ? pipeline_.mark : value->mark;
  }

  const std::string file_;
  const Pipeline& pipeline_;
};

// Waits for one of the answers; true when it was taken. Throws where it was refused, or nobody is left to answer.
bool answered(const std::string& folder, const std::string& path, const Author& author, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::error_code none;
  while (true) {
    const bool alive = lock_holder(folder).held;  // asked before: it may answer and then end
    if (fs::exists(path + ".taken", none)) return true;
    if (const auto refusal = Inbox::refusal(path))
      throw Error(refusal->kind(), str("not added: ", author.reason(refusal->what(), path)));
    if (!alive) {
      unlink(path.c_str());
      over(folder, read_summary(folder).value("status", "ended"));
    }
    if (std::chrono::steady_clock::now() > end) return false;
    const timespec pause{0, 50'000'000};
    nanosleep(&pause, nullptr);
  }
}

std::string waiting_file(const std::string& folder, const Pipeline& pipeline) {
  make_private_folder(folder + "/inbox");
  return str(folder, "/inbox/", pipeline.name, ".yaml");
}

// Puts it into the inbox of a farm that runs, and waits for the answer.
void hand_over(const std::string& folder, const std::string& file, const Pipeline& pipeline,
               const AddArguments& arguments) {
  const std::string path = waiting_file(folder, pipeline);
  unlink((path + ".refused").c_str());  // the answer to an earlier try
  write_whole(path, pipeline_yaml(pipeline), true);
  const Author author(file, pipeline);
  if (!answered(folder, path, author, arguments.wait)) {
    if (unlink(path.c_str()) == 0)
      throw Error(Failure::hang, str("not added: the farm in ", folder, " did not answer within ", arguments.wait,
                                     " s; is it stopped, or its host very busy? Try again, or wait longer by --wait"));
    if (!answered(folder, path, author, 1))  // it was just about to
      throw Error(Failure::io, str(path, ": is gone, and the farm said nothing; look into ", folder, "/journal.jsonl"));
  }
  std::cout << pipeline.name << ": in the queue of " << arguments.folder << ", priority " << pipeline.terms.priority
            << (pipeline.terms.preempt ? ", may preempt" : "") << "; watch it by: convoy top " << arguments.folder
            << '\n';
}

// Where the farm was started, whose paths of data count from there.
void go_where_it_was_started(const std::string& folder) {
  const std::string place = read_summary(folder).value("directory", "");
  std::error_code none;
  if (place.empty() || fs::current_path(none) == place || chdir(place.c_str()) != 0) return;
  std::cerr << "convoy: paths of data count from " << place << ", where the farm was started\n";
}

// A farm that nobody runs is started again, with what it did not finish and the new points.
int add_points(const std::string& folder, bool runs, const AddArguments& arguments) {
  Growth growth = grown(folder, arguments.overrides);
  if (runs) {
    for (const Pipeline& pipeline : growth.pipelines) hand_over(folder, folder + "/config.yaml", pipeline, arguments);
    return exit_code::done;
  }
  refuse_all(growth.farm.mistakes);
  for (const Pipeline& pipeline : growth.pipelines)
    write_whole(waiting_file(folder, pipeline), pipeline_yaml(pipeline), true);
  std::cout << "convoy: " << growth.pipelines.size() << " pipelines added to " << arguments.folder
            << ", which goes on now\n"
            << std::flush;
  return run_farm(std::move(growth.farm));
}

}  // namespace

int add_command(const AddArguments& arguments) {
  if (arguments.file.empty() == arguments.overrides.empty())
    throw Error(Failure::command_line,
                "give either the file of a pipeline, or values of the farm's grid by --set strategy.grid.KEY=[…]");
  const std::string folder = fs::absolute(arguments.folder).lexically_normal().string();
  const std::string file = arguments.file.empty() ? "" : fs::absolute(arguments.file).lexically_normal().string();
  const LockHolder holder = holder_of_farm(folder);
  if (!holder.held && arguments.overrides.empty()) over(folder, read_summary(folder).value("status", "unfinished"));
  if (holder.held)
    go_where_it_runs(holder);
  else
    go_where_it_was_started(folder);
  if (!arguments.overrides.empty()) return add_points(folder, holder.held, arguments);
  const Pipeline pipeline = read_pipeline(file);
  check_name(folder, pipeline);
  hand_over(folder, file, pipeline, arguments);
  return exit_code::done;
}

}  // namespace convoy
