// LiveFiles: what a running job writes for other programs: progress.json for `convoy top`, resources.jsonl, and the
// file of log.prometheus.
//
// A full disk does not end a run because of these files; ranks report it. Threads: one.
#pragma once
#include <chrono>
#include <map>
#include <string>

#include "core/base/json.h"

namespace convoy {

class LiveFiles {
 public:
  // `prometheus`: log.prometheus. `began`: start of the run, for times in resources.jsonl.
  LiveFiles(std::string folder, const std::string& prometheus, std::chrono::steady_clock::time_point began);

  void begin();                        // Error(output) if log.prometheus cannot be written
  void progress(const Json& record);   // of rank 0; at most about once a second is written
  void evaluated(const Json& record);  // protocol::metrics
  void resources(const Json& report);  // protocol::resources
  void end(int exit_code);

 private:
  std::string prometheus_text() const;
  void write_prometheus();

  const std::string folder_, run_, prometheus_;
  const std::chrono::steady_clock::time_point began_;
  std::chrono::steady_clock::time_point progress_written_, prometheus_written_;
  Json progress_ = Json::object(), evaluated_ = Json::object();
  std::map<int, Json> resources_;  // last report of each rank
  int exit_code_ = -1;             // -1: the job runs
};

// The metrics of a job in Prometheus' text format. `exit_code` -1: the job runs.
std::string prometheus_text(const std::string& run, const Json& progress, const Json& evaluated,
                            const std::map<int, Json>& resources, int exit_code);

}  // namespace convoy
