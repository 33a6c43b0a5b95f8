// ReplicatedData: every rank of the axis `data` has the same parameters. Gradients are all-reduced in buckets during
// the backward pass, and every rank makes the same update.
//
// Buckets first have the reverse order of creation. If a bucket would wait too long, all ranks lay out their storage
// in the order in which rank 0's gradients become ready. They do so in the first step, before they send anything. So a
// resumed run reduces the same sums in the same order as an uninterrupted one.
// The weight and the sum of the loss are at the front of bucket 0. So uneven shares and ranks without rows need no
// extra message. With pipeline parallelism the ranks of the last stage send them along the axis `pipeline`.
//
// Parameters with other kinds of synchronisation (`sync`, local_updates.h) have separate buckets, which are not sent
// while they are local.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strategies/common/memory/flat_parameters.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/common/step/mesh_strategy.h"
#include "strategies/common/step/overlap_choice.h"
#include "strategies/replicas/bucket_reducer.h"
#include "strategies/replicas/local_updates.h"
#include "strategies/sparse/exchange/row_exchange.h"

namespace convoy {

struct ReplicatedOptions : StepOptions {
  OptimizerFactory optimizer = {};
  int number = 0;  // number of data axes that this job made before
};

class ReplicatedData : public DataAxis, public Recordable {
 public:
  // Collective along the axis: calls check_equal_parameters and share_foreign_values.
  ReplicatedData(const Context& context, std::vector<ModelPart*> parts, const ReplicatedOptions& options);

  void begin(bool first, bool updates) override;
  void expect(const Batch& batch) override { rows_->expect(batch); }
  Recordable* recordable() override { return this; }
  void add_loss(const Loss& loss) override;
  void last_backward(int part) override;
  void keep() override;
  UpdateStatistics update(double nominal, bool log_step) override;
  void flush() override {
    flush_rows([this] { update_.flush(); });
    local_updates_->flush();
  }
  void flush_and_copy(int64_t most) override {
    // Averages change rows after they were flushed.
    if (local_updates_->any() || !rows_->updates_together() ||
        !update_.prepare_copies(most, group_->size(), [this](bool yes) { return rows_->agree(yes); }))
      return flush();
    flush_rows([this] { update_.flush_and_copy(); });
  }
  void flush_for_evaluation() override {
    // Averages need flushed rows.
    local_updates_->any() ? flush() : rows_->read();
  }
  void visit_state(const StateVisitor& visit) override;
  void visit_gradients(const StateVisitor& visit) override { convoy::visit_gradients(*flat_, update_, owner(), visit); }
  void state_restored() override {
    update_.restored();
    rows_->written();
  }
  void continue_training() override { local_updates_->begin(false); }
  void set_rates() override { update_.set_rate(); }
  std::vector<ParameterPtr> equal_parameters() const override {
    return options_.sync.ever_local() ? std::vector<ParameterPtr>() : parameters_;
  }
  std::string obstacle() const override;

 private:
  template <class Flush>
  void flush_rows(Flush flush) {
    // Waits until no rank reads rows that others are about to flush.
    rows_->written();
    rows_->read();
    flush();
    rows_->written();
    rows_->read();
  }
  StateOwner owner() const { return {group_->rank(), group_->size(), first_of_job_}; }
  void ready(int parameter);
  void lay_out(const std::vector<int>& order);
  void start_reducing();
  void take_order_of_rank_0();
  bool waits_too_long() const;
  void share_header();
  void sum_partial();
  std::vector<at::Tensor> messages_with_rows() const;

  ReplicatedOptions options_;
  double late_bytes_ = 0;  // bytes of other gradients that a bucket may wait for before buckets get a new layout
  Component optimizer_;
  at::Device device_;
  std::vector<ParameterPtr> parameters_;  // parameters of all model parts
  std::vector<int> part_of_;              // by parameter
  std::vector<ParameterPtr> partial_;     // sorted by name, so that all ranks of a group sum them in the same order
  std::unique_ptr<FlatParameters> flat_;
  OverlapChoice overlap_;
  BucketReducer reducer_;
  std::unique_ptr<RowExchange> rows_;
  std::vector<at::Tensor> with_rows_;  // dense gradients that are sent with rows (row_exchange.h)
  std::optional<BufferSync> buffer_sync_;
  std::optional<LocalUpdates> local_updates_;
  std::vector<int> order_;  // order in which gradients became ready, while it is recorded
  std::vector<char> seen_;  // by parameter: order_ contains it
  bool order_known_ = false;
  bool reducing_ = false;      // this step launches buckets
  bool first_micro_ = true;    // the next loss overwrites the header
  std::vector<char> sending_;  // by part: its last backward runs
};

}  // namespace convoy
