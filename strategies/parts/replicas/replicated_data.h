// ReplicatedData: every rank of the axis `data` holds the same parameters; their gradients are all-reduced in buckets,
// launched while backward still runs, and every rank makes the same update.
//
// Buckets are filled in the order in which the gradients of the first step become ready on the axis' rank 0; all ranks take
// that order, lay their storage out anew and only then send for the first time. So a run that was resumed reduces the same
// sums in the same order as one that was not. The loss' weight and sum travel in front of bucket 0, so that ragged shares
// and ranks without rows need nothing of their own; where the model is cut along its depth, the ranks of the last part hand
// them on along the axis `pipeline`.
//
// Parameters that ranks agree on in another way (`sync`, local_updates.h) have buckets of their own, which stay.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strategies/parts/batch_reader.h"
#include "strategies/parts/data_axis.h"
#include "strategies/parts/flat_parameters.h"
#include "strategies/parts/gradient_collector.h"
#include "strategies/parts/model_part.h"
#include "strategies/parts/recordable.h"
#include "strategies/parts/replicas/bucket_reducer.h"
#include "strategies/parts/replicas/buffer_sync.h"
#include "strategies/parts/replicas/local_updates.h"
#include "strategies/parts/rows/row_exchange.h"

namespace convoy {

struct ReplicatedOptions {
  SyncPolicy sync;                // how often ranks agree, and on what
  double first_bytes = 0;         // of the first bucket
  double cap_bytes = 0;           // of the others; 0: as bucket_cap says
  bool overlap = true;            // false: everything is sent behind backward
  std::string buffers = "local";  // see BufferSync
};

// Of a strategy that has replicated_data_options() (parts/replicas/replicated_entry.h) and replica_sync_option().
ReplicatedOptions replicated_options(const Options& strategy);

class ReplicatedData : public DataAxis, public BatchReader, public Recordable {
 public:
  // Takes part in check_equal_start and share_foreign_values along the axis.
  ReplicatedData(const Context& context, std::vector<ModelPart*> parts, const ReplicatedOptions& options);

  void begin(bool first, bool updates) override;
  void expect(const Batch& batch) override { rows_->expect(batch); }
  void add_loss(const Loss& loss) override;
  void last_backward(int part) override;
  void keep() override;
  UpdateFigures update(double nominal, bool told) override;
  void settle() override {
    // No rank still looks at what others settle.
    rows_->written();
    rows_->read();
    update_.settle();
    rows_->written();
    rows_->read();
    apart_->settle();
  }
  void settle_for_evaluation() override {
    // Averages are of settled rows.
    apart_->any() ? settle() : rows_->read();
  }
  void visit_state(const StateVisitor& visit) override;
  void state_restored() override {
    update_.restored();
    rows_->written();
  }
  void renumbered(int64_t steps) override { update_.renumbered(steps); }
  void set_rates() override { update_.set_rate(); }
  std::string obstacle() const override;

 private:
  void ready(int parameter);
  void lay_out(const std::vector<int>& order);
  void start_reducing();
  void agree_on_order();
  bool sends_late() const;
  void share_header();
  void sum_partial();
  std::vector<at::Tensor> messages_with_rows() const;
  void exchange_rows();

  ReplicatedOptions options_;
  double late_bytes_ = 0;  // of others' gradients that a bucket may wait for before buckets are laid out anew
  Component optimizer_;
  CommunicatorPtr group_;     // the axis data
  CommunicatorPtr pipeline_;  // the axis along which the model's depth is cut
  at::Device device_;
  bool first_of_job_;
  std::vector<ModelPart*> parts_;
  std::vector<ParameterPtr> parameters_;  // of all parts
  std::vector<int> part_of_;              // by parameter
  std::vector<ParameterPtr> partial_;     // by name, so that all ranks of a group sum them in the same order
  std::unique_ptr<FlatParameters> flat_;
  Update update_;
  BucketReducer reducer_;
  std::unique_ptr<RowExchange> rows_;
  std::vector<at::Tensor> with_rows_;  // the dense gradients' messages, where they travel with rows (row_exchange.h)
  std::optional<BufferSync> buffer_sync_;
  std::optional<LocalUpdates> apart_;
  std::vector<std::unique_ptr<GradientCollector>> collectors_;  // one per part
  std::vector<int> order_;                                      // in which gradients became ready, while it is recorded
  std::vector<char> seen_;                                      // by parameter: it stands in order_
  std::vector<int> laid_out_;                                   // the order of storage
  bool order_known_ = false;
  bool reducing_ = false;      // this step launches buckets
  bool first_micro_ = true;    // the header is still to be overwritten
  std::vector<char> sending_;  // by part: its last backward runs
};

}  // namespace convoy
