// Local updates of replicas: between synchronisations each rank updates its replica from its share of the rows only.
//
// Sections: LocalRows, for sparse embeddings; LocalUpdates, for all other parameters and the buffers. A LocalUpdates
// contains the LocalRows of its rank.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "core/context.h"
#include "core/state.h"
#include "strategies/common/memory/flat_parameters.h"
#include "strategies/common/step/mesh_strategy.h"
#include "strategies/common/step/update.h"
#include "strategies/plans/options/step_options.h"
#include "strategies/replicas/bucket_reducer.h"
#include "strategies/sparse/exchange/row_exchange.h"

namespace convoy {

// --- LocalRows: sparse embeddings ---

// Returns the tables whose synchronisation group sums gradients in every update.
std::vector<ParameterPtr> summed_tables(const SyncPolicy& policy, const std::vector<ParameterPtr>& tables);

// LocalRows: sparse embeddings (sparse_embedding.h) that each rank updates from its share of the rows. Ranks average
// them periodically.
//
// While a group of tables is local, its rows are not exchanged: the update uses the rows that this rank touched. A
// synchronisation averages the rows that any rank touched since the last one. Ranks exchange the row numbers, catch the
// rows up, and sum their values by weight. Untouched rows are not sent: if their moments change them, the ranks' values
// differ until the rows are touched. `put_average` replaces all rows by the ranks' average; `restore` undoes this.
// Bytes that each of N ranks sends at a synchronisation, with e bytes per element and k moments:
// (N−1)·(8·tables + 4·(rows touched by this rank)) + 2·(N−1)/N·(rows touched by any rank)·width·e. If moments are
// averaged too, the second term is 1 + k times as large.
// Memory: a byte per row; between put_average and restore also a copy of the tables and their moments.
// Threads: the rank's thread. Failure: CommError.
class LocalRows {
 public:
  // Uses the tables of `update`. All arguments outlive this object.
  LocalRows(CommunicatorPtr data, const SyncPolicy& policy, Update& update);

  // True if update `number` sums any gradients of rows.
  bool sums_gradients(int64_t number) const;
  // Returns which tables are local in update `number`, by index of Update::tables.
  std::vector<char> local_tables(int64_t number) const;
  // Collective. Sets the rows of update `number`, for tables that are ever local: this rank's rows if the table is
  // local in this update, else those of all ranks.
  void exchange(int64_t number);
  // Records that update `number` has been made.
  void updated(int64_t number);
  // Collective. Averages the touched rows of `wanted` groups. `fractions`: by group, the weight of this rank's values;
  // the weights of all ranks add up to 1.
  void average(const std::function<bool(const SyncGroup&)>& wanted, const at::Tensor& fractions);

  // True if ranks may hold different rows after `made` updates.
  bool drifted(int64_t made) const;
  // Collective. Requires that all rows are flushed. `made`, `fractions`: as above.
  void put_average(int64_t made, const at::Tensor& fractions);
  void restore();
  // Visits this rank's values and moments, and which rows are touched; visit_parts leaves these out.
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

// --- LocalUpdates: parameters and buffers ---

// LocalUpdates: replicas train locally between synchronisations. Each synchronisation group of parameters has its own
// rule (SyncGroup in strategies/plans/options/step_options.h).
//
// The gradients of a local group are not sent: the update divides them by the weight of this rank's rows. Every `every`
// updates the values (on request also moments) are averaged along the axis `data`. In this mean a rank counts by the
// weight of its rows since the last synchronisation; a rank without rows does not count. Under diloco an outer
// optimizer (SGD, by default with Nesterov momentum) then updates the values from the averaged change.
// The number of an update determines if a group is local. So all ranks issue the same collectives in the same order.
//
// `flush` replaces values, moments and buffers by the average until the next step begins. The next step continues with
// the rank's values. So evaluations and checkpoints use the average and do not affect training. Checkpoints contain the
// average, as in every layout, and each rank's values as `replica` entries.
// A non-finite loss or gradient on one rank ends that rank, and with it the job: Error(training).
// Memory, in multiples of the bytes of local parameters: 2 for diloco; from `flush` to the next step, 1 + the number of
// moments.
// Threads: the rank's thread. Failure: CommError; Error(training) from `updated` and `flush`.
class LocalUpdates {
 public:
  // All arguments outlive this object.
  LocalUpdates(const Context& context, SyncPolicy policy, const std::vector<ModelPart*>& parts, Update& update,
               BufferSync& buffers);

  // True if any group is ever local. If false, gradients are always summed.
  bool any() const { return policy_.ever_local(); }
  // Splits `order` into buckets (fill_buckets), each with parameters of one group. Groups that always sum gradients
  // come first, then those that sum them in the most updates before they become local.
  std::vector<std::vector<int>> buckets(const std::vector<ParameterPtr>& parameters, const std::vector<int>& order,
                                        double first, double cap) const;
  // Sets the layout. `before`: the previous layout, or null. The update must be attached.
  void attach(const FlatParameters* before, const FlatParameters& flat);
  // True if gradients of the bucket are ever summed.
  bool ever_shared(int bucket) const;

  // Begins a step; restores the rank's values after `flush`. `first`: first step of an accumulation.
  void begin(bool first);
  void add_loss(const at::Tensor& weight, const at::Tensor& sum);  // adds to local_header()
  // Returns flags by bucket: 1 if it is local in the next update.
  std::vector<char> local_buckets() const;
  // True if the next update sums any gradients, on this rank or on others of its replica.
  bool sums_gradients() const;
  // True if the next update synchronises buffers.
  bool synchronises_buffers() const { return !any() || !buffers_drifted(update_.made() + 1); }
  at::Tensor& local_header() { return local_header_; }  // [2]: weight and sum of the loss over this rank's rows

  void exchange_rows() { rows_.exchange(update_.made()); }  // LocalRows::exchange for the next update
  void prepare();                                           // call it before Update::begin
  void updated(const UpdateStatistics& statistics);         // call it after Update::finish: synchronises due groups

  void flush();
  // Visits this rank's state that visit_parts leaves out: `replica` entries, and the outer optimizer's state.
  void visit(const StateVisitor& visit);

 private:
  size_t group_of(int bucket) const { return groups_[size_t(bucket)]; }
  const SyncGroup& group(int bucket) const { return policy_.groups[group_of(bucket)]; }
  at::Tensor fractions() const;
  std::vector<int> buckets_of(const std::function<bool(const SyncGroup&)>& wanted) const;
  void average(const std::vector<int>& values, const std::vector<int>& moments, const at::Tensor& fractions);
  void outer_step(int bucket);
  void synchronise(int64_t number);
  void synchronise_loss_scale();
  void check(const at::Tensor& finite, const at::Tensor& header, int64_t step) const;
  void save_local(const std::vector<int>& values, const std::vector<int>& moments);
  bool buffers_drifted(int64_t made) const;

  SyncPolicy policy_;
  const Context& context_;
  CommunicatorPtr data_;
  bool pipeline_parallel_;  // other ranks of this replica have other parameters
  std::vector<ModelPart*> parts_;
  std::vector<NamedBuffer> buffers_;
  Update& update_;
  BufferSync& buffer_sync_;
  LocalRows rows_;
  const FlatParameters* flat_ = nullptr;
  std::vector<size_t> groups_;  // by bucket: index of its group in the policy
  at::Tensor local_header_;
  at::Tensor weight_since_;                     // double [groups]: weight of rows since the last synchronisation
  FlatShadow before_, momentum_;                // diloco: values of the last synchronisation; outer momentum
  at::Tensor pending_finite_, pending_header_;  // on CUDA: flag and header of the previous update, not yet checked
  // The rank's values while the average replaces them: parameters by bucket, moments by slot.
  bool averaged_ = false;
  FlatShadow local_values_;
  std::map<int, NamedTensors> local_moments_;
  NamedTensors local_buffers_;
};

}  // namespace convoy
