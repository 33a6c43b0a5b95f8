// HostRows: ranks along the axis `data` that run on one host keep one copy of each row table and of its moments, in memory
// that all of them map. Every rank looks rows up there; each settles those that are its own (row_blocks.h), and updates these, or,
// where the axis has no other hosts, its part of those that it has touched (touched_sums.h).
//
// So a host holds a table once, however many ranks it has, and a rank's updates are a share of what all have touched. Who has
// written says so (`publish`), on all ranks alike, and none looks at a table (`read`) before all have.
// With several hosts each has a copy, and all hosts have equally many ranks, so that all copies come out bitwise equal.
// Threads: the rank's own. Failure: CommError; Error(out_of_memory) with the size.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/context.h"
#include "core/host_memory.h"
#include "strategies/parts/plain_layers.h"
#include "strategies/parts/rows/row_blocks.h"

namespace convoy {

class HostRows {
 public:
  // Collective along the axis. Null, on all ranks, where ranks are to keep copies of their own: there is no second one on the
  // host, or one cannot map the others' memory or is told not to (launch.host_memory).
  static std::shared_ptr<HostRows> meet(const Context& context);

  // Ranks that share this copy.
  Communicator& group() const { return *group_; }
  // Zeros that all see; all call it in the same order, and none waits for another. Pages take memory when they are first
  // touched, so what does not fit beside the tables before is refused here, and not by the system in the middle of a step.
  at::Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype);
  // Which rows of a table of so many are whose.
  std::shared_ptr<const RowBlocks> blocks(int64_t rows) const;

  // Tells the others that this rank has written, and does not wait for them.
  void publish();
  // Waits until all have, who have made tables too.
  void read();

 private:
  HostRows(const Context& context, std::string label, int rank, int size);

  std::shared_ptr<Channel> channel_;
  std::string label_;
  int rank_, size_;
  CommunicatorPtr group_;
  int64_t made_ = 0, promised_ = 0;                // tables, and their bytes
  std::optional<int64_t> room_;                    // bytes that there were before the first
  std::vector<std::shared_ptr<HostMemory>> kept_;  // until all have it, also where it is given up at once
  bool unpublished_ = false;                       // tables were made since
  WorkPtr publishing_;
  at::Tensor token_;
};

// For PartRequest::layers of ranks that update tables together in every update: row tables of HostRows, or as PlainLayers
// makes them. Collective along the axis `data`; null where no rank shares any.
std::function<std::shared_ptr<Layers>(std::shared_ptr<LayerStore>)> host_row_layers(const Context& context);

}  // namespace convoy
