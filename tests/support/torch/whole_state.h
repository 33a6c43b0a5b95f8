// The states of a layout's ranks, assembled to whole tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <string>

#include "core/state.h"

namespace convoy::testing {

class WholeState {
 public:
  // Call it from any rank's thread. CONVOY_CHECK that a tensor is equal, bit for bit, on all ranks that have it.
  // Buffers may differ: the owner's is used.
  void add(const StateEntry& entry);
  // By StateEntry::key(). CONVOY_CHECK that no element is missing.
  std::map<std::string, at::Tensor> tensors() const;

 private:
  struct Gathered {
    at::Tensor value, seen;
  };
  std::mutex mutex_;
  std::map<std::string, Gathered> gathered_;
};

}  // namespace convoy::testing
