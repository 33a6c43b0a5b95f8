// Layout of a shared segment.

#include "backends/shm/shared_segment.h"

#include <algorithm>
#include <new>

#include "backends/registry.h"

namespace convoy {
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
