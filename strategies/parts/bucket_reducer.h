// BucketReducer: all-reduces the gradient buckets, each as soon as its gradients and all buckets before it are ready.
//
// Buckets are launched by index, whatever order their gradients come in, so that all ranks issue the same collectives in
// the same order. Call order: start → ready(…) from backward → flush → wait for each bucket.
#pragma once
#include <vector>

#include "core/communicator.h"
#include "strategies/parts/flat_parameters.h"

namespace convoy {

class BucketReducer {
 public:
  // `overlap` false launches everything in flush.
  BucketReducer(CommunicatorPtr group, bool overlap) : group_(std::move(group)), overlap_(overlap) {}

  void start(const FlatParameters& flat);
  void ready(int parameter);
  void flush();
  void wait(int bucket);

 private:
  void launch_ready();

  CommunicatorPtr group_;
  bool overlap_;
  const FlatParameters* flat_ = nullptr;
  std::vector<size_t> missing_;  // gradients, per bucket
  std::vector<WorkPtr> works_;
  size_t next_ = 0;
};

}  // namespace convoy
