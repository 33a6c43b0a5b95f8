#include "launch/farm/run/journal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "core/files/files.h"
#include "launch/farm/run/farm.h"
#include "launch/job/run_attempt.h"
#include "launch/job/summary.h"
#include "launch/process/exit_codes.h"

namespace convoy {
namespace {

constexpr char refused_end[] = ".refused";
constexpr char code_line[] = "exit code ";
constexpr size_t longest_reason = 1 << 20;

std::vector<std::string> paths_with(const std::string& folder, const std::string& end) {
  std::vector<std::string> paths;
  for (const std::string& name : names_in(folder))
    if (name[0] != '.' && ends_in(name, end)) paths.push_back(folder + "/" + name);
  return paths;
}

}  // namespace

Inbox::Inbox(const std::string& run_folder) : folder_(run_folder + "/inbox") { make_subfolder(folder_); }

std::vector<std::string> Inbox::arrived() {
  struct stat status {};
  if (stat(folder_.c_str(), &status) != 0) return {};
  const bool same =
      status.st_mtim.tv_sec == changed_.tv_sec && status.st_mtim.tv_nsec == changed_.tv_nsec && !may_have_changed_;
  if (same) return {};
  changed_ = status.st_mtim;
  // File systems round time stamps, some to seconds.
  may_have_changed_ = time(nullptr) - status.st_mtim.tv_sec < 2;
  return paths_with(folder_, ".yaml");
}

std::vector<std::string> Inbox::taken() const { return paths_with(folder_, ".yaml.taken"); }

void Inbox::take(const std::string& path) const {
  if (rename(path.c_str(), (path + ".taken").c_str()) != 0)
    throw Error(Failure::io, str(path, ": cannot be renamed: ", strerror(errno)));
}

void Inbox::refuse(const std::string& path, const Error& reason) const {
  write_whole(path + refused_end, str(reason.what(), "\n", code_line, exit_code_of(reason.kind()), "\n"), true);
  unlink(path.c_str());
}

std::unique_ptr<Error> Inbox::refusal(const std::string& path) {
  struct stat status {};
  if (stat((path + refused_end).c_str(), &status) != 0) return nullptr;
  std::string reason = read_file(path + refused_end, longest_reason);
  reason.erase(reason.find_last_not_of("\n ") + 1);
  const size_t last = reason.rfind(str("\n", code_line));
  if (last == std::string::npos) return std::make_unique<Error>(Failure::config, reason);
  const int code = std::atoi(reason.c_str() + last + 1 + strlen(code_line));
  return std::make_unique<Error>(failure_of_exit(code), reason.substr(0, last));
}

namespace {

std::string journal_path(const std::string& run_folder) { return run_folder + "/journal.jsonl"; }

}  // namespace

Journal::Journal(const std::string& run_folder) : path_(journal_path(run_folder)) {
  fd_ = open_to_append(path_).release();
  const off_t size = lseek(fd_, 0, SEEK_END);
  char last = '\n';
  if (size > 0 && pread(fd_, &last, 1, size - 1) == 1 && last != '\n' && ::write(fd_, "\n", 1) != 1)
    throw Error(Failure::io, str(path_, ": cannot be written: ", strerror(errno)));
}

Journal::~Journal() {
  if (fd_ >= 0) close(fd_);
}

void Journal::write(const std::string& pipeline, const std::string& event, int attempt, const Json& details) {
  Json line = {{"time", unix_seconds()}, {"pipeline", pipeline}, {"event", event}, {"attempt", attempt}};
  line.update(details);
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  // One write() in append mode: readers never see a part of a line, or two mixed lines.
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(fd_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw Error(Failure::io, str(path_, ": cannot be written: ", strerror(errno)));
    done += static_cast<size_t>(written);
  }
  written_ = true;
}

void Journal::sync() {
  if (!std::exchange(written_, false)) return;
  if (fdatasync(fd_) != 0) throw Error(Failure::io, str(path_, ": cannot be flushed: ", strerror(errno)));
}

std::map<std::string, int> starts_in_journal(const std::string& run_folder) {
  std::map<std::string, int> starts;
  std::istringstream file(read_file_if_any(journal_path(run_folder)));
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("event") || line["event"] != "started") continue;
    if (line.contains("pipeline") && line["pipeline"].is_string()) ++starts[line["pipeline"].get<std::string>()];
  }
  return starts;
}

}  // namespace convoy
