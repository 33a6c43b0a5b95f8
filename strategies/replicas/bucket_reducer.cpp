#include "strategies/replicas/bucket_reducer.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/ScalarType.h>

#include <map>

#include "core/base/error.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/replicas/compressed_sum.h"

namespace convoy {

void FlatShadow::attach(const FlatParameters* before, const FlatParameters& flat,
                        const std::function<bool(int bucket)>& wanted) {
  at::NoGradGuard no_grad;
  FlatShadow made;
  for (int bucket = 0; bucket < int(flat.buckets().size()); ++bucket)
    made.buckets_.push_back(wanted(bucket) ? at::zeros_like(flat.bucket_values(bucket)) : at::Tensor());
  for (size_t parameter = 0; before != nullptr && parameter < flat.parameters().size(); ++parameter) {
    const at::Tensor from = view(*before, parameter), to = made.view(flat, parameter);
    if (from.defined() && to.defined()) to.copy_(from);
  }
  *this = std::move(made);
}

bool FlatShadow::has(int bucket) const {
  return size_t(bucket) < buckets_.size() && buckets_[size_t(bucket)].defined();
}

at::Tensor FlatShadow::view(const FlatParameters& flat, size_t parameter) const {
  const FlatParameters::Place& place = flat.place(parameter);
  if (!has(place.bucket)) return {};
  const at::Tensor& value = flat.parameters()[parameter]->value;
  const int64_t begin = flat.buckets()[size_t(place.bucket)].begin;
  return buckets_[size_t(place.bucket)].narrow(0, place.offset - begin, value.numel()).view(value.sizes());
}

void visit_shadow(const Parameter& parameter, StateKind kind, const std::string& moment, const at::Tensor& tensor,
                  int replica, bool owner, const StateVisitor& visit) {
  visit_range(parameter, kind, moment, tensor.view({-1}), 0, tensor.numel(), [&](StateEntry entry) {
    entry.replica = replica;
    entry.owner = entry.owner && owner;
    visit(entry);
  });
}

BucketReducer::BucketReducer(CommunicatorPtr group, Compression numbers) : group_(std::move(group)) {
  // A group of one rank sends nothing, so it must not round.
  if (numbers != Compression::none && group_->size() > 1)
    compressed_ = std::make_unique<CompressedSum>(group_, numbers);
}

BucketReducer::~BucketReducer() = default;

void BucketReducer::attach(const FlatParameters* before, const FlatParameters& flat,
                           const std::function<bool(int)>& shared) {
  flat_ = &flat;
  if (compressed_) compressed_->attach(before, flat, shared);
}

void BucketReducer::start(bool overlap, std::vector<char> local, bool header) {
  overlap_ = overlap;
  next_ = 0;
  local_ = std::move(local);
  // The header counts rows, which half precision cannot hold exactly.
  separate_header_ = header && (compressed_ || is_local(0));
  works_.assign(flat_->buckets().size(), nullptr);
  launched_.assign(flat_->buckets().size(), 0);
  missing_.clear();
  for (const FlatParameters::Bucket& bucket : flat_->buckets()) missing_.push_back(bucket.parameters.size());
}

void BucketReducer::ready(int parameter) {
  --missing_[size_t(flat_->place(size_t(parameter)).bucket)];
  if (overlap_) launch_ready();
}

void BucketReducer::launch_ready() {
  for (; next_ < missing_.size() && (missing_[next_] == 0 || is_local(next_)); ++next_) {
    if (is_local(next_)) continue;
    const int bucket = int(next_);
    launched_[next_] = 1;
    if (compressed_)
      compressed_->launch(bucket);
    else
      works_[next_] =
          group_->all_reduce(flat_->message(bucket), ReduceOp::sum, {convoy::str("gradients, bucket ", bucket), {}});
  }
}

void BucketReducer::flush() {
  missing_.assign(missing_.size(), 0);
  launch_ready();
  if (separate_header_) header_ = group_->all_reduce(flat_->header(), ReduceOp::sum, {"loss and weight", {}});
}

void BucketReducer::wait(int bucket) {
  const auto index = size_t(bucket);
  if (bucket == 0 && header_ != nullptr) {
    header_->wait();
    header_ = nullptr;
  }
  if (is_local(index)) return;
  CONVOY_CHECK(launched_[index], "bucket ", bucket, " was not launched");
  launched_[index] = 0;
  if (compressed_) {
    compressed_->finish(bucket);
    return;
  }
  works_[index]->wait();
  works_[index] = nullptr;
}

void BucketReducer::visit(const StateVisitor& visit) const {
  if (compressed_) compressed_->visit(visit);
}

BufferSync::BufferSync(const std::vector<NamedBuffer>& buffers, CommunicatorPtr group, const std::string& how)
    : group_(std::move(group)) {
  at::NoGradGuard no_grad;
  if (how == "local") return;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const NamedBuffer& buffer : buffers) by_dtype[buffer.value.scalar_type()].push_back(buffer.value);
  for (auto& [dtype, tensors] : by_dtype) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& tensor : tensors) pieces.push_back(tensor.reshape({-1}));
    Part part;
    part.flat = at::cat(pieces);
    part.mean = how == "mean" && at::isFloatingType(dtype);
    int64_t offset = 0;
    for (at::Tensor& tensor : tensors) {
      const int64_t elements = tensor.numel();
      tensor.set_data(part.flat.narrow(0, offset, elements).view(tensor.sizes()));
      offset += elements;
    }
    parts_.push_back(std::move(part));
  }
}

void BufferSync::start() {
  for (Part& part : parts_) {
    const CallOptions call{convoy::str("buffers of ", part.flat.dtype().name()), {}};
    part.work = part.mean ? group_->all_reduce(part.flat, ReduceOp::sum, call) : group_->broadcast(part.flat, 0, call);
  }
}

void BufferSync::finish() {
  for (Part& part : parts_) {
    part.work->wait();
    part.work = nullptr;
    if (part.mean) part.flat.div_(group_->size());
  }
}

}  // namespace convoy
