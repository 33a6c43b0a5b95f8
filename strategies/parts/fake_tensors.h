// FakeTensors: while one lives, LibTorch's operators on floating-point tensors compute shapes and no values.
//
// A fake tensor is a CPU tensor with sizes, strides and a data type. All fake tensors share one mapping that holds
// nothing, so that a model of any size takes no memory, and what touches their elements directly neither fails nor
// tells anything. Autograd, autocast and memory accounting work as for real tensors: a step keeps what the real step
// would keep. Operators on integers alone (ids, targets) compute values, up to their first use with a fake tensor.
//
// An operator without a shape function runs on the shared mapping: its result has the right shape, and takes memory.
// Threads: it acts on the thread that makes it, which must also be the one that ends it; one at a time in a process.
// Failure: Error(out_of_memory) where the mapping cannot be made or a tensor is larger than it.
#pragma once
#include <memory>

namespace convoy {

class FakeTensors {
 public:
  FakeTensors();
  ~FakeTensors();
  FakeTensors(const FakeTensors&) = delete;
  FakeTensors& operator=(const FakeTensors&) = delete;

 private:
  struct Inner;
  std::unique_ptr<Inner> inner_;
};

}  // namespace convoy
