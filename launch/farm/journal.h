// RUN/journal.jsonl: what happened to each pipeline, one JSON object a line, appended before anything that follows from it:
// whoever is killed then has lost nothing. So that little is lost with the power either, sync() is called every second. `convoy top` reads it, and a farm that goes on knows by it how often each was started.
//
//   {"time": unix seconds, "pipeline": name, "event": queued | started | preempted | retry | done | failed | cancelled,
//    "attempt": n, …}
//   started: "pid" (of the child `convoy`), "host", "slot", "cores": […], "gpus": […], "priority"
//   the ends: "exit_code", "cause", "message"; retry: "after" (seconds) too
#pragma once
#include <map>
#include <string>

#include "core/options.h"

namespace convoy {

class Journal {
 public:
  // Opens it, and ends a line that a killed farm has left half written. Error(io).
  explicit Journal(const std::string& run_folder);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // `details` follow time, pipeline, event and attempt. Error(io) when the line cannot be written.
  void write(const std::string& pipeline, const std::string& event, int attempt, const Json& details = Json::object());
  void sync();  // what was written since is on the disk then; Error(io)

 private:
  std::string path_;
  int fd_ = -1;
  bool written_ = false;  // since the last sync
};

// How often each pipeline was started, by the journal of a folder; none where there is no journal.
std::map<std::string, int> starts_in_journal(const std::string& run_folder);

}  // namespace convoy
