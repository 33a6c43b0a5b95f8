// A stall as people read it: who is where, who is missing, and the sentence that names the cause. Pure functions over what
// launch/stall_watch.h has gathered.
#pragma once
#include <string>
#include <vector>

#include "core/control/channel.h"
#include "core/control/position.h"

namespace convoy {

// What is known of one rank.
struct RankPlace {
  RankReport report;  // age counts to now
  std::string host;
  bool known = false;      // there is a report
  bool answered = false;   // the rank's process answered just now
  bool suspended = false;  // its process is stopped by a signal or a debugger
  double told = 0;         // seconds since it was reported, where it did not answer
};

// Why somebody looks.
struct Stall {
  enum class Kind { collective, heartbeat, step, set_up } kind = Kind::collective;
  int rank = -1;  // who waits; or who is silent
  // Of the wait, as LateCall (core/registry.h) has it:
  std::string group;
  int64_t number = 0;
  std::string call;
  std::vector<int> members;
  double seconds = 0;   // waited, silent, or in one place
  double limit = 0;     // that has passed; for a warning, that half of has
  std::string message;  // of a heartbeat that is lost
};

struct StallVerdict {
  Failure kind = Failure::hang;
  std::vector<int> ranks;  // to blame; none where nobody is
  std::string message;
};

// Ranks that called different things under one number, in whatever group; no ranks and no message where all fit.
StallVerdict call_difference(const std::vector<RankPlace>& places);
// Names whoever all others wait for: ranks that do not answer before those that have not come, and those that wait
// themselves last of all.
StallVerdict judge(const Stall& stall, const std::vector<RankPlace>& places);

std::string place_text(const RankPlace& place);        // "loader, step 812"
std::string short_call(const std::string& call);       // "all-reduce bucket 2" of "all_reduce 'bucket 2' float32[4]"
std::string rank_list(const std::vector<int>& ranks);  // "rank 1", "ranks 0-2, 5"

// Ranks in the same place share a line; those to blame come first. Stacks: the first to blame whole, of the rest their ranks' own
// threads, shortened. Every line but the last ends with a newline.
std::string hang_table(const std::vector<RankPlace>& places, const StallVerdict& verdict,
                       const std::vector<ThreadStack>& stacks);
// For summary.json: {ranks: […], stacks: […]}, with names in place of addresses.
Json hang_json(const std::vector<RankPlace>& places, const StallVerdict& verdict,
               const std::vector<ThreadStack>& stacks);

}  // namespace convoy
