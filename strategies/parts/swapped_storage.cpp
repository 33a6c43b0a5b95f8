#include "strategies/parts/swapped_storage.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "core/error.h"

namespace convoy {
namespace {

c10::Storage empty_storage(int64_t elements, const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(elements) * options.dtype().itemsize();
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, options.device()));
}

at::Tensor on_storage(const c10::Storage& storage, int64_t offset, at::IntArrayRef shape,
                      const at::TensorOptions& options) {
  at::NoGradGuard no_grad;
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d > 1; --d) strides[d - 2] = strides[d - 1] * std::max<int64_t>(shape[d - 1], 1);
  return at::empty({0}, options).set_(storage, offset, shape, strides);
}

}  // namespace

SwappedStorage::SwappedStorage(int64_t elements, at::ScalarType dtype, at::Device device)
    : options_(at::TensorOptions(dtype).device(device)) {
  storage_ = empty_storage(elements, options_);
}

SwappedStorage::~SwappedStorage() { take(); }

at::Tensor SwappedStorage::view(int64_t offset, at::IntArrayRef shape) const {
  return on_storage(storage_, offset, shape, options_);
}

void SwappedStorage::put(at::Tensor memory) {
  CONVOY_CHECK(!present() && memory.is_contiguous() && memory.nbytes() >= storage_.nbytes(), memory.nbytes(),
               " bytes for a storage of ", storage_.nbytes());
  memory_ = std::move(memory);
  storage_.set_data_ptr_noswap(at::DataPtr(memory_.mutable_data_ptr(), options_.device()));
}

at::Tensor SwappedStorage::take() {
  storage_.set_data_ptr_noswap(at::DataPtr(nullptr, options_.device()));
  return std::move(memory_);
}

at::Tensor without_memory(at::IntArrayRef shape, at::TensorOptions options) {
  return on_storage(empty_storage(c10::multiply_integers(shape), options), 0, shape, options);
}

}  // namespace convoy
