#include "launch/commands/add.h"

#include <limits.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>

#include "core/files.h"
#include "launch/exit_codes.h"
#include "launch/farm/holder.h"
#include "launch/farm/read.h"
#include "launch/summary.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr size_t longest_reason = 1 << 20;

[[noreturn]] void over(const std::string& folder, const std::string& status) {
  throw Error(Failure::output,
              str(folder, ": nobody runs this farm any more (it is ", status == "running" ? "left unfinished" : status,
                  "); run the pipeline alone, or put it into the farm's file and start that with another --output"));
}

// Whoever runs it.
LockHolder running_farm(const std::string& folder) {
  std::error_code none;
  if (!fs::is_directory(folder, none))
    throw Error(Failure::command_line, str(folder, ": there is no such folder; give a farm's, such as runs/farm"));
  const Json summary = read_summary(folder);
  const LockHolder holder = lock_holder(folder);
  if (!summary.contains("pipelines") && !fs::exists(folder + "/journal.jsonl", none))
    throw Error(Failure::command_line,
                str(folder,
                    ": holds no run of several pipelines, to which one could be added; start one by `convoy run` "
                    "of a file that lists pipelines, or run this one by itself"));
  if (!holder.held) over(folder, summary.value("status", "unfinished"));
  return holder;
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

// Which names the file that was put into the inbox, and its first line: its author knows `file`.
std::string reason_in(const std::string& path, const std::string& put, const std::string& file) {
  std::string reason = read_file(path, longest_reason);
  reason.erase(reason.find_last_not_of("\n ") + 1);
  for (const std::string& place : {put + ":1:1", put})
    for (size_t at = 0; (at = reason.find(place, at)) != std::string::npos; at += file.size())
      reason.replace(at, place.size(), file);
  return reason;
}

// Waits for one of the answers; true when it was taken. Throws where it was refused, or nobody is left to answer.
bool answered(const std::string& folder, const std::string& path, const std::string& file, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::error_code none;
  while (true) {
    const bool alive = lock_holder(folder).held;  // asked before: it may answer and then end
    if (fs::exists(path + ".taken", none)) return true;
    if (fs::exists(path + ".refused", none))
      throw Error(Failure::config, str("not added: ", reason_in(path + ".refused", path, file)));
    if (!alive) {
      unlink(path.c_str());
      over(folder, read_summary(folder).value("status", "ended"));
    }
    if (std::chrono::steady_clock::now() > end) return false;
    const timespec pause{0, 50'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

int add_command(const AddArguments& arguments) {
  const std::string folder = fs::absolute(arguments.folder).lexically_normal().string();
  const std::string file = fs::absolute(arguments.file).lexically_normal().string();
  const LockHolder holder = running_farm(folder);
  go_where_it_runs(holder);
  const Pipeline pipeline = read_pipeline(file);
  check_name(folder, pipeline);

  const std::string path = str(folder, "/inbox/", pipeline.name, ".yaml");
  std::error_code problem;
  fs::create_directories(folder + "/inbox", problem);
  if (problem) throw Error(Failure::output, str(folder, "/inbox: cannot be created: ", problem.message()));
  unlink((path + ".refused").c_str());  // the answer to an earlier try
  write_whole(path, pipeline_yaml(pipeline), true);
  if (!answered(folder, path, file, arguments.wait)) {
    if (unlink(path.c_str()) == 0)
      throw Error(Failure::hang, str("not added: the farm in ", folder, " did not answer within ", arguments.wait,
                                     " s; is it stopped, or its host very busy? Try again, or wait longer by --wait"));
    if (!answered(folder, path, file, 1))  // it was just about to
      throw Error(Failure::io, str(path, ": is gone, and the farm said nothing; look into ", folder, "/journal.jsonl"));
  }
  std::cout << pipeline.name << ": in the queue of " << arguments.folder << ", priority " << pipeline.terms.priority
            << (pipeline.terms.preempt ? ", may preempt" : "") << "; watch it by: convoy top " << arguments.folder
            << '\n';
  return exit_code::done;
}

}  // namespace convoy
