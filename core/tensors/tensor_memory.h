// Memory of CPU tensors: the bytes that LibTorch's allocator has allocated and not freed, over the whole process;
// reads of tensors without operators; and memory of very large tables.
//
// Call order: count_tensor_memory once, before the first tensor to count. Threads: any. Cost: two atomic additions per
// allocation. On GPUs LibTorch's caching allocator has such statistics itself.
#pragma once
#include <ATen/core/Tensor.h>
#include <sys/mman.h>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

namespace convoy {

void count_tensor_memory();

struct MemoryStatistics {
  int64_t tensors = 0;        // bytes in use now; 0 if nothing is counted
  int64_t tensors_peak = 0;   // maximum since count_tensor_memory or reset_tensor_peak
  int64_t resident_peak = 0;  // bytes of this process in memory at the peak, with libraries, as the kernel counts
};
MemoryStatistics memory_statistics();
void reset_tensor_peak();

// True while tensors of this thread are fake (strategies/common/memory/fake_tensors.h): they have sizes and no values.
bool tensors_are_fake();

// Returns the text of the current exception if memory or threads ran out, with the limit that was reached; otherwise
// "". Returns "" for an Error, because it has a kind. Call it inside a catch block.
std::string out_of_memory_text();

// --- Access without operators: in a light step their dispatch takes longer than some layers ---

// Returns a view of a tensor without gaps and without a graph, on any device: `sizes`, from element `offset` of the
// tensor on. The view has a separate version counter.
at::Tensor plain_view(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t offset = 0);

// Returns the distance between rows (the last dimension), in elements, if each row is contiguous and the distance is
// constant, as for columns of a wider matrix. Otherwise 0.
int64_t row_stride(const at::Tensor& tensor);

// Returns an element of a CPU tensor without gaps, of any real dtype.
double number_at(const at::Tensor& tensor, int64_t index);
// Returns the numbers in double, without a graph, on their device. Only a single one on the CPU needs no operator.
at::Tensor in_double(const at::Tensor& numbers);

// --- Memory of very large tables: zeros without pages until the first write, in huge pages if possible ---

// Expected fraction of touched memory. `little`: scattered rows; huge pages would also allocate their neighbours.
enum class Touched { most, little };

// Returns zeros on the CPU; pages are allocated when first touched. Error(out_of_memory) with the size.
at::Tensor untouched_zeros(at::IntArrayRef shape, at::ScalarType dtype, Touched touched = Touched::most);

// HugePages<T>: an allocator for arrays of megabytes with random access, in huge pages if possible. A look-up then
// waits for memory alone, without page tables. This saves a tenth of the time to assemble a recommender's batches.
template <class T>
struct HugePages {
  using value_type = T;
  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}

  static constexpr size_t page = size_t{2} << 20;
  T* allocate(size_t n) {
    // Below half a huge page, most of the page would be wasted.
    const size_t bytes = n * sizeof(T), length = (bytes + page - 1) / page * page;
    if (bytes < page / 2) return static_cast<T*>(::operator new(bytes));
    void* const memory = std::aligned_alloc(page, length);
    if (memory == nullptr) throw std::bad_alloc();
    madvise(memory, length, MADV_HUGEPAGE);  // a hint
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t n) {
    if (n * sizeof(T) < page / 2)
      ::operator delete(memory);
    else
      std::free(memory);
  }
};
template <class T, class U>
bool operator==(const HugePages<T>&, const HugePages<U>&) {
  return true;
}
template <class T, class U>
bool operator!=(const HugePages<T>&, const HugePages<U>&) {
  return false;
}

template <class T>
using HugePageVector = std::vector<T, HugePages<T>>;

}  // namespace convoy
