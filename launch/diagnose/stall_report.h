// Stall report: positions of all ranks, the stalled ranks and the cause in a sentence. Pure functions over the data
// that launch/diagnose/stall_watch.h collects.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/control/channel.h"
#include "core/rank_state/position.h"

namespace convoy {

// State of one rank at a stall.
struct RankStatus {
  RankReport report;  // ages are relative to now
  std::string host;
  bool known = false;               // `report` is set
  bool answered = false;            // its process answered the current inquiry
  bool suspended = false;           // its process is stopped by a signal or a debugger
  double seconds_since_report = 0;  // seconds since its last report, if it did not answer
};

// The event that caused an inquiry.
//
// `group`, `number`, `call` and `members` are set for a wait. `seconds` and `limit` are those of the wait, without
// heartbeat, or in one position.
struct Stall : SlowCollective {
  enum class Kind { collective, heartbeat, step, set_up } kind = Kind::collective;
  int rank = -1;        // the rank that waits, sends no heartbeat or stays in one position
  std::string message;  // for a lost heartbeat
};

struct StallDiagnosis {
  Failure kind = Failure::hang;
  std::vector<int> ranks;  // stalled ranks; empty if none is found
  std::string message;
};

// A message if ranks called different collectives under one number of a group, else "". `ranks`: the one rank that
// differs from several others, if there is one.
StallDiagnosis collective_mismatch(const std::vector<RankStatus>& statuses);
// Finds the ranks for which all others wait: first ranks that do not answer, then ranks that have not called the
// collective, last those that wait themselves.
StallDiagnosis diagnose(const Stall& stall, const std::vector<RankStatus>& statuses);

std::string short_call(const std::string& call);       // "all-reduce bucket 2" of "all_reduce 'bucket 2' float32[4]"
std::string rank_list(const std::vector<int>& ranks);  // "rank 1", "ranks 0-2, 5"

// Table with one line per position, stalled ranks first, then stacks: all of the first stalled rank, and shortened ones
// of the threads of the other ranks. Every line but the last ends with a newline.
std::string stall_report(const std::vector<RankStatus>& statuses, const StallDiagnosis& diagnosis,
                         const std::vector<ThreadStack>& stacks);
// For summary.json: {ranks: […], stacks: […]}, with function names in place of addresses.
Json stall_json(const std::vector<RankStatus>& statuses, const StallDiagnosis& diagnosis,
                const std::vector<ThreadStack>& stacks);

// Readable stacks: turns the addresses that ranks send ("PATH+0xOFFSET") into function names and shortens them.

// Linker names of the functions at `offsets` (from the file's load address) in an ELF file, in the same order. "" if no
// function is there or if the file cannot be read. Finds private functions too unless the file is stripped.
std::vector<std::string> elf_symbols(const std::string& path, const std::vector<uint64_t>& offsets);

// Function names, innermost first, at most `most`. Leaves out or folds frames without information: thread starts,
// std::function, LibTorch's dispatcher.
std::vector<std::string> readable_stack(const std::vector<std::string>& frames, size_t most);

// Replaces the symbol in a backtrace line of a crashed rank ("PATH(SYMBOL+0xOFFSET)[0xADDRESS]") by the name from
// plain_function; returns any other line unchanged.
std::string readable_line(const std::string& line);

// "FaultyBlock::forward" for a linker name: without arguments, templates, return type and convoy's namespace.
std::string plain_function(const std::string& symbol);

}  // namespace convoy
