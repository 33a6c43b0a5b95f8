// LocalRows: sparse embeddings (sparse_embedding.h) that each rank updates from its share of the rows. Ranks average
// them periodically (local_updates.h).
//
// While a group of tables is local, its rows are not exchanged: the update uses the rows that this rank touched. A
// synchronisation averages the rows that any rank touched since the last one. Ranks exchange the row numbers, catch the
// rows up, and sum their values by weight. Untouched rows are not sent. The effect of their moments stays local until
// the rows are touched. `put_average` replaces the rank's rows by the average of all rows; `restore` undoes this.
// Sent by each of N ranks at a synchronisation: (N−1)·(8·tables + 4·local rows) + 2·(N−1)/N·(rows of all)·width·e; with
// averaged moments (1 + k) times the second term.
// Memory: a byte per row; between put_average and restore the tables with their moments.
// Threads: the rank's thread. Failure: CommError.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/communicator.h"
#include "core/state.h"
#include "strategies/common/step/update.h"
#include "strategies/plans/options/step_options.h"
#include "strategies/sparse/exchange/row_exchange.h"

namespace convoy {

// Returns tables of groups whose gradients are summed in every update.
std::vector<ParameterPtr> summed_tables(const SyncPolicy& policy, const std::vector<ParameterPtr>& tables);

class LocalRows {
 public:
  // Uses the tables of `update`. All arguments outlive this object.
  LocalRows(CommunicatorPtr data, const SyncPolicy& policy, Update& update);

  // True if update `number` sums any gradients of rows.
  bool sums_gradients(int64_t number) const;
  // Returns which tables are local in update `number`, by index of Update::tables.
  std::vector<char> local_tables(int64_t number) const;
  // Sets the rows of update `number`, for tables that are ever local.
  void exchange(int64_t number);
  // Records that update `number` has been made.
  void updated(int64_t number);
  // Averages the groups' rows that were touched since the last time. `fractions`: weight of this rank, by group.
  void average(const std::function<bool(const SyncGroup&)>& wanted, const at::Tensor& fractions);

  // True if ranks may hold different rows after `made` updates.
  bool drifted(int64_t made) const;
  // Requires that all rows are flushed.
  void put_average(int64_t made, const at::Tensor& fractions);
  void restore();
  // Visits the state that visit_parts leaves out.
  void visit(const StateVisitor& visit) const;

 private:
  struct Table {
    size_t index = 0;               // index in Update::tables
    size_t group = 0;               // index of the group in the policy
    at::Tensor touched;             // uint8 [rows]: touched since the last synchronisation
    std::vector<at::Tensor> local;  // values and moments of this rank, while averages replace them
  };
  // `rows`: number of rows that any rank touched, for each averaged table; `received`: row numbers that this rank
  // received.
  void warn_if_more_than_dense(const std::vector<const Table*>& averaged, const std::vector<int64_t>& rows,
                               const std::vector<int64_t>& received);
  const SyncGroup& group(const Table& table) const { return policy_.groups[table.group]; }
  const ParameterPtr& parameter(const Table& table) const { return update_.tables()[table.index]; }
  std::vector<at::Tensor> tensors(const Table& table) const;  // values and moments
  at::Tensor touched_by_any(const Table& table, const at::Tensor& own, const std::vector<int64_t>& counts) const;

  CommunicatorPtr data_;
  const SyncPolicy& policy_;
  Update& update_;
  std::vector<Table> tables_;
  std::map<size_t, std::unique_ptr<RowExchange>> exchanges_;  // by group, until it becomes local
  bool warned_ = false;
};

}  // namespace convoy
