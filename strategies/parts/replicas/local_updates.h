// LocalUpdates: replicas that go their own ways between agreements, group of parameters by group (sync_entry.h).
//
// While a group is apart its gradients are not sent: the rank's update scales them by its own rows' weight, and every k
// updates values (on request moments) are averaged along the axis `data`, each rank counting by the weight of the rows that
// it has seen since; under diloco an outer Nesterov step is made along that mean. A rank that saw none counts nothing. Which
// update is whose follows from its number alone, so all ranks issue the same collectives in the same order.
//
// `settle` puts the average in place of the values (moments, buffers) until the next step begins, which goes on with the
// rank's own: evaluations and checkpoints see the average and disturb nothing. Checkpoints hold the average, as every
// layout's, and each rank's own as `replica` entries.
// Loss or gradients of its own that are not finite end the rank, which ends the others: Error(training).
// Memory: diloco two, `settle` 1 + moments times the bytes of the parameters that are apart, the latter until the next step.
// Threads: the rank's own. Failure: CommError; Error(training) from `updated` and `settle`.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/context.h"
#include "strategies/parts/model_part.h"
#include "strategies/parts/replicas/buffer_sync.h"
#include "strategies/parts/replicas/flat_shadow.h"
#include "strategies/parts/replicas/sync_entry.h"
#include "strategies/parts/rows/local_rows.h"
#include "strategies/parts/update.h"

namespace convoy {

class LocalUpdates {
 public:
  // All outlive this object.
  LocalUpdates(const Context& context, SyncPolicy policy, const std::vector<ModelPart*>& parts, Update& update,
               BufferSync& buffers);

  // Some group is apart at some time. Where none ever is, nothing here does anything.
  bool any() const { return policy_.ever_apart(); }
  // `order` cut into buckets (fill_buckets) whose parameters are of one group; those whose gradients are summed longest first.
  std::vector<std::vector<int>> buckets(const std::vector<ParameterPtr>& parameters, const std::vector<int>& order,
                                        double first, double cap) const;
  // The layout is another one from here on; `before`: the old one, null for none. The update has been attached.
  void attach(const FlatParameters* before, const FlatParameters& flat);
  // Whether gradients of the bucket are ever summed.
  bool ever_shared(int bucket) const;

  // A step begins, `first` of an accumulation: the rank's own values are back.
  void begin(bool first);
  void add_loss(const at::Tensor& weight, const at::Tensor& sum);
  // Of the update to come, by bucket: its gradients stay here.
  std::vector<char> apart() const;
  // Whether any gradients are summed in the update to come, on this rank or on others of its replica.
  bool shares() const;
  // Whether buffers are exchanged by the update to come.
  bool shares_buffers() const;
  at::Tensor& own_header() { return own_header_; }  // [2]: weight and sum of the loss of this rank's rows

  void exchange_rows();                        // of tables that are apart at some time: what their update is made of
  void prepare();                              // in front of Update::begin
  void updated(const UpdateFigures& figures);  // behind Update::finish: agrees on what is due

  void settle();
  // What checkpoints need beside visit_parts.
  void visit(const StateVisitor& visit);

 private:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  size_t group_of(int bucket) const { return groups_[static_cast<size_t>(bucket)]; }
  const SyncGroup& group(int bucket) const { return policy_.groups[group_of(bucket)]; }
  at::Tensor fractions() const;
  std::vector<int> buckets_of(const std::function<bool(const SyncGroup&)>& wanted) const;
  void average(const std::vector<int>& values, const std::vector<int>& moments, const at::Tensor& fractions);
  void outer_step(int bucket);
  void agree(int64_t number);
  void agree_on_scale();
  void check(const at::Tensor& finite, const at::Tensor& header, int64_t step) const;
  void keep_own(const std::vector<int>& values, const std::vector<int>& moments);
  bool buffers_drifted(int64_t made) const;

  SyncPolicy policy_;
  const Context& context_;
  CommunicatorPtr data_;
  bool piped_;  // the model's depth is cut: others of this replica have other parameters
  std::vector<ModelPart*> parts_;
  std::vector<NamedBuffer> buffers_;
  Update& update_;
  BufferSync& buffer_sync_;
  LocalRows rows_;
  const FlatParameters* flat_ = nullptr;
  std::vector<size_t> groups_;  // by bucket
  at::Tensor own_header_;
  at::Tensor since_;                            // double [groups]: weight of the rows since they agreed
  FlatShadow before_, momentum_;                // diloco: the values of the last agreement, and the outer momentum
  at::Tensor pending_finite_, pending_header_;  // on CUDA of the update before
  // The rank's own, while the average stands in their place; by bucket, and by slot.
  bool aside_ = false;
  FlatShadow own_values_;
  std::map<int, Named> own_moments_;
  Named own_buffers_;
};

}  // namespace convoy
