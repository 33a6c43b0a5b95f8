// Classifies the end of a pipeline's attempt. Pure functions.
#pragma once
#include <string>

#include "core/base/options.h"
#include "launch/process/process.h"

namespace convoy {

// Reason for which the farm ended a pipeline.
enum class StopReason {
  none,     // ended without the farm
  preempt,  // a pipeline of higher priority needs its slot
  timeout,
  memory,
  stopped  // the farm got a request to stop
};

struct AttemptResult {
  enum class Outcome { done, preempted, stopped, failed } outcome = Outcome::failed;
  bool retryable = false;  // another attempt may succeed
  int exit_code = 0;
  std::string cause;    // of a failure, as in summary.json, or "memory", "timeout"
  std::string message;  // for people
};

// `detail`: the measurement that exceeded a memory limit or timeout. `summary`: of the pipeline's folder, as its
// `convoy` left it. `limit_key`: key of the limit on its ranks' allocators, "" for none; with it, out of memory has
// cause `memory`. `last_message`: printed by its `convoy`; the message of a failure without a summary.
AttemptResult classify(const ProcessEnd& end, StopReason reason, const std::string& detail, const Json& summary,
                       const std::string& limit_key = "", const std::string& last_message = "");

// Returns `summary`, completed with the failure if a killed `convoy` could not write it.
Json with_failure(Json summary, const std::string& name, const AttemptResult& result);

}  // namespace convoy
