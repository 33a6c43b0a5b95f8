// FlatParameters: the trained tensors of a rank as views of one buffer, and their gradients as views of a second; where the
// rank has several devices, two such buffers on each.
//
// The buffers are cut into buckets (what is reduced by one message) and those into slots (what one fused optimizer loop
// sweeps: the parameters of a bucket that share learning-rate factor, weight decay and being counted). Parameters start at multiples of
// 64 bytes; the gaps stay zero. The gradient buffer opens with a header; that of bucket 0 is reduced with it.
// Threads: the rank's own, and its backward.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/optim/optimizer.h"
#include "strategies/parts/parameter.h"

namespace convoy {

class FlatParameters {
 public:
  struct Slot {
    int64_t begin = 0, end = 0;  // elements of the value buffer of its device
    size_t device = 0;           // which of the devices' buffers
    GroupSettings group;
    bool counted = true;  // in norms: no other rank of this replica counts the same parameters
  };
  struct Bucket {
    int64_t begin = 0, end = 0;
    size_t device = 0;
    std::vector<int> parameters;  // indices into parameters()
    std::vector<int> slots;
  };
  struct Place {
    int bucket = 0;
    int slot = 0;
    int64_t offset = 0;  // in the value buffer of the slot's device
  };

  // Copies values, and gradients that were written, to the new buffers and makes the parameters' tensors views of them.
  // `buckets` lists every parameter once, by index; those of one bucket are on one device.
  FlatParameters(std::vector<ParameterPtr> parameters, const std::vector<std::vector<int>>& buckets,
                 const Component& optimizer);

  const std::vector<ParameterPtr>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const Place& place(size_t parameter) const { return places_[parameter]; }
  // Part of `flat`, which has the length of `slot`, that belongs to the parameter, in its shape.
  at::Tensor view(size_t parameter, const at::Tensor& flat) const;

  at::Tensor values(int slot) const;  // [elements]
  at::Tensor gradients(int slot) const;
  at::Tensor message(int bucket) const;           // the bucket's gradients, for bucket 0 with the header in front
  at::Tensor bucket_values(int bucket) const;     // [elements], all of its slots
  at::Tensor bucket_gradients(int bucket) const;  // without the header
  at::Tensor header() const;                      // [2]: weight and sum of the loss
  void add_to_header(const at::Tensor& weight, const at::Tensor& sum, bool first);  // `first` overwrites

 private:
  struct Buffers {
    at::Device device{at::kCPU};
    int64_t elements = 0;  // of `values`
    at::Tensor values;
    at::Tensor gradients;  // header, then as `values`
  };
  void place(const std::vector<int>& bucket, const Component& optimizer, int64_t unit, at::ScalarType dtype);
  Buffers& buffers_on(at::Device device, size_t& index);
  void move_storage(const at::TensorOptions& options);

  std::vector<ParameterPtr> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;
  std::vector<Place> places_;
  std::vector<Buffers> buffers_;  // one per device
  int64_t header_ = 0;            // elements in front of each gradient buffer
};

// Fills buckets in the given order: the first up to `first` bytes, the others up to `cap`; each holds at least one, and none
// those of two devices.
std::vector<std::vector<int>> fill_buckets(const std::vector<ParameterPtr>& parameters, const std::vector<int>& order,
                                           double first, double cap);

}  // namespace convoy
