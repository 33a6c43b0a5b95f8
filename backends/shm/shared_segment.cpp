// Layout of a shared segment.
#include "backends/shm/shared_segment.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "backends/communicator/shared_memory_operations.h"
#include "backends/registry.h"

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

namespace {

std::atomic<bool> allowed{true};

}  // namespace

void allow_shared_memory(bool is_allowed) { allowed = is_allowed; }

// Layout: counters, slots, lanes. Pages that no rank writes take no memory.
int64_t SharedSegment::counter_bytes(int size) {
  const int64_t bytes = int64_t(sizeof(Progress)) * size + int64_t(sizeof(Lane)) * lanes_for(size);
  return (bytes + 4095) / 4096 * 4096;
}

int64_t SharedSegment::bytes_for(int size) {
  return counter_bytes(size) + size * slots * chunk_bytes + lanes_for(size) * lane_bytes;
}

SharedSegment::SharedSegment(std::shared_ptr<SharedMemory> memory, int size)
    : memory_(std::move(memory)),
      size_(size),
      progress_(reinterpret_cast<Progress*>(memory_->data())),
      lanes_(reinterpret_cast<Lane*>(progress_ + size)),
      data_(memory_->data() + counter_bytes(size)),
      lane_data_(data_ + size * slots * chunk_bytes) {}

std::shared_ptr<SharedSegment> SharedSegment::create(const BackendRequest& request, const std::string& label, int rank,
                                                     int size, std::chrono::milliseconds timeout) {
  if (!request.channel) return nullptr;
  const auto prepare = [size](char* memory) {
    auto* progress = reinterpret_cast<Progress*>(memory);
    for (int one = 0; one < size; ++one) new (progress + one) Progress;
    auto* lanes = reinterpret_cast<Lane*>(progress + size);
    for (int64_t one = 0; one < lanes_for(size); ++one) new (lanes + one) Lane;
  };
  SharedMemory::Texts texts{request.device.is_cpu() ? "CPU" : "", {}};
  auto memory = SharedMemory::create_together(*request.channel, str(request.job, "/", label), rank, size,
                                              bytes_for(size), timeout, allowed, prepare, &texts);
  if (memory == nullptr) return nullptr;
  const std::shared_ptr<SharedSegment> segment(new SharedSegment(std::move(memory), size));
  segment->has_lanes_ = lanes_for(size) > 0 && std::count(texts.all.begin(), texts.all.end(), "CPU") == size;
  return segment;
}

}  // namespace convoy
