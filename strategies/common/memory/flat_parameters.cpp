#include "strategies/common/memory/flat_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "core/files/limits.h"
#include "core/tensors/tensor_memory.h"
#include "strategies/common/step/gradient_collector.h"

namespace convoy {

at::Tensor on_storage(const c10::Storage& storage, int64_t offset, at::IntArrayRef shape,
                      const at::TensorOptions& options) {
  at::NoGradGuard no_grad;
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d > 1; --d) strides[d - 2] = strides[d - 1] * std::max<int64_t>(shape[d - 1], 1);
  return at::empty({0}, options).set_(storage, offset, shape, strides);
}

at::Tensor without_memory(at::IntArrayRef shape, at::TensorOptions options) {
  const size_t bytes = size_t(c10::multiply_integers(shape)) * options.dtype().itemsize();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, options.device()));
  return on_storage(storage, 0, shape, options);
}

namespace {

constexpr int64_t alignment = 64;  // bytes: a cache line, and the widest vector

// Adds two numbers on the CPU without kernels. Returns false for other tensors.
bool add_numbers(const at::Tensor& header, const at::Tensor* terms, bool first) {
  for (int i = 0; i < 2; ++i)
    if (!terms[i].is_cpu() || terms[i].numel() != 1 || terms[i].scalar_type() != header.scalar_type()) return false;
  const auto add = [&](auto* to) {
    using T = std::remove_pointer_t<decltype(to)>;
    for (int i = 0; i < 2; ++i) to[i] = (first ? T(0) : to[i]) + *terms[i].const_data_ptr<T>();
    return true;
  };
  if (header.is_cpu() && header.scalar_type() == at::kFloat) return add(header.mutable_data_ptr<float>());
  return header.is_cpu() && header.scalar_type() == at::kDouble && add(header.mutable_data_ptr<double>());
}

}  // namespace

FlatParameters::FlatParameters(std::vector<ParameterPtr> parameters, const std::vector<std::vector<int>>& buckets,
                               const Component& optimizer)
    : parameters_(std::move(parameters)), locations_(parameters_.size()) {
  at::NoGradGuard no_grad;
  at::TensorOptions options(at::kFloat);
  if (!parameters_.empty()) options = parameters_.front()->value.options().requires_grad(false);
  const at::ScalarType dtype = options.dtype().toScalarType();
  header_ = alignment / int64_t(options.dtype().itemsize());
  size_t placed = 0;
  for (const std::vector<int>& bucket : buckets) {
    add_bucket(bucket, optimizer, header_, dtype);
    placed += bucket.size();
  }
  CONVOY_CHECK(placed == parameters_.size(), placed, " parameters in buckets of ", parameters_.size());
  move_storage(options);
}

FlatParameters::Buffers& FlatParameters::buffers_on(at::Device device, size_t& index) {
  for (index = 0; index < buffers_.size(); ++index)
    if (buffers_[index].device == device) return buffers_[index];
  buffers_.push_back({device, 0, {}, {}});
  return buffers_.back();
}

void FlatParameters::add_bucket(const std::vector<int>& listed, const Component& optimizer, int64_t unit,
                                at::ScalarType dtype) {
  at::Device device = buffers_.empty() ? at::Device(at::kCPU) : buffers_.front().device;
  if (!listed.empty()) device = parameters_[size_t(listed.front())]->value.device();
  Bucket bucket;
  Buffers& buffers = buffers_on(device, bucket.device);
  bucket.begin = buffers.elements;
  // The order within a bucket is free: parameters of one group are neighbours and form one slot.
  for (const ParameterGroup& group : parameter_groups(parameters_, listed, optimizer)) {
    const int64_t begin = buffers.elements;
    for (int index : group.indices) {
      const auto i = size_t(index);
      const at::Tensor& value = parameters_[i]->value;
      CONVOY_CHECK(value.scalar_type() == dtype, parameters_[i]->name, " is of ", value.scalar_type(), ", and ",
                   parameters_.front()->name, " of ", dtype);
      CONVOY_CHECK(value.device() == device, parameters_[i]->name, " and ", parameters_[size_t(listed.front())]->name,
                   " of one bucket are on two devices");
      locations_[i] = {int(buckets_.size()), int(slots_.size()), buffers.elements};
      buffers.elements += padded(value.numel(), unit);
      bucket.parameters.push_back(index);
    }
    bucket.slots.push_back(int(slots_.size()));
    slots_.push_back({begin, buffers.elements, bucket.device, group.group, group.counted});
  }
  bucket.end = buffers.elements;
  buckets_.push_back(std::move(bucket));
}

void FlatParameters::move_storage(const at::TensorOptions& options) {
  for (Buffers& buffers : buffers_) {
    buffers.values = at::zeros({buffers.elements}, options.device(buffers.device));
    buffers.gradients = at::zeros({header_ + buffers.elements}, options.device(buffers.device));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    const Buffers& buffers = buffers_[slots_[size_t(locations_[i].slot)].device];
    const int64_t offset = locations_[i].offset, elements = parameter.value.numel();
    const at::Tensor value = buffers.values.narrow(0, offset, elements).view(parameter.value.sizes());
    const at::Tensor gradient = buffers.gradients.narrow(0, header_ + offset, elements).view(parameter.value.sizes());
    value.copy_(parameter.value);
    if (parameter.written) gradient.copy_(parameter.gradient);
    parameter.value.set_data(value);
    parameter.gradient = gradient;
  }
  return_free_memory();  // that of the separate tensors
}

at::Tensor FlatParameters::view(size_t parameter, const at::Tensor& flat) const {
  const Location& location = locations_[parameter];
  const at::Tensor& value = parameters_[parameter]->value;
  return flat.narrow(0, location.offset - slots_[size_t(location.slot)].begin, value.numel()).view(value.sizes());
}

at::Tensor FlatParameters::message(int bucket) const {
  const Bucket& range = buckets_[size_t(bucket)];
  const int64_t begin = bucket == 0 ? 0 : header_ + range.begin;
  return plain_view(buffers_[range.device].gradients, {header_ + range.end - begin}, begin);
}

at::Tensor FlatParameters::header() const { return plain_view(buffers_[buckets_.front().device].gradients, {2}); }

void FlatParameters::add_to_header(const at::Tensor& weight, const at::Tensor& sum, bool first) {
  const at::Tensor here = header();
  const at::Tensor terms[] = {weight, sum};
  if (add_numbers(here, terms, first)) return;
  at::NoGradGuard no_grad;
  const at::Tensor both = at::stack({weight.to(here.options()), sum.to(here.options())});
  first ? here.copy_(both) : here.add_(both);
}

std::vector<std::vector<int>> fill_buckets(const std::vector<ParameterPtr>& parameters, const std::vector<int>& order,
                                           double first, double cap) {
  std::vector<std::vector<int>> buckets{{}};
  double filled = 0;
  for (int index : order) {
    const at::Tensor& value = parameters[size_t(index)]->value;
    const auto bytes = double(value.nbytes());
    const double limit = buckets.size() == 1 ? first : cap;
    const bool elsewhere =
        !buckets.back().empty() && parameters[size_t(buckets.back().front())]->value.device() != value.device();
    if (elsewhere || (!buckets.back().empty() && filled + bytes > limit)) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(index);
    filled += bytes;
  }
  return buckets;
}

}  // namespace convoy
