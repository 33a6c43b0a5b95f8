// RowExchange: makes equal updates of sparse embeddings on all ranks of a group from the rows that each rank touched.
//
// Two kinds: each rank holds all rows and gathers the touched rows of all ranks (row_gather.h); or each row has one
// owner, which serves its value and receives its gradients (sharded_rows.h).
// Call order: begin at the start of each accumulation; look-ups of tables and their backwards; run.
// Threads: the rank's thread. Failure: CommError.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "core/batch.h"
#include "core/communicator.h"
#include "core/state.h"
#include "strategies/sparse/half_precision_rows.h"

namespace convoy {

class RowExchange {
 public:
  // Takes the same tables in the same order on every rank. `numbers`: compression of the rows' gradients.
  RowExchange(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers);
  virtual ~RowExchange() = default;
  virtual void begin() {}
  // Collective. Announces the batch of the next forwards. Rows that it names may be fetched for all tables at once.
  virtual void expect(const Batch&) {}
  // Collective. Sums `dense` (contiguous, equal shapes on all ranks) in place, and sets the update of each table.
  virtual void run(const std::vector<at::Tensor>& dense) = 0;
  // True if all sums of `run` are surely finite, with those that other ranks update; equal on all ranks.
  virtual bool finite_sums() const { return false; }
  // Collective. Announces that values or moments of tables were written. Others see them after their next `read` or
  // begin.
  virtual void written() {}
  virtual void read() {}
  // True if all ranks of the group share one copy of each table.
  virtual bool updates_together() const { return false; }
  // Collective. Returns true if all ranks pass true. Only if updates_together().
  virtual bool agree(bool yes) { return yes; }
  // Collective. Extends the update to all rows, with those that other ranks update, until the next begin.
  virtual void complete() {}
  // Visits compression errors, which are local to this rank.
  void visit(const StateVisitor& visit) const;

 protected:
  int64_t number_bytes(size_t table) const;                  // bytes of one row number in a message
  int64_t gradient_bytes(size_t table, int64_t rows) const;  // bytes of their gradients in a message
  // Rank 0 warns once if ranks received more bytes of rows than the tables' dense gradients would take.
  void warn_if_more_than_dense(int64_t received);

  CommunicatorPtr group_;
  std::vector<ParameterPtr> tables_;
  std::vector<HalfPrecisionRows> compressed_;  // by table; empty without compression

 private:
  bool warned_ = false;
};

// Collective. All tables are sharded, or none. Implemented in strategies/sparse/sharded_rows.cpp.
std::unique_ptr<RowExchange> make_row_exchange(const CommunicatorPtr& group, std::vector<ParameterPtr> tables,
                                               Compression numbers = Compression::none);
// Returns true if these tables are sharded.
bool sharded(const std::vector<ParameterPtr>& tables);

}  // namespace convoy
