// LocalRows: row tables (row_table.h) that ranks update each by its own rows, and average now and then (local_updates.h).
//
// While a group of tables is apart its rows are not exchanged: the update is made of what this rank has touched. Rows that
// any rank has touched since the last agreement are averaged on all of them: ranks tell each other which these are, catch
// them up, and sum their values, each rank's by its weight. Rows that nobody touched are not sent; what their moments still
// move on a rank stays its own until they are touched.
// `put_average` puts the average of all rows in place of the rank's own, which `restore` brings back.
// Sent by each of N ranks at an agreement: (N−1)·(8·tables + 4·own rows) + 2·(N−1)/N·(rows of all)·width·e, with averaged
// moments (1 + k) times the latter. Memory: a byte a row; between put_average and restore the tables with their moments.
// Threads: the rank's own. Failure: CommError.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/communicator.h"
#include "core/state.h"
#include "strategies/parts/replicas/sync_entry.h"
#include "strategies/parts/rows/row_exchange.h"
#include "strategies/parts/update.h"

namespace convoy {

// Those of groups whose gradients are summed by every update.
std::vector<ParameterPtr> summed_tables(const SyncPolicy& policy, const std::vector<ParameterPtr>& tables);

class LocalRows {
 public:
  // Of the tables that `update` has; all outlive this object.
  LocalRows(CommunicatorPtr data, const SyncPolicy& policy, Update& update);

  // Whether any gradients of rows are summed in update `number`.
  bool shares(int64_t number) const;
  // By index of Update::tables: those that are each rank's own in update `number`.
  std::vector<char> apart(int64_t number) const;
  // Sets what update `number` of the tables that are apart at some time is made of.
  void exchange(int64_t number);
  // Update `number` has been made.
  void updated(int64_t number);
  // Averages the groups' rows that were touched since the last time. `fractions`: by group, what this rank's count.
  void average(const std::function<bool(const SyncGroup&)>& wanted, const at::Tensor& fractions);

  // Whether ranks may hold different rows once so many updates are made.
  bool drifted(int64_t made) const;
  // All rows have been settled.
  void put_average(int64_t made, const at::Tensor& fractions);
  void restore();
  // What checkpoints need beside visit_parts.
  void visit(const StateVisitor& visit) const;

 private:
  struct Table {
    size_t index = 0;             // of Update::tables
    size_t group = 0;             // of the policy
    at::Tensor touched;           // uint8 [rows]: since the last agreement
    std::vector<at::Tensor> own;  // values and moments, while averages stand in their place
  };
  // `rows`: that any rank has touched, of each table that is averaged; `told`: row numbers that this rank received.
  void warn_if_more_than_dense(const std::vector<const Table*>& averaged, const std::vector<int64_t>& rows,
                               const std::vector<int64_t>& told);
  const SyncGroup& group(const Table& table) const { return policy_.groups[table.group]; }
  const ParameterPtr& parameter(const Table& table) const { return update_.tables()[table.index]; }
  std::vector<at::Tensor> tensors(const Table& table) const;  // values and moments
  at::Tensor touched_by_any(const Table& table, const at::Tensor& own, const std::vector<int64_t>& counts) const;

  CommunicatorPtr data_;
  const SyncPolicy& policy_;
  Update& update_;
  std::vector<Table> tables_;
  std::map<size_t, std::unique_ptr<RowExchange>> exchanges_;  // by group, until it goes apart
  bool warned_ = false;
};

}  // namespace convoy
