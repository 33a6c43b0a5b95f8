// Files by which a farm's processes inform each other: the inbox and the journal in its run folder.
#pragma once
#include <sys/types.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/options.h"

namespace convoy {

// RUN/inbox: pipelines to add to a running farm. `convoy add` renames NAME.yaml into it. The farm renames the file to
// NAME.yaml.taken, or replaces it by NAME.yaml.refused, which contains the reason and a last line "exit code N".
class Inbox {
 public:
  explicit Inbox(const std::string& run_folder);  // creates the folder; Error(output)

  std::vector<std::string> arrived();      // paths, sorted by name; cheap while nothing has changed
  std::vector<std::string> taken() const;  // paths of files taken earlier
  void take(const std::string& path) const;
  void refuse(const std::string& path, const Error& reason) const;
  // The error that refuse() has written; null if there is none yet.
  static std::unique_ptr<Error> refusal(const std::string& path);

 private:
  std::string folder_;
  struct timespec changed_ {};
  bool may_have_changed_ = true;  // within the resolution of the file system's time stamps
};

// RUN/journal.jsonl: what happened to each pipeline, one JSON object per line. An event is appended before the farm
// acts on it, so a killed farm loses none. sync() is called every second, so a power failure loses little. `convoy top`
// reads it, and a resumed farm counts each pipeline's starts in it.
//
//   {"time": unix seconds, "pipeline": name, "event": queued | started | preempted | retry | done | failed | cancelled,
//    "attempt": n, …}
//   started: "pid" (of the child `convoy`), "host", "slot", "cores": […], "gpus": […], "priority"
//   preempted, retry, failed, cancelled: "exit_code", "cause", "message"; retry: also "after" (seconds)
class Journal {
 public:
  // Opens the file, and ends a line that a killed farm left incomplete. Error(io).
  explicit Journal(const std::string& run_folder);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // `details` follow time, pipeline, event and attempt. Error(io) if the line cannot be written.
  void write(const std::string& pipeline, const std::string& event, int attempt, const Json& details = Json::object());
  void sync();  // flushes written lines to the disk; Error(io)

 private:
  std::string path_;
  int fd_ = -1;
  bool written_ = false;  // since the last sync
};

// Number of starts of each pipeline in the journal of a folder; empty without a journal.
std::map<std::string, int> starts_in_journal(const std::string& run_folder);

}  // namespace convoy
