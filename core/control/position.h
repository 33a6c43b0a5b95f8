// Where a rank is, as it travels over the control channel, and how a stall is looked into. Without LibTorch.
//
// Each rank process sends the positions of its ranks with its heartbeats. A rank that has waited too long posts a
// LateCall; whoever serves then sets the key `inquiry`, to which every rank process answers at once by `where` and, if
// asked, by `stacks`, both from its channel's thread, so that an answer comes also from a process whose ranks are stuck.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/control/call_notes.h"
#include "core/control/state_file.h"
#include "core/options.h"

namespace convoy {

namespace protocol {
inline constexpr char inquiry[] = "inquiry";  // key: JSON {id, stacks: bool}
inline constexpr char where[] = "where";      // topic: JSON {id, ranks: [to_json(RankReport)]}
inline constexpr char stacks[] = "stacks";    // topic: JSON {id, threads: [to_json(ThreadStack)]}
inline constexpr char late[] = "late";        // topic: JSON of a LateCall (core/registry.h) and {rank}: who waits
}  // namespace protocol

struct RankReport {
  int rank = 0;
  RankPosition position;
  double age = 0;               // seconds since the position changed, by the clock of the rank's host
  std::vector<RankCall> calls;  // the last of each group, as read_call_notes has them
};
Json to_json(const RankReport& report);
RankReport report_from_json(const Json& json);           // throws Json::exception
RankReport report_of(int rank, const CallNotes& notes);  // now, on the rank's own host
// By the state file, read now; nothing where there is none.
std::optional<RankReport> read_report(int rank, const std::string& state_file);
// The rank has made progress where it is: its position counts as changed now.
void touch_state_file(const std::string& path);

struct ThreadStack {
  int rank = -1;                    // whose own thread it is; -1: another of the process
  int process = -1;                 // first rank of the process
  std::string name;                 // of the thread
  char state = '?';                 // as /proc tells it: R runs, S sleeps, D waits for the disk
  std::vector<std::string> frames;  // innermost first, "PATH+0xOFFSET"; none: it did not answer
};
Json to_json(const ThreadStack& stack);
ThreadStack stack_from_json(const Json& json);

}  // namespace convoy
