// SharedRows: ranks of one host along the axis `data` share one copy of each sparse embedding and of its moments, in
// shared memory.
//
// Every rank looks rows up there. Each rank flushes and updates its rows (row_index.h). If the axis has only one host,
// a rank updates its part of the touched rows instead (touched_row_sums.h). So a host stores a table once, for any
// number of ranks, and each rank makes a share of the updates.
// All ranks `publish` after they have written. No rank reads the tables (`read`) before all have published. With
// several hosts each has a copy. All hosts have equally many ranks, so all copies are equal bit by bit.
// Threads: the rank's thread. Failure: CommError; Error(out_of_memory) with the size.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/context.h"
#include "core/control/shared_memory.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/sparse/exchange/row_index.h"

namespace convoy {

class SharedRows {
 public:
  // Collective along the axis. Returns null on all ranks if each rank keeps a copy: no host has a second rank, hosts
  // have different numbers of ranks, or a rank cannot or must not (launch.host_memory) map the others' memory.
  static std::shared_ptr<SharedRows> create(const Context& context);

  // Returns the group of ranks that share this copy.
  Communicator& group() const { return *group_; }
  // Returns shared zeros. All ranks call it in the same order; it does not wait. Pages need memory at their first use,
  // so a table that is too large is refused here instead of failing within a step.
  at::Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype);
  // Returns the distribution of the rows of a table with `rows` rows over the ranks.
  std::shared_ptr<const SparseRowBlocks> blocks(int64_t rows) const;

  // Announces that this rank has written; does not wait for the others.
  void publish();
  // Waits until all ranks have published, also after they created tables.
  void read();
  // Collective. Returns true if all ranks pass true. Publishes too.
  bool agree(bool yes);

 private:
  SharedRows(const Context& context, std::string label, int rank, int size);

  std::shared_ptr<Channel> channel_;
  std::string label_;
  int rank_, size_;
  CommunicatorPtr group_;
  int64_t made_ = 0, requested_ = 0;                 // number of tables made so far; bytes requested for them
  std::optional<int64_t> room_;                      // free bytes before the first table
  std::vector<std::shared_ptr<SharedMemory>> kept_;  // until all ranks have mapped it, even if it is freed at once
  bool unpublished_ = false;                         // tables were made since the last publish
  WorkPtr publishing_;
  at::Tensor token_;
};

// Returns a value for PartRequest::layers: sparse embeddings in SharedRows, or else DefaultLayers. For ranks that
// update tables together in every update. Collective along the axis `data`; null if no rank shares any.
LayersFactory shared_row_layers(const Context& context);

}  // namespace convoy
