// A pipeline as its farm keeps it.
#pragma once
#include <string>

#include "core/farm.h"
#include "launch/farm/outcome.h"
#include "launch/farm/queue.h"

namespace convoy {

struct Member {
  enum class State { waiting, running, done, failed, stopped };

  Pipeline pipeline;
  Claim claim;
  std::string folder;  // absolute
  State state = State::waiting;
  int starts = 0;        // in all, those of earlier farms in this folder included
  int64_t failures = 0;  // in a row, of this farm's attempts
  Verdict verdict;       // the last one
  // While it runs:
  Grant grant;
  double started = 0;  // unix seconds
  StopReason asked = StopReason::none;
  std::string detail;  // of `asked`, for people
  std::string told;    // by its own convoy, last
  double seconds = 0;  // that its attempts have taken here
};
const char* name_of(Member::State state);  // as summary.json and the leaderboard tell it

// Of summary.json: {name, status, exit_code, attempts, cause, message, folder, metrics}; `summary` is the pipeline's own.
Json to_json(const Member& member, const Json& summary);

}  // namespace convoy
