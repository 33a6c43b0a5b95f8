#include "launch/farm/inbox.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/files.h"
#include "launch/exit_codes.h"
#include "launch/farm/folders.h"
#include "launch/summary.h"

namespace convoy {
namespace {

constexpr char refused_end[] = ".refused";
constexpr char code_line[] = "exit code ";
constexpr size_t longest_reason = 1 << 20;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::vector<std::string> paths_with(const std::string& folder, const std::string& end) {
  std::vector<std::string> paths;
  for (const std::string& name : names_in(folder))
    if (name[0] != '.' && ends_with(name, end)) paths.push_back(folder + "/" + name);
  return paths;
}

}  // namespace

Inbox::Inbox(const std::string& run_folder) : folder_(run_folder + "/inbox") { make_own_folder(folder_); }

std::vector<std::string> Inbox::arrived() {
  struct stat status {};
  if (stat(folder_.c_str(), &status) != 0) return {};
  const bool same = status.st_mtim.tv_sec == changed_.tv_sec && status.st_mtim.tv_nsec == changed_.tv_nsec && !unsure_;
  if (same) return {};
  changed_ = status.st_mtim;
  // File systems stamp by a clock that ticks; some in seconds.
  unsure_ = time(nullptr) - status.st_mtim.tv_sec < 2;
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

}  // namespace convoy
