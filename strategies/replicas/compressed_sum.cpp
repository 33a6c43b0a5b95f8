#include "strategies/replicas/compressed_sum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace convoy {
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

}  // namespace convoy
