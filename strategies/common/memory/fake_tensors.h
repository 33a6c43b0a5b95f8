// FakeTensors: during its lifetime, LibTorch's operators on floating-point tensors compute shapes and no values.
//
// A fake tensor is a CPU tensor with sizes, strides and a data type. All fake tensors share one mapping without memory,
// so a model of any size needs no memory. Code that touches elements directly gets no error, but meaningless values.
// Autograd, autocast and memory accounting work as for real tensors: a step keeps the same bytes as a real step.
// Operators on integers alone (ids, targets) compute values until a fake tensor is involved.
//
// An operator without a shape function runs on the shared mapping: its result has the right shape, and needs memory.
// Threads: acts on the thread that creates it, which must also destroy it; one at a time in a process.
// Failure: Error(out_of_memory) if the mapping cannot be created or a tensor is larger than it.
#pragma once
#include <memory>

namespace convoy {

class FakeTensors {
 public:
  FakeTensors();
  ~FakeTensors();

 private:
  struct Inner;
  std::unique_ptr<Inner> inner_;
};

}  // namespace convoy

namespace torch {
class Library;
}

namespace convoy {

// Shape functions (kernels for the meta device) that LibTorch lacks in C++: convolution, normalisations, embedding,
// attention on the CPU, and a few more that common models use.

// `aten`: an IMPL library of the namespace aten and the dispatch key Meta. It registers the functions for its lifetime.
void add_shape_functions(torch::Library& aten);

}  // namespace convoy
