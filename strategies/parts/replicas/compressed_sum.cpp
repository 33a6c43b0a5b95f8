#include "strategies/parts/replicas/compressed_sum.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "core/error.h"
#include "strategies/parts/replicas/narrow_numbers.h"

namespace convoy {
namespace {

constexpr int64_t head = 1;  // in front of a part: the power of two

}  // namespace

CompressedSum::CompressedSum(CommunicatorPtr group, Compression numbers)
    : group_(std::move(group)), dtype_(narrow_dtype(numbers)) {}

void CompressedSum::attach(const FlatParameters* before, const FlatParameters& flat,
                           const std::function<bool(int bucket)>& wanted) {
  left_.attach(before, flat, wanted);
  flat_ = &flat;
  messages_.clear();
  const int64_t ranks = group_->size();
  for (int bucket = 0; bucket < static_cast<int>(flat.buckets().size()); ++bucket) {
    messages_.emplace_back();
    if (!left_.has(bucket)) continue;
    const at::Tensor& whole = left_.bucket(bucket);
    const int64_t elements = (whole.numel() + ranks - 1) / ranks;
    messages_.back().to_send = at::zeros({ranks, head + elements}, whole.options().dtype(dtype_));
    messages_.back().received = at::zeros_like(messages_.back().to_send);
  }
}

at::Tensor CompressedSum::part(const at::Tensor& whole, int rank, int64_t elements) const {
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
  const at::Tensor power = narrow_power(numbers);
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
  Message& message = messages_[static_cast<size_t>(bucket)];
  at::Tensor& left = left_.bucket(bucket);
  left.add_(flat_->bucket_gradients(bucket));
  const int64_t elements = message.to_send.size(1) - head;
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == group_->rank()) continue;  // added as it is
    at::Tensor own = part(left, rank, elements);
    encode(own, message.to_send[rank]);
    own.sub_(decoded(message.to_send[rank], own));
  }
  const std::vector<int64_t> one_each(static_cast<size_t>(group_->size()), 1);
  message.work = group_->all_to_all_v(message.received, one_each, message.to_send, one_each,
                                      {convoy::str("parts of gradients, bucket ", bucket), {}});
  message.gathering = false;
  launched_.push_back(bucket);
}

void CompressedSum::gather(int bucket) {
  Message& message = messages_[static_cast<size_t>(bucket)];
  message.work->wait();
  const int64_t elements = message.to_send.size(1) - head;
  at::Tensor sum = part(left_.bucket(bucket), group_->rank(), elements);
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
  // All of them at once, so that one is on its way while the next is added up.
  for (int one : launched_) gather(one);
  launched_.clear();
  Message& message = messages_[static_cast<size_t>(bucket)];
  CONVOY_CHECK(message.gathering, "bucket ", bucket, " was not launched");
  message.work->wait();
  message.work = nullptr;
  message.gathering = false;
  const int64_t elements = message.to_send.size(1) - head;
  const at::Tensor gradients = flat_->bucket_gradients(bucket);
  for (int rank = 0; rank < group_->size(); ++rank) {
    at::Tensor own = part(gradients, rank, elements);
    if (own.numel() > 0) own.copy_(decoded(message.received[rank], own));
  }
}

void CompressedSum::visit(const StateVisitor& visit) const {
  for (size_t index = 0; index < flat_->parameters().size(); ++index) {
    const at::Tensor left = left_.view(*flat_, index);
    if (left.defined())
      visit_beside(*flat_->parameters()[index], StateKind::moment, "left_over", left, group_->rank(), true, visit);
  }
}

}  // namespace convoy
