#include "strategies/replicas/bucket_reducer.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/ScalarType.h>
#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/error.h"
#include "strategies/common/model/visit_parts.h"

namespace convoy {

// --- Half-precision numbers in messages ---

namespace {

constexpr int largest_exponent = 13;  // exponent of the scaled largest number
constexpr int largest_scale = 60;     // largest scale exponent; every gradient dtype can hold its inverse

}  // namespace

at::ScalarType half_dtype(Compression numbers) {
  CONVOY_CHECK(numbers != Compression::none, "gradients are not compressed");
  return numbers == Compression::fp16 ? at::kHalf : at::kBFloat16;
}

int half_exponent(double most) {
  if (most == 0 || !std::isfinite(most)) return 0;
  int exponent = 0;
  std::frexp(most, &exponent);
  return std::clamp(largest_exponent - exponent, -largest_scale, largest_scale);
}

at::Tensor half_exponent(const at::Tensor& numbers) {
  const auto [mantissa, exponent] = at::frexp(numbers.abs().amax());
  return (largest_exponent - exponent).clamp_(-largest_scale, largest_scale).to(numbers.scalar_type());
}

// --- CompressedSum ---

namespace {

constexpr int64_t head = 1;  // slots before the shard: the scale exponent

}  // namespace

CompressedSum::CompressedSum(CommunicatorPtr group, Compression numbers)
    : group_(std::move(group)), dtype_(half_dtype(numbers)) {}

void CompressedSum::attach(const FlatParameters* before, const FlatParameters& flat,
                           const std::function<bool(int bucket)>& wanted) {
  errors_.attach(before, flat, wanted);
  flat_ = &flat;
  messages_.clear();
  const int64_t ranks = group_->size();
  for (int bucket = 0; bucket < int(flat.buckets().size()); ++bucket) {
    messages_.emplace_back();
    if (!errors_.has(bucket)) continue;
    const at::Tensor& whole = errors_.bucket(bucket);
    const int64_t elements = (whole.numel() + ranks - 1) / ranks;
    messages_.back().to_send = at::zeros({ranks, head + elements}, whole.options().dtype(dtype_));
    messages_.back().received = at::zeros_like(messages_.back().to_send);
  }
}

at::Tensor CompressedSum::shard_of(const at::Tensor& whole, int rank, int64_t elements) const {
  const int64_t begin = std::min(rank * elements, whole.numel());
  return whole.narrow(0, begin, std::min(elements, whole.numel() - begin));
}

void CompressedSum::encode(const at::Tensor& numbers, const at::Tensor& message) const {
  if (numbers.numel() == 0) return;
  const at::Tensor body = message.narrow(0, head, numbers.numel());
  if (dtype_ != at::kHalf) {
    body.copy_(numbers);
    return;
  }
  const at::Tensor power = half_exponent(numbers);
  message.select(0, 0).copy_(power);
  body.copy_(numbers * at::exp2(power));
}

at::Tensor CompressedSum::decoded(const at::Tensor& message, const at::Tensor& like) const {
  at::Tensor numbers = message.narrow(0, head, like.numel()).to(like.scalar_type());
  if (dtype_ == at::kHalf) numbers.mul_(at::exp2(-message.select(0, 0).to(like.scalar_type())));
  return numbers;
}

void CompressedSum::launch(int bucket) {
  at::NoGradGuard no_grad;
  Message& message = messages_[size_t(bucket)];
  at::Tensor& error = errors_.bucket(bucket);
  error.add_(flat_->bucket_gradients(bucket));
  const int64_t elements = message.to_send.size(1) - head;
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == group_->rank()) continue;  // this rank's shard is not rounded
    at::Tensor own = shard_of(error, rank, elements);
    encode(own, message.to_send[rank]);
    own.sub_(decoded(message.to_send[rank], own));
  }
  const std::vector<int64_t> one_each(size_t(group_->size()), 1);
  message.work = group_->all_to_all_v(message.received, one_each, message.to_send, one_each,
                                      {convoy::str("shards of gradients, bucket ", bucket), {}});
  message.gathering = false;
  launched_.push_back(bucket);
}

void CompressedSum::gather(int bucket) {
  Message& message = messages_[size_t(bucket)];
  message.work->wait();
  const int64_t elements = message.to_send.size(1) - head;
  at::Tensor sum = shard_of(errors_.bucket(bucket), group_->rank(), elements);
  for (int rank = 0; rank < group_->size(); ++rank)
    if (rank != group_->rank()) sum.add_(decoded(message.received[rank], sum));
  const at::Tensor own = message.to_send[group_->rank()];
  encode(sum, own);
  sum.sub_(decoded(own, sum));
  message.work = group_->all_gather(message.received, own, {convoy::str("sums of gradients, bucket ", bucket), {}});
  message.gathering = true;
}

void CompressedSum::finish(int bucket) {
  at::NoGradGuard no_grad;
  // Gathers all launched buckets at once, so that one is sent while the next is summed.
  for (int one : launched_) gather(one);
  launched_.clear();
  Message& message = messages_[size_t(bucket)];
  CONVOY_CHECK(message.gathering, "bucket ", bucket, " was not launched");
  message.work->wait();
  message.work = nullptr;
  message.gathering = false;
  const int64_t elements = message.to_send.size(1) - head;
  const at::Tensor gradients = flat_->bucket_gradients(bucket);
  for (int rank = 0; rank < group_->size(); ++rank) {
    at::Tensor own = shard_of(gradients, rank, elements);
    if (own.numel() > 0) own.copy_(decoded(message.received[rank], own));
  }
}

void CompressedSum::visit(const StateVisitor& visit) const {
  for (size_t index = 0; index < flat_->parameters().size(); ++index) {
    const at::Tensor error = errors_.view(*flat_, index);
    if (error.defined())
      visit_shadow(*flat_->parameters()[index], StateKind::moment, "left_over", error, group_->rank(), true, visit);
  }
}

// --- FlatShadow ---

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
  const FlatParameters::Location& location = flat.location(parameter);
  if (!has(location.bucket)) return {};
  const at::Tensor& value = flat.parameters()[parameter]->value;
  const int64_t begin = flat.buckets()[size_t(location.bucket)].begin;
  return buckets_[size_t(location.bucket)].narrow(0, location.offset - begin, value.numel()).view(value.sizes());
}

void visit_shadow(const Parameter& parameter, StateKind kind, const std::string& moment, const at::Tensor& tensor,
                  int replica, bool owner, const StateVisitor& visit) {
  visit_range(parameter, kind, moment, tensor.view({-1}), 0, tensor.numel(), [&](StateEntry entry) {
    entry.replica = replica;
    entry.owner = entry.owner && owner;
    visit(entry);
  });
}

// --- BucketReducer ---

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
  --missing_[size_t(flat_->location(size_t(parameter)).bucket)];
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

// --- BufferSync ---

BufferSync::BufferSync(const std::vector<NamedBuffer>& buffers, CommunicatorPtr group, SharedBuffers how)
    : group_(std::move(group)) {
  at::NoGradGuard no_grad;
  if (how == SharedBuffers::local) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const NamedBuffer& buffer : buffers) by_dtype[buffer.value.scalar_type()].push_back(buffer.value);
  for (auto& [dtype, tensors] : by_dtype) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& tensor : tensors) pieces.push_back(tensor.reshape({-1}));
    Part part;
    part.flat = at::cat(pieces);
    part.mean = how == SharedBuffers::mean && at::isFloatingType(dtype);
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
