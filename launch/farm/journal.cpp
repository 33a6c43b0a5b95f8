#include "launch/farm/journal.h"

#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <utility>

#include "core/files.h"
#include "launch/session.h"

namespace convoy {
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
  // One write of a short line to a file that only appends: no reader sees half of it, nor two lines mixed.
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
