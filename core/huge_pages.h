// HugePages<T>: an allocator for arrays of megabytes that are read here and there, in huge pages where the system has them: a
// look-up then waits for memory alone, and not for page tables too: a tenth of the time of assembling a recommender's batches.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <vector>

namespace convoy {

template <class T>
struct HugePages {
  using value_type = T;
  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}

  static constexpr size_t page = size_t{2} << 20;
  T* allocate(size_t n) {
    // Below half a page most of it would be memory for nothing.
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
using LookUpVector = std::vector<T, HugePages<T>>;

}  // namespace convoy
