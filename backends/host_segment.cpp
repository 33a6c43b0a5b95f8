// What lies where in the memory that ranks of one host share.
#include "backends/host_segment.h"

#include <algorithm>
#include <new>

#include "backends/registry.h"
#include "core/text.h"

namespace convoy {
namespace {

std::atomic<bool> allowed{true};

}  // namespace

void allow_host_memory(bool is_allowed) { allowed = is_allowed; }

// Memory: counters, slots, lanes. Pages that nobody writes to take none.
int64_t HostSegment::counter_bytes(int size) {
  const int64_t bytes =
      static_cast<int64_t>(sizeof(Progress)) * size + static_cast<int64_t>(sizeof(Lane)) * lanes_for(size);
  return (bytes + 4095) / 4096 * 4096;
}

int64_t HostSegment::bytes_for(int size) {
  return counter_bytes(size) + size * slots * chunk_bytes + lanes_for(size) * lane_bytes;
}

HostSegment::HostSegment(std::shared_ptr<HostMemory> memory, int size)
    : memory_(std::move(memory)),
      size_(size),
      progress_(reinterpret_cast<Progress*>(memory_->data())),
      lanes_(reinterpret_cast<Lane*>(progress_ + size)),
      data_(memory_->data() + counter_bytes(size)),
      lane_data_(data_ + size * slots * chunk_bytes) {}

std::shared_ptr<HostSegment> HostSegment::meet(const BackendRequest& request, const std::string& label, int rank,
                                               int size, std::chrono::milliseconds timeout) {
  if (!request.channel) return nullptr;
  const auto prepare = [size](char* memory) {
    auto* progress = reinterpret_cast<Progress*>(memory);
    for (int one = 0; one < size; ++one) new (progress + one) Progress;
    auto* lanes = reinterpret_cast<Lane*>(progress + size);
    for (int64_t one = 0; one < lanes_for(size); ++one) new (lanes + one) Lane;
  };
  HostMemory::Words words{request.device.is_cpu() ? "CPU" : "", {}};
  auto memory = HostMemory::meet(*request.channel, str(request.job, "/", label), rank, size, bytes_for(size), timeout,
                                 allowed, prepare, &words);
  if (memory == nullptr) return nullptr;
  const std::shared_ptr<HostSegment> segment(new HostSegment(std::move(memory), size));
  segment->has_lanes_ = lanes_for(size) > 0 && std::count(words.all.begin(), words.all.end(), "CPU") == size;
  return segment;
}

}  // namespace convoy
