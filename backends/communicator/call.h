// Call: one operation of a group. Ranks compare it, messages describe it, and the collective records keep it for stall
// reports.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>
#include <c10/util/Exception.h>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/rank_state/position.h"

namespace convoy {

enum class Operation {
  all_reduce,
  all_gather,
  all_gather_v,
  all_to_all_v,
  reduce_scatter,
  broadcast,
  send,
  receive,
  group,
  barrier,
  split
};
const char* name_of(Operation operation);
std::string listed_ranks(const std::vector<int>& ranks);  // "rank 3", "ranks 1, 2"
// True for sends and receives, which may differ between ranks of a group.
bool is_point_to_point(Operation operation);

struct Call {
  Operation operation = Operation::barrier;
  std::string name;                      // from the caller
  std::chrono::milliseconds timeout{0};  // never 0
  at::ScalarType dtype = at::ScalarType::Byte;
  int64_t elements = 0;  // size of this rank's input, in the caller's dtype
  bool has_tensor = false;
  c10::DimVector shape = {};         // equal on all ranks: shape of the input, or of its rows if there are counts
  std::vector<int64_t> counts = {};  // rows of each rank, equal on all ranks (all_gather_v)
  char more[16] = "";                // "sum", "root 1"
  int peer = -1;                     // the other rank of a send or receive
  int rank = 0;                      // the caller's rank in the job
  std::vector<int64_t> exchange_counts = {};  // all_to_all_v: rows sent, then rows expected, by rank of the group
  int64_t number = 0;                         // index among the group's collectives, from 1; 0 for sends and receives
  uint64_t hash = 0;                          // hash of all properties that must be equal on all ranks; set by `seal`
  uint64_t balance = 0;                       // sums to 0 over the ranks if all sent and expected counts match

  void set_reduction(ReduceOp op);
  void set_root(int root);
  // `group_rank`: the caller's rank in the group.
  void set_exchange(int group_rank, const std::vector<int64_t>& sent, const std::vector<int64_t>& expected);
  void seal();
};

std::string describe_counts(const Call& call);  // "sends 3,1 and expects 2,2"; "" without counts
std::string describe_call(const Call& call);    // "all_reduce 'bucket 2' float32[1024] sum"
void record(CollectiveRecords& records, int group, const Call& call) noexcept;

// Description of a mismatch. `odd`: the one rank that differs from all others; -1: there is no such rank.
struct CallDifference {
  std::string message;  // "rank 0: all_reduce 'a' float32[4] sum; ranks 1, 2: …"
  int odd = -1;
};
// `ranks`: ranks of the job; `texts`: their calls, in the same order.
CallDifference difference_of(const std::vector<int>& ranks, const std::vector<std::string>& texts);

// Returns an exception's text for people. LibTorch appends a C++ backtrace to what().
inline std::string message_without_backtrace(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) return torch->what_without_backtrace();
  return error.what();
}

}  // namespace convoy
