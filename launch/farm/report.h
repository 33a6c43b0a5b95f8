// What a farm tells: its summary.json and leaderboard, and lines for people.
#pragma once
#include <string>
#include <vector>

#include "launch/farm/member.h"
#include "launch/farm/read.h"

namespace convoy {

struct FarmEnd {
  int exit_code = 0;
  std::string cause;  // "" where all are done
  std::string message;
  std::string host = "";  // where it came from, if it is known
};
// 0: all are done; 1: some failed, which are named; 143: `stop_signal` asked it to stop before they had ended.
FarmEnd farm_end(const std::vector<Member>& members, int stop_signal);

// While it runs (`end` null), and then. `seconds`: since it began; `attempt`: how often this folder was started before.
Json farm_summary(const FarmRun& run, const std::vector<Member>& members, int attempt, int slots, double seconds,
                  const FarmEnd* end);

// "2 run (ncf, gpt), 3 wait, 1 is done"
std::string farm_progress(const std::vector<Member>& members);

}  // namespace convoy
