#include "strategies/parts/flat_parameters.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "strategies/parts/slot_groups.h"

namespace convoy {
namespace {

constexpr int64_t alignment = 64;  // bytes: a cache line, and the widest vector

int64_t padded(int64_t elements, int64_t unit) { return (elements + unit - 1) / unit * unit; }

}  // namespace

FlatParameters::FlatParameters(std::vector<ParameterPtr> parameters, const std::vector<std::vector<int>>& buckets,
                               const Component& optimizer)
    : parameters_(std::move(parameters)), places_(parameters_.size()) {
  at::NoGradGuard no_grad;
  at::TensorOptions options(at::kFloat);
  if (!parameters_.empty()) options = parameters_.front()->value.options().requires_grad(false);
  const int64_t unit = alignment / static_cast<int64_t>(options.dtype().itemsize());
  size_t placed = 0;
  int64_t offset = 0;
  for (const std::vector<int>& listed : buckets) {
    // Within a bucket the order is free: parameters of one group stand together and make one slot.
    Bucket bucket;
    bucket.begin = offset;
    for (const SlotGroup& group : slot_groups(parameters_, listed, optimizer)) {
      const int64_t begin = offset;
      for (int index : group.members) {
        const auto i = static_cast<size_t>(index);
        const at::Tensor& value = parameters_[i]->value;
        CONVOY_CHECK(value.scalar_type() == options.dtype().toScalarType() && value.device() == options.device(),
                     parameters_[i]->name, " has another dtype or device than ", parameters_.front()->name);
        places_[i] = {static_cast<int>(buckets_.size()), static_cast<int>(slots_.size()), offset};
        offset += padded(value.numel(), unit);
        bucket.parameters.push_back(index);
        ++placed;
      }
      bucket.slots.push_back(static_cast<int>(slots_.size()));
      slots_.push_back({begin, offset, group.group, group.counted});
    }
    bucket.end = offset;
    buckets_.push_back(std::move(bucket));
  }
  CONVOY_CHECK(placed == parameters_.size(), placed, " parameters in buckets of ", parameters_.size());

  values_ = at::zeros({offset}, options);
  gradients_ = at::zeros({unit + offset}, options);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    const at::Tensor value =
        values_.narrow(0, places_[i].offset, parameter.value.numel()).view(parameter.value.sizes());
    const at::Tensor gradient =
        gradients_.narrow(0, unit + places_[i].offset, parameter.value.numel()).view(parameter.value.sizes());
    value.copy_(parameter.value);
    if (parameter.written) gradient.copy_(parameter.gradient);
    parameter.value.set_data(value);
    parameter.gradient = gradient;
  }
}

at::Tensor FlatParameters::view(size_t parameter, const at::Tensor& flat) const {
  const Place& place = places_[parameter];
  const at::Tensor& value = parameters_[parameter]->value;
  return flat.narrow(0, place.offset - slots_[static_cast<size_t>(place.slot)].begin, value.numel())
      .view(value.sizes());
}

at::Tensor FlatParameters::values(int slot) const {
  const Slot& range = slots_[static_cast<size_t>(slot)];
  return values_.narrow(0, range.begin, range.end - range.begin);
}

at::Tensor FlatParameters::gradients(int slot) const {
  const Slot& range = slots_[static_cast<size_t>(slot)];
  return gradients_.narrow(0, gradients_.numel() - values_.numel() + range.begin, range.end - range.begin);
}

at::Tensor FlatParameters::message(int bucket) const {
  const Bucket& range = buckets_[static_cast<size_t>(bucket)];
  const int64_t header = gradients_.numel() - values_.numel();
  const int64_t begin = bucket == 0 ? 0 : header + range.begin;
  return gradients_.narrow(0, begin, header + range.end - begin);
}

at::Tensor FlatParameters::header() const { return gradients_.narrow(0, 0, 2); }

void FlatParameters::add_to_header(const at::Tensor& weight, const at::Tensor& sum, bool first) {
  const at::Tensor here = header();
  const at::Tensor figures[] = {weight, sum};
  for (int64_t i = 0; i < 2; ++i) {
    const at::Tensor place = here.select(0, i);
    if (first)
      place.copy_(figures[i]);
    else
      place.add_(figures[i].to(place.scalar_type()));
  }
}

std::vector<std::vector<int>> fill_buckets(const std::vector<ParameterPtr>& parameters, const std::vector<int>& order,
                                           double first, double cap) {
  std::vector<std::vector<int>> buckets{{}};
  double filled = 0;
  for (int index : order) {
    const auto bytes = static_cast<double>(parameters[static_cast<size_t>(index)]->value.nbytes());
    const double limit = buckets.size() == 1 ? first : cap;
    if (!buckets.back().empty() && filled + bytes > limit) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(index);
    filled += bytes;
  }
  return buckets;
}

}  // namespace convoy
