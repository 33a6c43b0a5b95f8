// The states that the ranks of a layout show, put together to whole tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <string>

#include "core/state.h"

namespace convoy::testing {

class WholeState {
 public:
  // From any rank's thread. What several ranks hold has to be the same on all of them, bit for bit, but for buffers, of which
  // the owner's counts: CONVOY_CHECK.
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
