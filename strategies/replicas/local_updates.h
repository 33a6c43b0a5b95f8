// Local updates of replicas: between synchronisations each rank trains on its share of the rows.
//
// Sections: LocalRows, for sparse embeddings; LocalUpdates, for all other parameters and the buffers. LocalUpdates has
// the LocalRows of its rank.
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

// Returns tables of groups whose gradients are summed in every update.
std::vector<ParameterPtr> summed_tables(const SyncPolicy& policy, const std::vector<ParameterPtr>& tables);

// LocalRows: sparse embeddings (sparse_embedding.h) that each rank updates from its share of the rows. Ranks average
// them periodically.
//
// While a group of tables is local, its rows are not exchanged: the update uses the rows that this rank touched. A
// synchronisation averages the rows that any rank touched since the last one. Ranks exchange the row numbers, catch the
// rows up, and sum their values by weight. Untouched rows are not sent. The effect of their moments stays local until
// the rows are touched. `put_average` replaces the rank's rows by the average of all rows; `restore` undoes this.
// Sent by each of N ranks at a synchronisation: (N−1)·(8·tables + 4·local rows) + 2·(N−1)/N·(rows of all)·width·e; with
// averaged moments (1 + k) times the second term.
// Memory: a byte per row; between put_average and restore the tables with their moments.
// Threads: the rank's thread. Failure: CommError.
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

// --- LocalUpdates: parameters and buffers ---

// LocalUpdates: replicas train locally between synchronisations, by group of parameters
// (strategies/plans/options/step_options.h).
//
// The gradients of a local group are not sent: the update scales them by the weight of this rank's rows. Every k
// updates the values (on request also moments) are averaged along the axis `data`. A rank counts by the weight of its
// rows since the last synchronisation; a rank without rows does not count. Under diloco an outer Nesterov step follows
// the averaged change.
// The number of an update determines if a group is local. So all ranks issue the same collectives in the same order.
//
// `flush` replaces values, moments and buffers by the average until the next step begins. The next step continues with
// the rank's values. So evaluations and checkpoints see the average and change nothing. Checkpoints contain the
// average, as in every layout, and each rank's values as `replica` entries.
// A non-finite loss or gradient on one rank ends that rank, and with it the job: Error(training).
// Memory, in bytes of the local parameters: 2 for diloco; 1 + moments for `flush`, until the next step.
// Threads: the rank's thread. Failure: CommError; Error(training) from `updated` and `flush`.
class LocalUpdates {
 public:
  // All arguments outlive this object.
  LocalUpdates(const Context& context, SyncPolicy policy, const std::vector<ModelPart*>& parts, Update& update,
               BufferSync& buffers);

  // True if any group is ever local. If false, gradients are always summed.
  bool any() const { return policy_.ever_local(); }
  // Splits `order` into buckets (fill_buckets) of one group each. Groups with summed gradients come first, sorted by
  // the number of summed updates.
  std::vector<std::vector<int>> buckets(const std::vector<ParameterPtr>& parameters, const std::vector<int>& order,
                                        double first, double cap) const;
  // Sets the layout. `before`: the previous layout, or null. The update must be attached.
  void attach(const FlatParameters* before, const FlatParameters& flat);
  // True if gradients of the bucket are ever summed.
  bool ever_shared(int bucket) const;

  // Begins a step; restores the rank's values. `first`: first step of an accumulation.
  void begin(bool first);
  void add_loss(const at::Tensor& weight, const at::Tensor& sum);
  // Returns by bucket if it is local in the next update.
  std::vector<char> local_buckets() const;
  // True if the next update sums any gradients, on this rank or on others of its replica.
  bool sums_gradients() const;
  // True if the next update synchronises buffers.
  bool synchronises_buffers() const;
  at::Tensor& local_header() { return local_header_; }  // [2]: weight and sum of the loss over this rank's rows

  void exchange_rows();                              // sets the update of tables that are ever local
  void prepare();                                    // call it before Update::begin
  void updated(const UpdateStatistics& statistics);  // call it after Update::finish: synchronises due groups

  void flush();
  // Visits the state that visit_parts leaves out.
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
  bool pipeline_parallel_;  // pipeline parallel: other ranks of this replica have other parameters
  std::vector<ModelPart*> parts_;
  std::vector<NamedBuffer> buffers_;
  Update& update_;
  BufferSync& buffer_sync_;
  LocalRows rows_;
  const FlatParameters* flat_ = nullptr;
  std::vector<size_t> groups_;  // by bucket
  at::Tensor local_header_;
  at::Tensor weight_since_;                     // double [groups]: weight of rows since the last synchronisation
  FlatShadow before_, momentum_;                // diloco: values of the last synchronisation; outer momentum
  at::Tensor pending_finite_, pending_header_;  // on CUDA: flags and header of the previous update
  // The rank's values while the average replaces them; by bucket, and by slot.
  bool averaged_ = false;
  FlatShadow local_values_;
  std::map<int, NamedTensors> local_moments_;
  NamedTensors local_buffers_;
};

}  // namespace convoy
