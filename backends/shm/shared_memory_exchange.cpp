#include "backends/communicator/shared_memory_operations.h"

#include <algorithm>
#include <cstring>

namespace convoy {
namespace {

constexpr int64_t lane_bytes = SharedSegment::lane_bytes;
constexpr int64_t length_bytes = 8;               // length of a message, sent before its bytes
constexpr int64_t shared_piece = lane_bytes / 4;  // the receiver copies one piece while the sender copies the next

// Messages begin at multiples of length_bytes, so a length never wraps around the end of the lane.
int64_t in_lane(int64_t bytes) { return (bytes + length_bytes - 1) / length_bytes * length_bytes; }

// One end of a message: the sender's or the receiver's.
struct MessageEnd {
  const bool sends;
  SharedSegment::Lane& lane;
  char* const memory;  // memory of the lane
  char* const data;
  const int64_t bytes;
  const int peer;
  const int64_t number;  // index of the message within its pair and direction
  bool begun = false;    // the length is sent or received
  int64_t moved = 0;     // number of `bytes` that are copied

  bool over() const { return begun && moved == bytes; }

  // Sends while the lane has room, or receives what has come. Returns true if it made progress. Throws
  // CommError(disagreement) if the arriving message has another length.
  bool advance() {
    std::atomic<int64_t>& position = sends ? lane.written : lane.read;
    int64_t at = position.load(std::memory_order_relaxed);
    const int64_t before = at;
    while (!over()) {
      const int64_t available = sends ? lane_bytes - (at - lane.read.load(std::memory_order_acquire))
                                      : lane.written.load(std::memory_order_acquire) - at;
      if (available < length_bytes) break;
      char* const in_memory = memory + at % lane_bytes;
      if (!begun) {
        move_length(in_memory);
        at += length_bytes;
        begun = true;
      } else {
        // At most `available` bytes, contiguous in the lane.
        const int64_t count = std::min({bytes - moved, available, shared_piece, lane_bytes - at % lane_bytes});
        sends ? std::memcpy(in_memory, data + moved, static_cast<size_t>(count))
              : std::memcpy(data + moved, in_memory, static_cast<size_t>(count));
        moved += count;
        at += moved == bytes ? in_lane(count) : count;
      }
      if (moved > 0 || over()) position.store(at, std::memory_order_release);
    }
    position.store(at, std::memory_order_release);
    return at != before;
  }

  void move_length(char* in_memory) const {
    if (sends) {
      std::memcpy(in_memory, &bytes, length_bytes);
      return;
    }
    int64_t sent = 0;
    std::memcpy(&sent, in_memory, length_bytes);
    if (sent != bytes)
      throw CommError(Failure::disagreement, peer, "rank ", peer, " sent ", sent, " bytes where ", bytes,
                      " were expected: the ranks called different operations");
  }
};

class SharedMemoryExchange final : public ProgressOperation {
 public:
  SharedMemoryExchange(const std::shared_ptr<SharedMemoryGroup>& group, const std::vector<Transfer>& transfers)
      : ProgressOperation(group, tensors_of(transfers)), group_(group), segment_(group->segment) {
    for (const auto kind : {Transfer::Kind::send, Transfer::Kind::receive}) {
      const bool sends = kind == Transfer::Kind::send;
      for (const Transfer& one : transfers) {
        if (one.kind != kind) continue;
        const int from = sends ? group->rank : one.peer, to = sends ? one.peer : group->rank;
        ends_.push_back({sends, segment_->lane(from, to), segment_->lane_memory(from, to),
                         static_cast<char*>(one.tensor.data_ptr()), one.tensor.numel(), one.peer,
                         line_of(sends, one.peer).issued++});
      }
    }
  }

  std::string missing() const override {
    std::vector<int> ranks;
    for (const MessageEnd& one : ends_)
      if (!one.over()) ranks.push_back(one.peer);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return nothing_from(ranks);
  }

 protected:
  bool advance(bool& moved) override {
    bool all = true;
    for (MessageEnd& one : ends_) all = advance(one, moved) && all;
    return all;
  }

 private:
  static std::vector<at::Tensor> tensors_of(const std::vector<Transfer>& transfers) {
    std::vector<at::Tensor> tensors;
    for (const Transfer& one : transfers) tensors.push_back(one.tensor);
    return tensors;
  }

  SharedMemoryGroup::Line& line_of(bool sends, int peer) const {
    return (sends ? group_->sends : group_->receives)[static_cast<size_t>(peer)];
  }

  bool advance(MessageEnd& one, bool& moved) {
    if (one.over()) return true;
    SharedMemoryGroup::Line& line = line_of(one.sends, one.peer);
    if (line.turn != one.number) return false;
    try {
      moved = one.advance() || moved;
    } catch (const CommError& error) {
      // A message of another length breaks the stream: later messages have no known start.
      group_->fail(error);
      throw;
    }
    if (one.over()) ++line.turn;
    return one.over();
  }

  std::shared_ptr<SharedMemoryGroup> group_;
  std::shared_ptr<SharedSegment> segment_;
  std::vector<MessageEnd> ends_;  // sends first
};

}  // namespace

ProgressOperationPtr shared_memory_exchange(const std::shared_ptr<SharedMemoryGroup>& group,
                                            const std::vector<Transfer>& transfers) {
  return std::make_shared<SharedMemoryExchange>(group, transfers);
}

}  // namespace convoy
