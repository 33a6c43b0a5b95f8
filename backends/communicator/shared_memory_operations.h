// Collectives of ranks of one host through shared memory (shared_segment.h).
//
// A tensor is transferred in chunks, several at a time. In an all-reduce each rank sums one share of each chunk. It
// first copies the shares that other ranks sum from its tensor into its slot. Then it sums its share over all ranks,
// into its tensor and its slot. Last it copies the sums of the other ranks from their slots into its tensor. This needs
// no system call. For a small tensor every rank sums everything. The order of summation is the rank order, so results
// are equal on all ranks and from run to run.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backends/communicator/progress.h"
#include "backends/communicator/transport.h"
#include "backends/shm/shared_segment.h"

namespace convoy {

// A group's stream of chunks. Operations get chunks in the order in which they are issued, equal on all ranks.
struct SharedMemoryGroup : ProgressGroup {
  std::shared_ptr<SharedSegment> segment;
  int rank = 0;
  int64_t issued = 0;            // chunks of all operations so far; guarded by the group's issue lock
  std::atomic<int64_t> turn{0};  // first chunk of the operation that may run now
  // Messages to, or from, one rank: the number that were issued, and the index of the one that may run now. `issued` is
  // guarded by the group's issue lock, `turn` by the engine's.
  struct MessageOrder {
    int64_t issued = 0, turn = 0;
  };
  std::vector<MessageOrder> sends, receives;  // by peer
  int size() const { return segment->size(); }
};

// Point-to-point operations of ranks of one host through the lanes of a shared segment (shared_segment.h).
//
// A lane is a stream of bytes from one rank to another; each message starts with its length. A message costs no system
// call and two copies at cache speed.
//
// Messages of a pair of ranks keep the order in which both ranks issue them. A message that fits into its lane is sent
// before its receive starts. A receive with a different length fails the group: CommError(disagreement).
//
// Takes tensors of bytes on the CPU. The segment has lanes, and the peer is another rank.
ProgressOperationPtr shared_memory_exchange(const std::shared_ptr<SharedMemoryGroup>& group,
                                            const std::vector<Transfer>& transfers);

// --- The transport of ranks that share a host ---
//
// Collectives of CPU tensors use shared memory; all others use an inner transport. Two processes on one core sum 4 KB
// in microseconds; sockets take hundreds. Large tensors are summed at memory speed. Sends and receives use lanes if the
// ranks are few and on the CPU. Barriers use the inner transport, and so does all-to-all, because not all ranks know
// its counts.

// A group, as one of its ranks creates it. `label` is unique within the job.
struct GroupDescription {
  std::string label;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};  // time limit of the rendezvous
};
inline GroupDescription world_description(const BackendRequest& request) {
  return {"world", request.rank, request.size, request.rendezvous};
}

// Collective over the group. Returns `inner` itself if its ranks do not share a host (shared_segment.h). `engine`
// advances the operations.
std::shared_ptr<Transport> over_shared_memory(std::shared_ptr<Transport> inner, const BackendRequest& request,
                                              const GroupDescription& described,
                                              std::shared_ptr<ProgressEngine> engine);

}  // namespace convoy
