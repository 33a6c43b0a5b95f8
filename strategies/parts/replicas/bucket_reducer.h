// BucketReducer: all-reduces the gradient buckets, each as soon as its gradients and all buckets before it are ready.
//
// Buckets are launched by index, whatever order their gradients come in, so that all ranks issue the same collectives in
// the same order. Call order: attach; then start → ready(…) from backward → flush → wait for each bucket.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "core/communicator.h"
#include "core/state.h"
#include "strategies/parts/flat_parameters.h"
#include "strategies/parts/replicas/sync_entry.h"

namespace convoy {

class CompressedSum;

class BucketReducer {
 public:
  // `overlap` false launches everything in flush.
  BucketReducer(CommunicatorPtr group, bool overlap, Compression numbers = Compression::none);
  ~BucketReducer();

  // The layout from here on; `before`: the one until now, null for none. `shared`: by bucket, whether it is ever sent.
  void attach(const FlatParameters* before, const FlatParameters& flat, const std::function<bool(int)>& shared);
  // `apart`: by bucket, those that stay; empty: none. `header`: the loss' figures are summed, also where bucket 0 stays.
  void start(std::vector<char> apart = {}, bool header = true);
  void ready(int parameter);
  void flush();
  void wait(int bucket);  // the header has come with bucket 0
  // What compression left over, of this rank.
  void visit(const StateVisitor& visit) const;

 private:
  void launch_ready();
  bool stays(size_t bucket) const { return bucket < apart_.size() && apart_[bucket] != 0; }

  CommunicatorPtr group_;
  bool overlap_;
  std::unique_ptr<CompressedSum> narrow_;  // null: as they are
  const FlatParameters* flat_ = nullptr;
  std::vector<size_t> missing_;  // gradients, per bucket
  std::vector<WorkPtr> works_;
  std::vector<char> launched_;
  size_t next_ = 0;
  std::vector<char> apart_;
  bool header_alone_ = false;  // by a message of its own
  WorkPtr header_;
};

}  // namespace convoy
