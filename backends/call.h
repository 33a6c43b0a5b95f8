// Call: one operation of a group as it is told to users, compared between ranks and noted for whoever looks at a stall.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/control/call_notes.h"

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
// Sends and receives, which ranks of a group do not issue alike.
bool point_to_point(Operation operation);

struct Call {
  Operation operation = Operation::barrier;
  std::string name;                      // the caller's
  std::chrono::milliseconds timeout{0};  // never 0 here
  at::ScalarType dtype = at::ScalarType::Byte;
  int64_t elements = 0;  // of this rank's input, in the caller's dtype
  bool has_tensor = false;
  c10::DimVector shape = {};          // that all ranks must have alike: of the input, or, with counts, of its rows
  std::vector<int64_t> counts = {};   // rows that all ranks must know alike (all_gather_v)
  char more[16] = "";                 // "sum", "root 1"
  int peer = -1;                      // of a send or receive
  int rank = 0;                       // who calls, among the ranks of the job
  std::vector<int64_t> between = {};  // all_to_all_v: rows sent, then rows expected, by place in the group
  int64_t number = 0;                 // among the group's collectives, from 1; 0 for sends and receives
  uint64_t hash = 0;                  // of all that must be alike; made by `seal`
  uint64_t balance = 0;               // 0 when summed over the ranks, if each expects of each other what that one sends

  void reduces(ReduceOp op);
  void has_root(int root);
  // `place`: the caller's in the group.
  void exchanges(int place, const std::vector<int64_t>& sent, const std::vector<int64_t>& expected);
  void seal();
};

std::string described_between(const Call& call);  // "sends 3,1 and expects 2,2"; "" where none are
std::string describe(const Call& call);           // "all_reduce 'bucket 2' float32[1024] sum"
void note(CallNotes& notes, int group, const Call& call) noexcept;

// Why ranks that called different things cannot go on, and which of them stands alone (-1: none does).
struct Difference {
  std::string message;  // "rank 0: all_reduce 'a' float32[4] sum; ranks 1, 2: …"
  int odd = -1;
};
// `texts`: by place in `ranks`, which are ranks of the job.
Difference difference_of(const std::vector<int>& ranks, const std::vector<std::string>& texts);

}  // namespace convoy
