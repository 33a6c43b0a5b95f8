// Buffers: where a data set writes a batch. Memory of earlier batches is taken again once nobody holds it any more, so
// that a loader in its steady state allocates nothing.
//
// Threads: one Buffers per loader, used by the thread that gathers; the tensors handed out may be dropped in any thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace convoy {

class Buffers {
 public:
  // pinned: page-locked memory, for copies to a GPU that do not block. LibTorch's own cache then does the reuse, since
  // it alone knows when such a copy has ended.
  explicit Buffers(bool pinned = false) : pinned_(pinned) {}

  // A contiguous CPU tensor with undefined contents.
  at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype);

 private:
  bool pinned_;
  std::vector<std::pair<std::string, std::vector<at::Tensor>>> kept_;  // few names, few tensors each
};

}  // namespace convoy
