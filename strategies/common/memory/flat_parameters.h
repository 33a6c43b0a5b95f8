// FlatParameters: the trained tensors of a rank as views of one flat tensor, and their gradients as views of a second
// one. A rank with several devices has two flat tensors per device.
//
// Flat tensors are divided into buckets: one message reduces the gradients of a bucket. Buckets are divided into slots:
// one fused optimizer loop updates parameters with equal learning-rate factor, weight decay and `counted`. Parameters
// start at multiples of 64 bytes; the gaps stay zero. The flat tensor of the gradients starts with a header, which is
// reduced with bucket 0.
// Threads: the rank's thread, and its backward.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <cstdint>
#include <vector>

#include "core/optim/optimizer.h"
#include "strategies/common/layers/parameter.h"

namespace convoy {

// Rounds up to a multiple of `unit`.
inline int64_t padded(int64_t elements, int64_t unit) { return (elements + unit - 1) / unit * unit; }
// Returns a tensor of this shape without memory.
at::Tensor without_memory(at::IntArrayRef shape, at::TensorOptions options);
// Returns a contiguous tensor of this shape in `storage`, from element `offset` on; no autograd.
at::Tensor on_storage(const c10::Storage& storage, int64_t offset, at::IntArrayRef shape,
                      const at::TensorOptions& options);

class FlatParameters {
 public:
  struct Slot {
    int64_t begin = 0, end = 0;  // elements of its device's flat tensor of values
    size_t device = 0;           // index of the device
    GroupSettings group;
    bool counted = true;  // counts in norms: no other rank of this replica counts the same parameters
  };
  struct Bucket {
    int64_t begin = 0, end = 0;
    size_t device = 0;
    std::vector<int> parameters;  // indices into parameters()
    std::vector<int> slots;
  };
  struct Location {  // position of a parameter
    int bucket = 0;
    int slot = 0;
    int64_t offset = 0;  // offset in the flat tensor of values of the slot's device
  };

  // Copies values and written gradients to new flat tensors, and makes the parameters' tensors views of them.
  // `buckets` lists every parameter once, by index; the parameters of one bucket are on one device.
  FlatParameters(std::vector<ParameterPtr> parameters, const std::vector<std::vector<int>>& buckets,
                 const Component& optimizer);

  const std::vector<ParameterPtr>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const Location& location(size_t parameter) const { return locations_[parameter]; }
  // Returns the parameter's range of `flat`, in its shape. `flat` has the length of the slot.
  at::Tensor view(size_t parameter, const at::Tensor& flat) const;

  at::Tensor values(int slot) const { return values_in(slots_[size_t(slot)]); }  // [elements]
  at::Tensor gradients(int slot) const { return gradients_in(slots_[size_t(slot)]); }
  at::Tensor message(int bucket) const;  // the bucket's gradients; bucket 0 starts with the header
  at::Tensor bucket_values(int bucket) const { return values_in(buckets_[size_t(bucket)]); }  // [elements] of its slots
  at::Tensor bucket_gradients(int bucket) const { return gradients_in(buckets_[size_t(bucket)]); }  // without header
  at::Tensor header() const;                                                        // [2]: weight and sum of the loss
  void add_to_header(const at::Tensor& weight, const at::Tensor& sum, bool first);  // `first` overwrites

 private:
  struct Buffers {
    at::Device device{at::kCPU};
    int64_t elements = 0;  // length of `values`
    at::Tensor values;
    at::Tensor gradients;  // header, then as `values`
  };
  template <class Range>
  at::Tensor values_in(const Range& range) const {
    return buffers_[range.device].values.narrow(0, range.begin, range.end - range.begin);
  }
  template <class Range>
  at::Tensor gradients_in(const Range& range) const {
    return buffers_[range.device].gradients.narrow(0, header_ + range.begin, range.end - range.begin);
  }
  void add_bucket(const std::vector<int>& bucket, const Component& optimizer, int64_t unit, at::ScalarType dtype);
  Buffers& buffers_on(at::Device device, size_t& index);
  void move_storage(const at::TensorOptions& options);

  std::vector<ParameterPtr> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;
  std::vector<Location> locations_;
  std::vector<Buffers> buffers_;  // one per device
  int64_t header_ = 0;            // elements before the gradients in each flat tensor of gradients
};

// Fills buckets in the given order: the first up to `first` bytes, the others up to `cap`. Each has at least one
// parameter, and all of its parameters are on one device.
std::vector<std::vector<int>> fill_buckets(const std::vector<ParameterPtr>& parameters, const std::vector<int>& order,
                                           double first, double cap);

}  // namespace convoy
