// Synchronisation of replicas: sums of gradients by bucket, optionally in half precision, and buffers.
//
// Sections: FlatShadow, BucketReducer, BufferSync, half-precision numbers in messages, CompressedSum.
#pragma once
#include <ATen/core/Tensor.h>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/state.h"
#include "strategies/common/memory/flat_parameters.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {

// --- FlatShadow: extra numbers per element ---

// FlatShadow: one extra number for each element of a rank's flat parameters, for example a compression error or an
// earlier value. Its buckets have the layout of the parameters' buckets.
// Threads: the rank's thread, and its backward.
class FlatShadow {
 public:
  // Takes the layout `flat`, and memory for the `wanted` buckets. Copies the numbers that the previous layout `before`
  // has; all others are zero. `before` may be null.
  void attach(const FlatParameters* before, const FlatParameters& flat, const std::function<bool(int bucket)>& wanted);
  void clear() { buckets_.clear(); }

  bool has(int bucket) const;
  at::Tensor& bucket(int bucket) { return buckets_[size_t(bucket)]; }  // [elements]
  // Returns a view of one parameter, in its shape; undefined if its bucket is not wanted.
  at::Tensor view(const FlatParameters& flat, size_t parameter) const;

 private:
  std::vector<at::Tensor> buckets_;
};

// Visits `tensor`, which has the parameter's shape, piece by piece. `replica`: number of this rank's copy; −1: copies
// on the axis `data` are equal. `owner`: false if another rank of the axis owns the copy.
void visit_shadow(const Parameter& parameter, StateKind kind, const std::string& moment, const at::Tensor& tensor,
                  int replica, bool owner, const StateVisitor& visit);

// --- BucketReducer: sums of gradients ---

class CompressedSum;

// BucketReducer: all-reduces gradient buckets, each as soon as its gradients and all earlier buckets are ready.
//
// Buckets are launched in the order of their indices, whatever the order of gradients. So all ranks issue the same
// collectives in the same order.
// Call order: attach; then start → ready(…) from backward → flush → wait for each bucket.
class BucketReducer {
 public:
  explicit BucketReducer(CommunicatorPtr group, Compression numbers = Compression::none);
  ~BucketReducer();

  // Sets the layout. `before`: the previous layout, or null. `shared`: by bucket, true if it is ever sent.
  void attach(const FlatParameters* before, const FlatParameters& flat, const std::function<bool(int)>& shared);
  // Begins the sums of one update. `overlap`: false if only `flush` launches. `local`: by bucket, true if it is not
  // sent; empty: all are sent. `header`: true if the loss and its weight are summed even if bucket 0 is local.
  void start(bool overlap, std::vector<char> local = {}, bool header = true);
  void ready(int parameter);  // its gradient is complete
  void flush();               // all gradients are complete: launches the remaining buckets
  void wait(int bucket);      // the header arrives with bucket 0
  // Visits this rank's compression errors.
  void visit(const StateVisitor& visit) const;

 private:
  void launch_ready();
  bool is_local(size_t bucket) const { return bucket < local_.size() && local_[bucket] != 0; }

  CommunicatorPtr group_;
  bool overlap_ = true;
  std::unique_ptr<CompressedSum> compressed_;  // null: no compression
  const FlatParameters* flat_ = nullptr;
  std::vector<size_t> missing_;  // gradients that are not ready, per bucket
  std::vector<WorkPtr> works_;
  std::vector<char> launched_;
  size_t next_ = 0;
  std::vector<char> local_;
  bool separate_header_ = false;  // the header is sent in a separate message
  WorkPtr header_;
};

// --- BufferSync: buffers ---

// BufferSync: synchronises buffers, such as batch norm's running mean, after an update on data-parallel ranks.
//
// `mean` means rank 0's for integer buffers; with `local`, checkpoints contain rank 0's. Buffers of one dtype are sent
// in one message.
class BufferSync {
 public:
  // Moves the buffers' storage into flat tensors.
  BufferSync(const std::vector<NamedBuffer>& buffers, CommunicatorPtr group, SharedBuffers how);
  void start();  // launches; do not touch buffers until finish
  void finish();

 private:
  struct Part {
    at::Tensor flat;
    bool mean = false;
    WorkPtr work;
  };
  CommunicatorPtr group_;
  std::vector<Part> parts_;  // one per dtype
};

// --- Half-precision numbers in messages ---
//
// fp16 numbers are scaled by a power of two, so that the largest magnitude of a message is from 2¹² to 2¹³, far below
// fp16's limit. So small gradients do not become zero. bf16 numbers are not scaled.

// `numbers` must not be none.
at::ScalarType half_dtype(Compression numbers);
// Returns the exponent of the fp16 scale for numbers with the largest magnitude `most`. Returns 0 for zero and
// non-finite values.
int half_exponent(double most);
// Does the same for the magnitudes of a non-empty tensor. Returns a scalar of its dtype, on its device.
at::Tensor half_exponent(const at::Tensor& numbers);

// --- CompressedSum: sums of gradients in half precision ---

// CompressedSum: sums gradient buckets over a group in half precision, which halves the bytes of fp32 messages.
//
// Each rank sums one shard of a bucket. It gets the rounded gradients of the other ranks, adds them in the gradients'
// dtype, rounds the sum and sends it to all ranks. Both rounding errors are kept and added to the next gradients
// (error feedback: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error
// Feedback Fixes SignSGD", ICML 2019; for the sum: Tang et al., "DoubleSqueeze", ICML 2019). So the sum over many
// updates is off by one rounding, and errors do not add up.
// The backend only moves bytes, so the sum has the same bits on every backend.
// Call order: attach; then for each sum launch(…) in order of buckets → finish for each. The order is equal on all
// ranks.
// Threads: the rank's thread, and its backward. Failure: CommError.
class CompressedSum {
 public:
  // `numbers` must not be none.
  CompressedSum(CommunicatorPtr group, Compression numbers);

  // Sets the layout. `wanted`: buckets to sum; the errors of their parameters are kept.
  void attach(const FlatParameters* before, const FlatParameters& flat, const std::function<bool(int bucket)>& wanted);
  void launch(int bucket);
  void finish(int bucket);  // waits; then the bucket's gradients are the sum
  void visit(const StateVisitor& visit) const;

 private:
  struct Message {
    at::Tensor to_send, received;  // 16-bit [ranks, 1 + elements of a shard]: half_exponent, then numbers
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
