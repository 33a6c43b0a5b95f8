// CompressedSum: sums gradient buckets over a group in 16-bit numbers, so that half as many bytes are sent as in fp32.
//
// Each rank adds up one part of a bucket: the others send it theirs rounded, it adds them in the gradients' own dtype and
// gives all the sum, rounded too. What either rounding leaves over is kept and added to the next gradients (error feedback:
// Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes SignSGD",
// ICML 2019; of the sum as well: Tang et al., "DoubleSqueeze", ICML 2019), so the sum over many updates is off by one
// rounding, not by one each. Only moves are asked of the backend, so the sum has the same bits on every one.
// How numbers are narrowed: narrow_numbers.h.
// Call order: attach; then for each sum launch(…) in order of buckets → finish for each, the same on all ranks.
// Threads: the rank's own, and its backward. Failure: CommError.
#pragma once
#include <vector>

#include "core/communicator.h"
#include "strategies/parts/replicas/flat_shadow.h"
#include "strategies/parts/replicas/sync_entry.h"

namespace convoy {

class CompressedSum {
 public:
  // `numbers`: not none.
  CompressedSum(CommunicatorPtr group, Compression numbers);

  // What is left over of parameters in buckets that are `wanted` moves along.
  void attach(const FlatParameters* before, const FlatParameters& flat, const std::function<bool(int bucket)>& wanted);
  void launch(int bucket);
  void finish(int bucket);  // the bucket's gradients are their sum
  void visit(const StateVisitor& visit) const;

 private:
  struct Message {
    at::Tensor to_send, received;  // [size, 1 + elements of a part] of 16 bits
    WorkPtr work;
    bool gathering = false;
  };
  at::Tensor part(const at::Tensor& whole, int rank, int64_t elements) const;
  void encode(const at::Tensor& numbers, const at::Tensor& message) const;
  at::Tensor decoded(const at::Tensor& message, const at::Tensor& like) const;
  void gather(int bucket);

  CommunicatorPtr group_;
  at::ScalarType dtype_;
  const FlatParameters* flat_ = nullptr;
  FlatShadow left_;
  std::vector<Message> messages_;  // by bucket
  std::vector<int> launched_;
};

}  // namespace convoy
