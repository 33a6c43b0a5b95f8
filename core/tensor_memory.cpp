#include "core/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/resource.h>

#include <atomic>

namespace convoy {
namespace {

std::atomic<int64_t> held{0}, peak{0};
c10::DeleterFnPtr free_inner = nullptr;  // LibTorch's, the same for every allocation

void add(int64_t bytes) {
  const int64_t now = held.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

void free_counted(void* memory) {
  held.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  free_inner(memory);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner_->allocate(bytes);
    // Blocks that are another allocator's, and none at all, are left alone.
    if (data.get() != nullptr && data.compare_exchange_deleter(free_inner, &free_counted))
      add(static_cast<int64_t>(malloc_usable_size(data.get())));
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void* to, const void* from, size_t count) const override { inner_->copy_data(to, from, count); }

 private:
  c10::Allocator* inner_;
};

}  // namespace

void count_tensor_memory() {
  if (free_inner != nullptr) return;
  c10::Allocator* inner = c10::GetCPUAllocator();
  free_inner = inner->raw_deleter();
  if (free_inner == nullptr) return;  // one that nobody knows: nothing is counted
  static CountingAllocator counting(inner);
  constexpr uint8_t above_the_default = 1;
  c10::SetCPUAllocator(&counting, above_the_default);
}

MemoryFigures memory_figures() {
  MemoryFigures figures;
  figures.tensors = held.load(std::memory_order_relaxed);
  figures.tensors_peak = peak.load(std::memory_order_relaxed);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  figures.resident_peak = static_cast<int64_t>(usage.ru_maxrss) * 1024;
  return figures;
}

void reset_tensor_peak() { peak.store(held.load(std::memory_order_relaxed), std::memory_order_relaxed); }

}  // namespace convoy
