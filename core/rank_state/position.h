// Positions of ranks, as sent over the control channel, and the messages of a stall report. Without LibTorch.
//
// Each rank process sends the positions of its ranks with its heartbeats. A rank that waits too long posts a
// SlowCollective. The supervisor then sets the key `inquiry`. Every rank process answers with `where`, and with
// `stacks` on request. Its channel thread answers, so the answer arrives even if the ranks are stalled.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/rank_state/state_file.h"

namespace convoy {

// --- Collective records: the last collectives of each group in a rank's state file ---
//
// A rank writes them at each call without a system call. They are readable after the rank's death, so other processes
// can report mismatches.

// A collective of a rank. On all ranks of a group, equal numbers mean the same call.
struct RankCall {
  std::string group;   // its label: "world", "world/0.1"
  int64_t number = 0;  // from 1
  uint64_t hash = 0;   // hash of all properties that must be equal on all ranks
  std::string call;    // "all_reduce 'bucket 2' float32[1024] sum"
};
CONVOY_JSON(RankCall, group, number, hash, call)

// A call to record. The recorder copies the texts.
struct CollectiveRecord {
  int64_t number = 0;
  uint64_t hash = 0;
  const char* operation = "";      // 15 bytes at most
  const char* name = "";           // 47
  const char* dtype = "";          // 15
  const int64_t* shape = nullptr;  // the first 4 dimensions
  int dimensions = -1;             // -1: the call has no tensor
  const char* more = "";           // reduction or root; 15 bytes at most
};

class CollectiveRecords {
 public:
  explicit CollectiveRecords(const std::string& state_file);  // path of an existing StateFile; Error(io)
  // Reserves space for the calls of one group, for at most 16 groups; -1 if none is free. `label`: at most 31 bytes.
  int add_group(const char* label) noexcept;
  // Records a call; one thread at a time for each group. Ignores group -1. Does not change the file's
  // time of the last change.
  void called(int group, const CollectiveRecord& call) noexcept;

  // Returns the contents of the file from the mapping, so a slow disk does not delay the answer.
  RankPosition position() const;
  std::vector<RankCall> calls() const;

 private:
  StateMapping layout_;
};

// Reads the calls of each group (at most the last 8), in order of numbers; empty if there is no such file.
std::vector<RankCall> read_collective_records(const std::string& state_file);

// Estimates the CPU time that a rank spent on its state file in `steps` steps. The numbers of its calls give the number
// of writes; the cost of a write is measured now.
double state_file_cpu_seconds(const std::vector<RankCall>& calls, int64_t steps);

// --- Phases of a rank (StateFile::phase) that other code uses ---

inline constexpr char crashed_phase[] = "crashed";  // this rank crashed; other ranks may share its process
inline constexpr char starting_phase[] = "starting";
inline constexpr char reading_phase[] = "reading data";
inline constexpr char rendezvous_phase[] = "rendezvous";
inline constexpr char building_phase[] = "building the model";
inline constexpr char loading_phase[] = "loading";  // a checkpoint

// True before the first step. Each of these phases must end within launch.rendezvous.
inline bool is_set_up(const std::string& phase) {
  return phase.empty() || phase == starting_phase || phase == reading_phase || phase == rendezvous_phase ||
         phase == building_phase || phase == loading_phase;
}

// True for phases that read large files: their time limit counts from the last progress.
inline bool reads_files(const std::string& phase) { return phase == reading_phase || phase == loading_phase; }

namespace protocol {
inline constexpr char inquiry[] = "inquiry";                  // key: JSON {id, stacks: bool}
inline constexpr char where[] = "where";                      // topic: JSON {id, ranks: [to_json(RankReport)]}
inline constexpr char stacks[] = "stacks";                    // topic: JSON {id, threads: [ThreadStack]}
inline constexpr char slow_collective[] = "slow_collective";  // topic: JSON of a SlowCollective and {rank}
}  // namespace protocol

// A collective that has taken longer than half of its limit, as reported to the supervisor.
struct SlowCollective {
  std::string group;         // label, as in RankCall
  int64_t number = 0;        // number of the call in the group; 0 for sends and receives, which have no number
  std::string call;          // "all_reduce 'bucket 2' float32[1024] sum"
  std::vector<int> members;  // ranks of the job that take part
  double seconds = 0;        // time waited so far
  double limit = 0;
  bool over = false;  // the limit has passed
};
CONVOY_JSON(SlowCollective, group, number, call, members, seconds, limit, over)

struct RankReport {
  int rank = 0;
  RankPosition position;
  double age = 0;               // seconds since the position changed, by the clock of the rank's host
  std::vector<RankCall> calls;  // last calls of each group
};
Json to_json(const RankReport& report);
RankReport report_from_json(const Json& json);                     // throws Json::exception
RankReport report_of(int rank, const CollectiveRecords& records);  // reads the current position, on the rank's host
// Reads the state file; nothing if there is none.
std::optional<RankReport> read_report(int rank, const std::string& state_file);
// Records progress: the position counts as changed now.
void touch_state_file(const std::string& path);

struct ThreadStack {
  int rank = -1;                    // owner of the thread; -1: another thread of the process
  int process = -1;                 // first rank of the process
  std::string name;                 // name of the thread
  std::string state = "?";          // from /proc: R runs, S sleeps, D waits for the disk
  std::vector<std::string> frames;  // innermost first, "PATH+0xOFFSET"; empty: no answer
};
CONVOY_JSON(ThreadStack, rank, process, name, state, frames)

}  // namespace convoy
