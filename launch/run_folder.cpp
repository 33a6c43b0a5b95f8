#include "launch/run_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "core/config/run_config.h"
#include "core/control/state_file.h"
#include "launch/exit_codes.h"
#include "launch/resume_path.h"
#include "launch/summary.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

std::string numbered(const FolderRequest& request, int number) {
  return str(request.root, "/", request.name, number > 1 ? str("-", number) : "");
}

[[noreturn]] void refuse(const std::string& folder, const std::string& reason) {
  throw Error(Failure::output, str(folder, ": ", reason));
}

constexpr char other_output[] = "; choose another with --output";

// What ranks will write into is tried now: they would find out one by one, and after an epoch.
void create(const std::string& folder) {
  std::error_code problem;
  fs::create_directories(folder + "/logs", problem);
  if (problem) refuse(folder, str("cannot be created: ", problem.message(), other_output));
  for (const std::string part : {"/logs", "/checkpoints"}) {
    const std::string path = folder + part;
    if (!fs::exists(path, problem)) continue;  // ranks make it
    if (!fs::is_directory(path, problem)) refuse(path, str("is no directory", other_output));
    if (faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
      refuse(path, str("cannot be written: ", strerror(errno), other_output));
  }
}

// Where the ranks of a killed run were: the one that was behind is the likely culprit of nothing, so only steps are told.
int64_t last_step(const std::string& folder) {
  int64_t step = -1;
  for (int rank = 0;; ++rank) {
    const auto position = read_state_file(str(folder, "/logs/rank", rank, ".state"));
    if (!position) return step;
    step = std::max(step, position->step);
  }
}

Json ending_of(const Abort& cause) { return {{"exit_code", exit_code_of(cause)}, {"failure", failure_json(cause)}}; }

// Under the lock: nobody runs here, so `running` was left behind.
void mend(const std::string& folder, Json& summary, std::vector<std::string>& notes) {
  const std::string note_file = folder + "/failure.json";
  if (summary.value("status", "") == "running") {
    std::ifstream file(note_file);
    Json left = Json::parse(file, nullptr, false);
    if (!left.is_object() || !left["failure"].is_object())
      left = ending_of({Failure::internal, -1, last_step(folder), SIGKILL, "",
                        "convoy itself was killed before it could write the end"});
    summary["status"] = "failed";
    summary["exit_code"] = left["exit_code"];
    summary["failure"] = left["failure"];
    write_summary(folder, summary, false);
    notes.push_back(
        str(folder, ": the run before this one ended without a word: ", summary["failure"].value("message", "")));
  }
  unlink(note_file.c_str());
  // What a killed supervisor had no time to remove.
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    for (const char* ours : {".rendezvous-", ".summary.json.", ".progress.json."})
      if (name.rfind(ours, 0) == 0) fs::remove(entry.path(), none);
  }
}

// As the ranks look for one: by name. `latest` may be missing after a kill.
bool has_checkpoint(const std::string& folder) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder + "/checkpoints", none))
    if (entry.path().filename().string().rfind("step-", 0) == 0) return true;
  return false;
}

// Takes an unfinished folder, if its lock is free.
std::optional<RunFolder> take(const FolderRequest& request, const std::string& folder) {
  RunFolder run;
  create(folder);
  run.lock = FolderLock(folder);
  if (!run.lock.held()) return std::nullopt;
  run.path = fs::absolute(folder).lexically_normal().string();
  Json summary = read_summary(folder);
  if (summary.value("status", "") == "done") {
    run.already_done = true;
    return run;
  }
  mend(folder, summary, run.notes);
  run.attempt =
      summary.contains("attempt") && summary["attempt"].is_number_integer() ? summary["attempt"].get<int>() + 1 : 0;
  if (!has_checkpoint(folder)) return run;  // nothing that a different configuration could spoil
  const std::string key = first_difference(summary.value("config", Json::object()), request.resolved, resumable_keys());
  if (!key.empty())
    throw ConfigError(mark_of(request.resolved, key), key,
                      str("differs from the unfinished run in ", folder,
                          ", which train.resume=auto would continue; give --output with another folder, or "
                          "train.resume=never without --output to start anew"));
  run.continued = true;
  return run;
}

std::string done_reason(const Json& summary, const FolderRequest& request) {
  const std::string key = first_difference(summary.value("config", Json::object()), request.resolved, {"train.resume"});
  return key.empty() ? "" : str("holds a run that is done, with another ", key, "; give another --output");
}

RunFolder open_given(const FolderRequest& request) {
  const std::string& folder = request.output;
  struct stat status {};
  if (stat(folder.c_str(), &status) == 0 && !S_ISDIR(status.st_mode))
    refuse(folder, "is no directory; give another --output");
  auto run = take(request, folder);
  if (!run) refuse(folder, "another run is using it (its lock is held); wait for it, or give another --output");
  if (run->already_done) {
    const std::string reason = done_reason(read_summary(folder), request);
    if (!reason.empty()) refuse(folder, reason);
    run->notes.push_back(str(folder, ": already done"));
  }
  if (run->continued && request.resume == "never")
    refuse(folder, "holds an unfinished run with checkpoints, and train.resume is never; give another --output");
  return std::move(*run);
}

// Numbers of runs/NAME, runs/NAME-2, … that exist, the one written last first.
std::vector<int> existing(const FolderRequest& request) {
  std::vector<std::pair<fs::file_time_type, int>> found;
  for (int number = 1; fs::exists(numbered(request, number)); ++number) {
    std::error_code none;
    auto time = fs::last_write_time(numbered(request, number) + "/summary.json", none);
    if (none) time = fs::file_time_type::min();
    found.emplace_back(time, number);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<int> numbers;
  for (const auto& [time, number] : found) numbers.push_back(number);
  return numbers;
}

RunFolder open_named(const FolderRequest& request) {
  const std::vector<int> numbers = existing(request);
  if (request.resume == "auto")
    for (int number : numbers) {
      const std::string folder = numbered(request, number);
      if (read_summary(folder).value("status", "") == "done") continue;
      auto run = take(request, folder);
      if (!run || run->already_done) continue;
      if (run->continued) run->notes.push_back(str("continuing the unfinished run in ", folder));
      return std::move(*run);
    }
  for (int number = 1;; ++number) {
    const std::string folder = numbered(request, number);
    if (fs::exists(folder)) continue;
    auto run = take(request, folder);
    if (!run) continue;  // another run was quicker
    if (number > 1) run->notes.push_back(str(numbered(request, 1), " is taken; this run's folder is ", folder));
    return std::move(*run);
  }
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) : path_(folder + "/.lock") {
  while (true) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd_ < 0) refuse(folder, str("cannot be written: ", strerror(errno), other_output));
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      close(std::exchange(fd_, -1));
      if (reason == EWOULDBLOCK) return;
      refuse(folder, str("cannot be locked: ", strerror(reason)));
    }
    // Its last holder may have removed the file between our open and our lock.
    struct stat ours {
    }, named{};
    if (fstat(fd_, &ours) == 0 && stat(path_.c_str(), &named) == 0 && ours.st_ino == named.st_ino) return;
    close(std::exchange(fd_, -1));
  }
}

void FolderLock::release() {
  if (fd_ < 0) return;
  unlink(path_.c_str());
  close(std::exchange(fd_, -1));
}

FolderLock::~FolderLock() { release(); }
FolderLock::FolderLock(FolderLock&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  release();
  path_ = std::move(other.path_);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

std::string requested_folder(const FolderRequest& request) {
  return request.output.empty() ? numbered(request, 1) : request.output;
}

const std::vector<std::string>& resumable_keys() {
  static const std::vector<std::string> keys{"launch",          "backend",         "log",
                                             "train.epochs",    "train.max_steps", "train.checkpoint_every",
                                             "train.keep_last", "train.resume",    "train.log_every"};
  return keys;
}

void leave_failure(const std::string& folder, const Abort& cause) {
  if (read_summary(folder).value("status", "") != "running") return;
  const int fd = open((folder + "/failure.json").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return;
  const std::string text = ending_of(cause).dump(2) + "\n";
  const ssize_t written = write(fd, text.data(), text.size());
  close(fd);
  if (written != static_cast<ssize_t>(text.size())) return;
  const FolderLock lock(folder);
  Json summary = read_summary(folder);  // the supervisor may have ended it meanwhile, and knows better
  std::vector<std::string> notes;
  if (lock.held()) mend(folder, summary, notes);
}

RunFolder open_run_folder(const FolderRequest& request) {
  check_resume_path(request.resume, request.resolved);
  return request.output.empty() ? open_named(request) : open_given(request);
}

}  // namespace convoy
