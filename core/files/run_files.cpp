#include "core/files/run_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/files.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_path(const std::string& path, const std::string& reason) {
  throw Error(Failure::output, path, ": ", reason);
}

// Refuses a link or a FIFO in place of a regular file of the run: it is an attack or a mistake. A file that the run
// appends to must have a single name, or another file would change. The other files are replaced.
void refuse_irregular_files(const std::string& folder, const std::string& advice) {
  std::vector<std::string> appended, paths;
  for (const char* name : {"metrics.jsonl", "journal.jsonl"}) appended.push_back(str(folder, "/", name));
  for (const std::string& name : names_in(folder + "/logs")) appended.push_back(str(folder, "/logs/", name));
  for (const char* name :
       {".lock", "summary.json", "config.yaml", "progress.json", "failure.json", "leaderboard.csv", "overlap.json"})
    paths.push_back(str(folder, "/", name));
  paths.insert(paths.end(), appended.begin(), appended.end());
  for (const std::string& path : paths)
    if (const std::string kind = irregular(path); !kind.empty())
      refuse_path(path, str(kind, ", and a run writes a regular file there; remove it, or ", advice));
  for (const std::string& path : appended)
    if (struct stat status{}; lstat(path.c_str(), &status) == 0 && status.st_nlink > 1)
      refuse_path(path, str("is a hard link to another file, which a run would change; copy it (cp FILE NEW && mv NEW "
                            "FILE), or ",
                            advice));
}

}  // namespace

// Links and write permissions are checked before anything is created, and again afterwards.
std::string create_run_folder(const std::string& folder, const std::string& advice) {
  const auto check = [&folder] {
    for (const char* part : {"/logs", "/checkpoints"}) refuse_link(folder + part);
    return refuse_writable_by_others(folder);
  };
  const std::string warning = check();
  try {
    make_private_folder(folder);
    make_private_folder(folder + "/logs");
  } catch (const Error& error) {
    const std::string reason = error.what();
    refuse_path(folder, reason.find("--output") == std::string::npos ? str(reason, "; ", advice) : reason);
  }
  check();
  std::error_code problem;
  for (const std::string part : {"/logs", "/checkpoints"}) {
    const std::string path = folder + part;
    if (!fs::exists(path, problem)) continue;  // ranks make it
    if (!fs::is_directory(path, problem)) refuse_path(path, str("is no directory; ", advice));
    refuse_writable_by_others(path);
    if (faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
      refuse_path(path, str("cannot be written: ", std::strerror(errno), "; ", advice));
  }
  refuse_irregular_files(folder, advice);
  // A rename of the ranks replaces a file or a link there.
  if (const std::string latest = folder + "/checkpoints/" + latest_file;
      fs::is_directory(fs::symlink_status(latest, problem)))
    refuse_path(latest, str("is a folder, but a run writes a regular file there; remove it, or ", advice));
  return warning;
}

FolderLock::FolderLock(const std::string& folder, const std::string& advice) : path_(folder + "/.lock") {
  while (true) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd_ < 0 && is_out_of_descriptors(errno)) throw Error(Failure::io, path_, ": ", error_text(errno));
    if (fd_ < 0) refuse_path(folder, str("cannot be written: ", std::strerror(errno), "; ", advice));
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      close(std::exchange(fd_, -1));
      if (reason == EWOULDBLOCK) return;
      refuse_path(folder, str("cannot be locked: ", std::strerror(reason)));
    }
    // The previous owner may have removed the file between open and flock.
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

namespace {

namespace fs = std::filesystem;

constexpr char step_folder_prefix[] = "step-";

std::optional<int64_t> step_in(const std::string& name) {
  if (!begins_with(name, step_folder_prefix)) return std::nullopt;
  const std::string digits = name.substr(sizeof step_folder_prefix - 1);
  const bool number =
      !digits.empty() && digits.size() < 19 && digits.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::optional<int64_t>(std::stoll(digits)) : std::nullopt;
}

bool exists(const std::string& path) {
  std::error_code none;
  return fs::exists(path, none);
}

constexpr size_t listed_checkpoints = 5;

[[noreturn]] void refuse_reference(const std::string& key, const std::string& run, const std::string& reason) {
  const std::string names = checkpoint_names(run);
  throw Error(Failure::config, key, ": ", run, reason,
              names.empty() ? std::string("; it has no checkpoint: train it with train.checkpoint_every")
                            : str("; it has ", names, "; type one of these, or ", run, " for the newest"));
}

}  // namespace

std::vector<int64_t> checkpoint_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(folder))
    if (const std::optional<int64_t> step = step_in(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string checkpoints_folder(const std::string& path) {
  std::error_code none;
  const std::string below = (fs::path(path) / "checkpoints").string();
  if (fs::is_directory(below, none)) return below;
  return checkpoint_steps(path).empty() ? "" : path;
}

std::optional<int64_t> best_step(const std::string& folder) {
  std::string name = read_file_if_any((fs::path(folder) / best_file).string(), 64);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  const std::optional<int64_t> step = step_in(name);
  std::error_code none;
  if (!step || !fs::is_directory(fs::path(folder) / name, none)) return std::nullopt;
  return step;
}

std::string run_of(const std::string& text) {
  std::string path = member_path(text).path;
  for (size_t at = path.rfind('@'); at != std::string::npos && path.find('/', at) == std::string::npos && !exists(path);
       at = path.rfind('@'))
    path.resize(at);
  return path;
}

void for_each_object(const std::string& path, const std::function<void(const Json&)>& use) {
  for (const std::string& line : split(read_file_if_any(path), '\n')) {
    if (line.empty()) continue;
    if (const Json json = parsed_json(line); json.is_object()) use(json);
  }
}

std::string checkpoint_names(const std::string& run, int64_t before) {
  const std::string folder = checkpoints_folder(run);
  if (folder.empty()) return "";
  std::vector<int64_t> steps = checkpoint_steps(folder);
  if (before >= 0) steps.erase(std::lower_bound(steps.begin(), steps.end(), before), steps.end());
  std::vector<std::string> names;
  if (const auto best = best_step(folder); best && (before < 0 || *best < before))
    names.push_back(str(run, "@", best_file));
  for (auto step = steps.rbegin(); step != steps.rend() && names.size() < listed_checkpoints; ++step)
    names.push_back(str(run, "@", step_folder_prefix, *step));
  const size_t more = steps.size() - std::min(steps.size(), listed_checkpoints);
  return str(join(names, ", "), more > 0 ? str(" and ", more, " more") : std::string());
}

std::string advice_for_damage(const std::string& step_folder) {
  const fs::path path = fs::path(step_folder).lexically_normal();
  const fs::path step = path.has_filename() ? path : path.parent_path(), folder = step.parent_path();
  const std::string run = (folder.filename() == "checkpoints" ? folder.parent_path() : folder).string();
  const std::optional<int64_t> number = step_in(step.filename().string());
  const std::string older = number ? checkpoint_names(run, *number) : std::string();
  return older.empty() ? "; there is no older one: copy the checkpoint again, or train the run again"
                       : str("; name an older one: ", older);
}

MemberPath checkpoint_path(const std::string& text, const std::string& key) {
  MemberPath named = member_path(text);
  const size_t at = named.path.rfind('@');
  if (at == std::string::npos || named.path.find('/', at) != std::string::npos || exists(named.path))
    return named;  // a folder's name may have an @
  const std::string run = named.path.substr(0, at), what = named.path.substr(at + 1);
  const std::optional<int64_t> step = step_in(what);
  const bool known = what == best_file || step;
  if (!exists(run)) {
    if (const MemberPath early = member_path(run); known && early.member >= 0)
      throw Error(Failure::config, key, ": ", text, ": the member comes last; type ", early.path, "@", what, "@member",
                  early.member);
    if (known) named.path = run;
    return named;
  }
  if (!fs::is_directory(run)) return named;
  if (const std::vector<std::string> pipelines = pipeline_folders(run); !pipelines.empty())
    throw Error(Failure::config, key, ": ", run, " is the folder of a farm; name one of its runs, as in ",
                pipelines.front(), known ? "@" + what : std::string());
  if (!known)
    refuse_reference(key, run, str(" is followed by @", what, ", and only @best, @step-N and @memberN have a meaning"));
  const std::string folder = checkpoints_folder(run);
  if (what == best_file) {
    const std::optional<int64_t> best = folder.empty() ? std::nullopt : best_step(folder);
    if (!best) refuse_reference(key, run, " has no best checkpoint, which train.keep_best keeps");
    named.path = (fs::path(folder) / str(step_folder_prefix, *best)).string();
    return named;
  }
  named.path = (fs::path(folder) / what).string();
  if (folder.empty() || !exists(named.path)) refuse_reference(key, run, str(" has no checkpoint of step ", *step));
  return named;
}

}  // namespace convoy
