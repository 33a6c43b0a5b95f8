#include "core/tensors/tensor_memory.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

std::atomic<int64_t> in_use{0}, peak{0};
c10::DeleterFnPtr free_inner = nullptr;  // LibTorch's deleter, the same for every allocation

void add(int64_t bytes) {
  const int64_t now = in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

// An allocator may reserve up to a quarter more addresses than a block needs; the system gives memory only to those
// that are used. So large blocks count with the size that was requested, which is remembered here.
class LargeBlocks {
 public:
  static constexpr size_t smallest = 256 << 10;  // bytes; a step has few of them, so the lock costs nothing

  void add(const void* memory, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_[memory] = bytes;
  }
  // Returns and forgets the block's size; `unknown` if it was not added.
  size_t remove(const void* memory, size_t unknown) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto block = bytes_.find(memory);
    if (block == bytes_.end()) return unknown;
    const size_t bytes = block->second;
    bytes_.erase(block);
    return bytes;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, size_t> bytes_;
};

LargeBlocks& large_blocks() {
  static auto* const blocks = new LargeBlocks;  // static tensors are freed after static objects
  return *blocks;
}

void free_counted(void* memory) {
  size_t bytes = malloc_usable_size(memory);
  if (bytes >= LargeBlocks::smallest) bytes = large_blocks().remove(memory, bytes);
  in_use.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  free_inner(memory);
}

// Throws if the host's memory and swap could not hold the block. The kernel's heuristic refuses it too, unless the
// allocator only reserves addresses, as jemalloc does: then the tensor would fill the host until a process is killed.
void refuse_more_than_the_host_has(size_t bytes) {
  constexpr size_t least = size_t{1} << 30;
  struct sysinfo host {};
  if (bytes < least || sysinfo(&host) != 0) return;
  if (double(bytes) > double(host.mem_unit) * (double(host.totalram) + double(host.totalswap)))
    throw Error(Failure::out_of_memory, "a tensor of ", human_bytes(double(bytes)), ": ", no_memory_text());
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    refuse_more_than_the_host_has(bytes);
    c10::DataPtr data = inner_->allocate(bytes);
    // Skips empty blocks and blocks of other allocators.
    if (data.get() != nullptr && data.compare_exchange_deleter(free_inner, &free_counted)) {
      const size_t usable = malloc_usable_size(data.get());
      if (usable >= LargeBlocks::smallest) large_blocks().add(data.get(), bytes);
      add(static_cast<int64_t>(usable >= LargeBlocks::smallest ? bytes : usable));
    }
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
  if (free_inner == nullptr) return;  // unknown allocator: count nothing
  static CountingAllocator counting(inner);
  constexpr uint8_t above_the_default = 1;
  c10::SetCPUAllocator(&counting, above_the_default);
}

MemoryStatistics memory_statistics() {
  MemoryStatistics statistics;
  statistics.tensors = in_use.load(std::memory_order_relaxed);
  statistics.tensors_peak = peak.load(std::memory_order_relaxed);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  statistics.resident_peak = static_cast<int64_t>(usage.ru_maxrss) * 1024;
  return statistics;
}

void reset_tensor_peak() { peak.store(in_use.load(std::memory_order_relaxed), std::memory_order_relaxed); }

namespace {

// oneDNN's exceptions do not distinguish a lack of memory from other reasons ("could not create a primitive").
bool is_refused_by_library(const std::string& message) {
  if (message.rfind("could not ", 0) != 0) return false;
  constexpr size_t some = 64 << 20;
  void* const memory = mmap(nullptr, some, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return true;
  munmap(memory, some);
  return false;
}

}  // namespace

bool tensors_are_fake() { return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Fake); }

at::Tensor plain_view(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t offset) {
  const int64_t n = c10::multiply_integers(sizes);
  CONVOY_CHECK(tensor.is_contiguous() && offset >= 0 && offset + n <= tensor.numel(), "a view of sizes ", sizes,
               " from ", offset, " on, of a tensor of sizes ", tensor.sizes());
  if (tensors_are_fake() || at::isTensorSubclassLike(tensor)) return tensor.view({-1}).narrow(0, offset, n).view(sizes);
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                             tensor.key_set(), tensor.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset() + offset);
  view.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return view;
}

int64_t row_stride(const at::Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  if (last < 0 || (tensor.size(last) != 1 && tensor.stride(last) != 1)) return 0;
  if (tensor.is_contiguous()) return tensor.size(last);
  if (last == 0) return 0;
  for (int64_t d = 0; d + 1 < last; ++d)
    if (tensor.stride(d) != tensor.stride(d + 1) * tensor.size(d + 1)) return 0;
  return tensor.stride(last - 1);
}

double number_at(const at::Tensor& tensor, int64_t index) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return tensor.const_data_ptr<double>()[index];
    case at::kFloat:
      return double(tensor.const_data_ptr<float>()[index]);
    case at::kLong:
      return double(tensor.const_data_ptr<int64_t>()[index]);
    case at::kBool:
      return tensor.const_data_ptr<bool>()[index];
    default:
      return tensor.view({-1})[index].item<double>();
  }
}

at::Tensor in_double(const at::Tensor& numbers) {
  if (!numbers.is_cpu() || numbers.dim() != 0 || numbers.scalar_type() != at::kFloat || tensors_are_fake())
    return numbers.detach().to(at::kDouble);
  at::Tensor number = at::empty({}, at::kDouble);
  *number.mutable_data_ptr<double>() = number_at(numbers, 0);
  return number;
}

std::string out_of_memory_text() {
  try {
    throw;
  } catch (const Error&) {
    return "";
  } catch (const std::bad_alloc&) {
    return no_memory_text();
  } catch (const std::length_error& error) {
    return str("more than any memory holds was requested (", error.what(), "); try smaller data or a smaller model");
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    return code == EAGAIN ? no_thread_text() : code == ENOMEM ? no_memory_text() : "";
  } catch (const c10::OutOfMemoryError& error) {  // a GPU's; its message has the limits
    return str(error.what_without_backtrace(), "; try a smaller train.batch");
  } catch (const c10::Error& error) {
    // LibTorch's CPU allocator has no special exception type.
    const std::string message = error.what_without_backtrace();
    return message.find("can't allocate memory") == std::string::npos ? "" : str(no_memory_text(), ": ", message);
  } catch (const std::exception& error) {
    return is_refused_by_library(error.what()) ? str(no_memory_text(), ": ", error.what()) : "";
  } catch (...) {
    return "";
  }
}

namespace {
constexpr int64_t small = int64_t{4} << 20;  // bytes; huge pages do not help below this size
}

at::Tensor untouched_zeros(at::IntArrayRef shape, at::ScalarType dtype, Touched touched) {
  const auto options = at::TensorOptions(dtype);
  int64_t bytes = int64_t(options.dtype().itemsize());
  for (const int64_t size : shape) bytes *= size;
  if (bytes < small) return at::zeros(shape, options);
  const auto length = size_t(bytes);
  void* const memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(Failure::out_of_memory, "no memory for a table of ", bytes,
                " bytes; take a smaller one, or more ranks: ", no_memory_text());
  // A hint: a system without huge pages uses small pages.
  madvise(memory, length, touched == Touched::most ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return at::from_blob(
      memory, shape, [length](void* at) { munmap(at, length); }, options);
}

}  // namespace convoy
