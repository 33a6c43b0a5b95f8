#include "strategies/parts/replicas/bucket_reducer.h"

#include "core/error.h"
#include "strategies/parts/replicas/compressed_sum.h"

namespace convoy {

BucketReducer::BucketReducer(CommunicatorPtr group, bool overlap, Compression numbers)
    : group_(std::move(group)), overlap_(overlap) {
  // To oneself nothing is sent, so nothing is rounded.
  if (numbers != Compression::none && group_->size() > 1) narrow_ = std::make_unique<CompressedSum>(group_, numbers);
}

BucketReducer::~BucketReducer() = default;

void BucketReducer::attach(const FlatParameters* before, const FlatParameters& flat,
                           const std::function<bool(int)>& shared) {
  flat_ = &flat;
  if (narrow_) narrow_->attach(before, flat, shared);
}

void BucketReducer::start(std::vector<char> apart, bool header) {
  next_ = 0;
  apart_ = std::move(apart);
  // It counts rows, which 16 bits do not.
  header_alone_ = header && (narrow_ || stays(0));
  works_.assign(flat_->buckets().size(), nullptr);
  launched_.assign(flat_->buckets().size(), 0);
  missing_.clear();
  for (const FlatParameters::Bucket& bucket : flat_->buckets()) missing_.push_back(bucket.parameters.size());
}

void BucketReducer::ready(int parameter) {
  --missing_[static_cast<size_t>(flat_->place(static_cast<size_t>(parameter)).bucket)];
  if (overlap_) launch_ready();
}

void BucketReducer::launch_ready() {
  for (; next_ < missing_.size() && (missing_[next_] == 0 || stays(next_)); ++next_) {
    if (stays(next_)) continue;
    const int bucket = static_cast<int>(next_);
    launched_[next_] = 1;
    if (narrow_)
      narrow_->launch(bucket);
    else
      works_[next_] =
          group_->all_reduce(flat_->message(bucket), ReduceOp::sum, {convoy::str("gradients, bucket ", bucket), {}});
  }
}

void BucketReducer::flush() {
  missing_.assign(missing_.size(), 0);
  launch_ready();
  if (header_alone_) header_ = group_->all_reduce(flat_->header(), ReduceOp::sum, {"loss and weight", {}});
}

void BucketReducer::wait(int bucket) {
  const auto index = static_cast<size_t>(bucket);
  if (bucket == 0 && header_ != nullptr) {
    header_->wait();
    header_ = nullptr;
  }
  if (stays(index)) return;
  CONVOY_CHECK(launched_[index], "bucket ", bucket, " was not launched");
  launched_[index] = 0;
  if (narrow_) {
    narrow_->finish(bucket);
    return;
  }
  works_[index]->wait();
  works_[index] = nullptr;
}

void BucketReducer::visit(const StateVisitor& visit) const {
  if (narrow_) narrow_->visit(visit);
}

}  // namespace convoy
