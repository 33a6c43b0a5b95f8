// LiveFiles: the files that a running job writes for other programs: progress.json for `convoy top`, resources.jsonl,
// and the file of log.prometheus.
//
// A full disk does not end a run because of these files. Ranks report it for their files, and `warn` receives the first
// failure of log.prometheus. Threads: one.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "core/base/json.h"

namespace convoy {

class LiveFiles {
 public:
  using Warn = std::function<void(const std::string&)>;
  // `prometheus`: log.prometheus. `began`: start of the run; the times in resources.jsonl and the start-up of
  // the ranks count from it.
  LiveFiles(std::string folder, const std::string& prometheus, std::chrono::steady_clock::time_point began, Warn warn);

  void begin();                        // Error(output) if log.prometheus cannot be written
  void progress(const Json& record);   // from rank 0; writes about once a second at most
  void evaluated(const Json& record);  // protocol::metrics
  void resources(const Json& report);  // protocol::resources
  // `breakdown`: of the summary, or null. A file that cannot be written any more is removed, because it shows the run
  // as running.
  void end(int exit_code, const Json& breakdown);

 private:
  std::string prometheus_text() const;
  std::string write_prometheus();  // returns why it failed, or ""
  void add_start(int rank, Json& report);

  const std::string folder_, run_, prometheus_;
  const std::chrono::steady_clock::time_point began_;
  const Warn warn_;
  bool warned_ = false;
  std::chrono::steady_clock::time_point progress_written_;
  struct RankStart {
    double unmeasured = 0;  // seconds from the start of the run to that of the rank's clock
    double measured = 0;    // sum of the last report
  };
  std::map<int, RankStart> starts_;
  Json progress_ = Json::object(), evaluated_ = Json::object();
  std::map<int, Json> resources_;  // last report of each rank
  int exit_code_ = -1;             // -1: the job runs
};

// The metrics of a job in Prometheus' text format. `exit_code` -1: the job runs.
std::string prometheus_text(const std::string& run, const Json& progress, const Json& evaluated,
                            const std::map<int, Json>& resources, int exit_code);

}  // namespace convoy
