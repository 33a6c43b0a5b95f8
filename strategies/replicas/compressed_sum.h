// CompressedSum: sums gradient buckets over a group in half precision. It sends half as many bytes as fp32.
//
// Each rank sums one shard of a bucket. The other ranks send it their rounded gradients; it adds them in the gradients'
// dtype. It then sends the sum, rounded too, to all. Both rounding errors are kept and added to the next gradients
// (error feedback: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error
// Feedback Fixes SignSGD", ICML 2019; for the sum: Tang et al., "DoubleSqueeze", ICML 2019). So the sum over many
// updates is off by one rounding, and errors do not add up.
// The backend only moves bytes, so the sum has the same bits on every backend.
// Call order: attach; then for each sum launch(…) in order of buckets → finish for each. The order is equal on all
// ranks.
// Threads: the rank's thread, and its backward. Failure: CommError.
#pragma once
#include <ATen/core/Tensor.h>
#include <vector>

#include "core/communicator.h"
#include "strategies/plans/options/step_options.h"
#include "strategies/replicas/bucket_reducer.h"

namespace convoy {

// Half-precision numbers in messages. fp16 numbers are scaled by a power of two, so that the largest of a message is
// 2¹³, far below fp16's limit. So small gradients are not lost. bf16 numbers are not scaled.

// `numbers` must not be none.
at::ScalarType half_dtype(Compression numbers);
// Returns the exponent of the fp16 scale for numbers with the largest magnitude `most`. Returns 0 for zero and
// non-finite values.
int half_exponent(double most);
// Does the same for a non-empty tensor, on its device: a scalar of its dtype.
at::Tensor half_exponent(const at::Tensor& numbers);

class CompressedSum {
 public:
  // `numbers` must not be none.
  CompressedSum(CommunicatorPtr group, Compression numbers);

  // Sets the layout. Errors of parameters in `wanted` buckets move along.
  void attach(const FlatParameters* before, const FlatParameters& flat, const std::function<bool(int bucket)>& wanted);
  void launch(int bucket);
  void finish(int bucket);  // the bucket's gradients are the sum afterwards
  void visit(const StateVisitor& visit) const;

 private:
  struct Message {
    at::Tensor to_send, received;  // [size, 1 + elements of a shard], 16-bit
    WorkPtr work;
    bool gathering = false;
  };
  at::Tensor shard_of(const at::Tensor& whole, int rank, int64_t elements) const;
  void encode(const at::Tensor& numbers, const at::Tensor& message) const;
  at::Tensor decoded(const at::Tensor& message, const at::Tensor& like) const;
  void gather(int bucket);

  CommunicatorPtr group_;
  at::ScalarType dtype_;
  const FlatParameters* flat_ = nullptr;
  FlatShadow errors_;
  std::vector<Message> messages_;  // by bucket
  std::vector<int> launched_;
};

}  // namespace convoy
