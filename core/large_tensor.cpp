#include "core/large_tensor.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include "core/error.h"

namespace convoy {
namespace {
constexpr int64_t small = int64_t{4} << 20;  // bytes; below it huge pages gain nothing
}

at::Tensor untouched_zeros(at::IntArrayRef shape, at::ScalarType dtype, Touched touched) {
  const auto options = at::TensorOptions(dtype);
  int64_t bytes = int64_t(options.dtype().itemsize());
  for (const int64_t size : shape) bytes *= size;
  if (bytes < small) return at::zeros(shape, options);
  const auto length = size_t(bytes);
  void* const memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(Failure::out_of_memory,
                str("no memory for a table of ", bytes, " bytes; take a smaller one, or more ranks"));
  // A hint: a system without them goes on with small pages.
  madvise(memory, length, touched == Touched::most ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return at::from_blob(
      memory, shape, [length](void* at) { munmap(at, length); }, options);
}

}  // namespace convoy
