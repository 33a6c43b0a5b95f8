// Collectives of ranks of one host through the memory that they share (host_segment.h).
//
// A tensor goes through in chunks, several under way. All-reduce: every rank puts its chunk into its slot, adds up its part of
// everybody's there, and takes the sums of the others: 2 reads and 2 writes of a tensor's bytes at n = 2 beside the addition,
// and no system call. Small ones are added up by every rank by itself. Sums are in the order of ranks: equal on all of them and
// from run to run.
#pragma once
#include <memory>
#include <vector>

#include "backends/host_segment.h"
#include "backends/progress.h"

namespace convoy {

// A group's stream of chunks: operations take their chunks in the order in which they are issued, the same on all ranks.
struct HostGroup : ProgressGroup {
  std::shared_ptr<HostSegment> segment;
  int rank = 0;
  int64_t issued = 0;            // chunks, of all operations so far; under the group's issue lock
  std::atomic<int64_t> turn{0};  // the first chunk of the operation whose turn it is here
  // Messages to, or from, one rank: `issued` under the group's issue lock, `turn` under the engine's.
  struct Line {
    int64_t issued = 0, turn = 0;
  };
  std::vector<Line> sends, receives;  // by peer
  int size() const { return segment->size(); }
};
using HostOperationPtr = std::shared_ptr<ProgressOperation>;

HostOperationPtr host_all_reduce(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& tensor,
                                 ReduceOp op);
// Bytes; part r of output is rank r's input. `in_common`: all see the same output, where what a rank has
// written to its part of it stays.
HostOperationPtr host_all_gather(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& output,
                                 const Offsets& parts, const at::Tensor& input, bool in_common);
HostOperationPtr host_reduce_scatter(const std::shared_ptr<HostGroup>& group, const Call& call,
                                     const at::Tensor& output, const at::Tensor& input, ReduceOp op);
HostOperationPtr host_broadcast(const std::shared_ptr<HostGroup>& group, const Call& call, const at::Tensor& tensor,
                                int root);

}  // namespace convoy
