#include "strategies/parts/bucket_reducer.h"

#include "core/error.h"

namespace convoy {

void BucketReducer::start(const FlatParameters& flat) {
  flat_ = &flat;
  next_ = 0;
  works_.assign(flat.buckets().size(), nullptr);
  missing_.clear();
  for (const FlatParameters::Bucket& bucket : flat.buckets()) missing_.push_back(bucket.parameters.size());
}

void BucketReducer::ready(int parameter) {
  --missing_[static_cast<size_t>(flat_->place(static_cast<size_t>(parameter)).bucket)];
  if (overlap_) launch_ready();
}

void BucketReducer::launch_ready() {
  while (next_ < missing_.size() && missing_[next_] == 0) {
    const int bucket = static_cast<int>(next_++);
    works_[static_cast<size_t>(bucket)] =
        group_->all_reduce(flat_->message(bucket), ReduceOp::sum, {convoy::str("gradients, bucket ", bucket), {}});
  }
}

void BucketReducer::flush() {
  missing_.assign(missing_.size(), 0);
  launch_ready();
}

void BucketReducer::wait(int bucket) {
  WorkPtr& work = works_[static_cast<size_t>(bucket)];
  CONVOY_CHECK(work != nullptr, "bucket ", bucket, " was not launched");
  work->wait();
  work = nullptr;
}

}  // namespace convoy
