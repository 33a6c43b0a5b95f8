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
  MessageEnd(SharedSegment::Lane& lane, char* memory, char* data, int64_t bytes, int peer, int64_t number)
      : lane(lane), memory(memory), data(data), bytes(bytes), peer(peer), number(number) {}

  SharedSegment::Lane& lane;
  char* const memory;  // of the lane
  char* const data;
  const int64_t bytes;
  const int peer;
  const int64_t number;  // index of the message within its pair and direction
  bool begun = false;    // the length is sent or received
  int64_t moved = 0;     // number of `bytes` that are copied

  bool over() const { return begun && moved == bytes; }

  // Returns the length of the next piece: at most `limit` bytes, contiguous in the lane from byte `at`.
  int64_t next(int64_t at, int64_t limit) const {
    return std::min({bytes - moved, limit, shared_piece, lane_bytes - at % lane_bytes});
  }

  bool send() {
    int64_t written = lane.written.load(std::memory_order_relaxed);
    const int64_t before = written;
    while (!over()) {
      const int64_t room = lane_bytes - (written - lane.read.load(std::memory_order_acquire));
      if (room < length_bytes) break;
      if (!begun) {
        std::memcpy(memory + written % lane_bytes, &bytes, length_bytes);
        written += length_bytes;
        begun = true;
      } else {
        const int64_t count = next(written, room);
        std::memcpy(memory + written % lane_bytes, data + moved, size_t(count));
        moved += count;
        written += moved == bytes ? in_lane(count) : count;
      }
      if (moved > 0 || over()) lane.written.store(written, std::memory_order_release);
    }
    lane.written.store(written, std::memory_order_release);
    return written != before;
  }

  // Throws CommError(disagreement) if the arriving message has another length.
  bool receive() {
    int64_t read = lane.read.load(std::memory_order_relaxed);
    const int64_t before = read;
    while (!over()) {
      const int64_t come = lane.written.load(std::memory_order_acquire) - read;
      if (come < length_bytes) break;
      if (!begun) {
        int64_t sent = 0;
        std::memcpy(&sent, memory + read % lane_bytes, length_bytes);
        if (sent != bytes)
          throw CommError(Failure::disagreement, peer, "rank ", peer, " sent ", sent, " bytes where ", bytes,
                          " were expected: the ranks called different things");
        read += length_bytes;
        begun = true;
      } else {
        const int64_t count = next(read, come);
        std::memcpy(data + moved, memory + read % lane_bytes, size_t(count));
        moved += count;
        read += moved == bytes ? in_lane(count) : count;
      }
      lane.read.store(read, std::memory_order_release);
    }
    return read != before;
  }
};

class SharedMemoryExchange final : public ProgressOperation {
 public:
  SharedMemoryExchange(const std::shared_ptr<SharedMemoryGroup>& group, const std::vector<Transfer>& transfers)
      : ProgressOperation(group, tensors_of(transfers)), group_(group), segment_(group->segment) {
    for (const Transfer& one : transfers) {
      const bool sends = one.kind == Transfer::Kind::send;
      const int from = sends ? group->rank : one.peer, to = sends ? one.peer : group->rank;
      SharedMemoryGroup::Line& line = (sends ? group->sends : group->receives)[size_t(one.peer)];
      (sends ? sends_ : receives_)
          .emplace_back(segment_->lane(from, to), segment_->lane_memory(from, to),
                        static_cast<char*>(one.tensor.data_ptr()), one.tensor.numel(), one.peer, line.issued++);
    }
  }

  std::string missing() const override {
    std::vector<int> ranks;
    for (const std::vector<MessageEnd>* list : {&receives_, &sends_})
      for (const MessageEnd& one : *list)
        if (!one.over()) ranks.push_back(one.peer);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return nothing_from(ranks);
  }

 protected:
  bool advance(bool& moved) override {
    bool all = true;
    for (MessageEnd& one : sends_) all = advance(one, group_->sends, moved, [&] { return one.send(); }) && all;
    for (MessageEnd& one : receives_) all = advance(one, group_->receives, moved, [&] { return receive(one); }) && all;
    return all;
  }

 private:
  static std::vector<at::Tensor> tensors_of(const std::vector<Transfer>& transfers) {
    std::vector<at::Tensor> tensors;
    for (const Transfer& one : transfers) tensors.push_back(one.tensor);
    return tensors;
  }

  template <class Move>
  static bool advance(MessageEnd& one, std::vector<SharedMemoryGroup::Line>& lines, bool& moved, Move move) {
    if (one.over()) return true;
    SharedMemoryGroup::Line& line = lines[size_t(one.peer)];
    if (line.turn != one.number) return false;
    if (move()) moved = true;
    if (one.over()) ++line.turn;
    return one.over();
  }

  // A message of another length breaks the stream: later messages have no known start.
  bool receive(MessageEnd& one) {
    try {
      return one.receive();
    } catch (const CommError& error) {
      std::lock_guard lock(group_->mutex);
      group_->reason = error.what();
      group_->failed = true;
      throw;
    }
  }

  std::shared_ptr<SharedMemoryGroup> group_;
  std::shared_ptr<SharedSegment> segment_;
  std::vector<MessageEnd> sends_, receives_;
};

}  // namespace

ProgressOperationPtr shared_memory_exchange(const std::shared_ptr<SharedMemoryGroup>& group,
                                            const std::vector<Transfer>& transfers) {
  return std::make_shared<SharedMemoryExchange>(group, transfers);
}

}  // namespace convoy
