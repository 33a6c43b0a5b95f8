// FlatShadow: a number beside each element of a rank's flat parameters (what rounding left over, a copy of before), bucket
// by bucket as those are laid out. Threads: the rank's own, and its backward.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/state.h"
#include "strategies/parts/flat_parameters.h"

namespace convoy {

class FlatShadow {
 public:
  // Zeros for the buckets of `flat` that are wanted. What there was before of a parameter moves along; `before`: the
  // layout that it has had, null for none.
  void attach(const FlatParameters* before, const FlatParameters& flat, const std::function<bool(int bucket)>& wanted);
  void clear() { buckets_.clear(); }

  bool has(int bucket) const;
  at::Tensor& bucket(int bucket) { return buckets_[static_cast<size_t>(bucket)]; }  // [elements]
  // Of a parameter, in its shape; undefined where its bucket is not wanted.
  at::Tensor view(const FlatParameters& flat, size_t parameter) const;

 private:
  std::vector<at::Tensor> buckets_;
};

// Shows `tensor`, of a parameter's shape, piece by piece; `replica` -1: the same on all ranks of the axis data, of which
// `owner` says whether this one owns it.
void visit_beside(const Parameter& parameter, StateKind kind, const std::string& moment, const at::Tensor& tensor,
                  int replica, bool owner, const StateVisitor& visit);

}  // namespace convoy
