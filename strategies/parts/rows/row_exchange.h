// RowExchange: how the ranks of one group come to the same update of row tables from what each of them has touched.
//
// Two ways: all ranks have all rows and tell all others what they touched (row_gather.h), or each row has one owner, who
// tells what it holds and is told its gradients (row_shares.h).
// Call order: begin at the start of each accumulation; lookups of tables and their backwards; run.
// Threads: the rank's own. Failure: CommError.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "core/batch.h"
#include "core/communicator.h"
#include "core/state.h"
#include "strategies/parts/parameter.h"
#include "strategies/parts/replicas/sync_entry.h"

namespace convoy {

class RowExchange {
 public:
  virtual ~RowExchange() = default;
  virtual void begin() {}
  // The next forwards are of this batch, on all ranks: rows that it names may be fetched for all tables at once. Collective.
  virtual void expect(const Batch&) {}
  // Sums `dense` (contiguous, the same on all ranks) in place, and sets what the tables' update is made of. Collective.
  virtual void run(const std::vector<at::Tensor>& dense) = 0;
  // Whether all sums that `run` came to, those too that other ranks update, are finite for certain; the same on all ranks.
  virtual bool finite_sums() const { return false; }
  // Values or moments of tables were written to, on all ranks; others look at them after their next `read`, or begin. Collective.
  virtual void written() {}
  virtual void read() {}
  // From here until the next begin what the update was made of is of all rows, those too that others update. Collective.
  virtual void complete() {}
  // What it keeps from one update to the next, of this rank alone.
  virtual void visit(const StateVisitor&) const {}
};

// The same tables in the same order on every rank; collective. All of them are dealt out to ranks, or none. `numbers`: what
// gradients of rows are sent in.
std::unique_ptr<RowExchange> make_row_exchange(const CommunicatorPtr& group, std::vector<ParameterPtr> tables,
                                               Compression numbers = Compression::none);
// Whether these tables are dealt out.
bool dealt_out(const std::vector<ParameterPtr>& tables);

}  // namespace convoy
