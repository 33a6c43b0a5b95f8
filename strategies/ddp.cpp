// ddp: every rank of the axis `data` holds everything and trains on its share of each global batch.
//
// Replicated: parameters, gradients, moments, buffers. Sharded: the batch's rows. Sent per update, by each of N ranks with
// P parameters of e bytes: one all-reduce of P·e bytes in buckets, 2·(N−1)/N·P·e by ring; the loss' weight and sum travel
// in front of bucket 0, so that ragged shares and ranks without rows need nothing of their own. Memory per rank:
// P·e·(2 + k) with k moments, and what backward keeps of the share.
//
// Buckets are filled in the order in which rank 0's first backward finishes its gradients; all ranks take that order, lay
// their storage out anew and only then send for the first time. So a run that was resumed reduces the same sums in the
// same order as one that was not.
#include "strategies/ddp.h"

#include <ATen/ATen.h>

#include <numeric>

#include "strategies/parts/bucket_reducer.h"
#include "strategies/parts/buffer_sync.h"
#include "strategies/parts/equal_start.h"
#include "strategies/parts/flat_parameters.h"
#include "strategies/parts/gradient_collector.h"
#include "strategies/parts/replica.h"
#include "strategies/parts/replicated_state.h"
#include "strategies/parts/update.h"

namespace convoy {
namespace {

constexpr double mib = 1024 * 1024;

class Ddp : public Strategy {
 public:
  explicit Ddp(const Options& options)
      : every_(options.section("sync").integer("every")),
        first_bytes_(options.real("first_bucket_mb") * mib),
        cap_bytes_(options.real("bucket_cap_mb") * mib),
        overlap_(options.boolean("overlap")),
        buffers_(options.text("buffers")) {}

  void setup(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) override {
    optimizer_ = context.config.optimizer;
    group_ = context.axis("data");
    replica_.emplace(context, std::move(model), std::move(loss));
    check_equal_start(context, *replica_);
    share_foreign_values(*replica_, *group_);
    std::vector<int> order(replica_->parameters().size());
    std::iota(order.rbegin(), order.rend(), 0);
    reducer_.emplace(group_, overlap_);
    buffer_sync_.emplace(replica_->buffers(), group_, buffers_);
    update_.emplace(context, every_);
    lay_out(order);
    laid_out_ = order;
    collector_.emplace(replica_->parameters(), replica_->state(), [this](int parameter) { ready(parameter); });
  }

  Sampling sampling() const override { return {group_->rank(), group_->size(), 0}; }

  StepResult step(const StepInput& input) override {
    const bool updates = micro_ + 1 == every_ || input.flush;
    const Loss loss = replica_->forward(input.batch, input.step);
    const double nominal = std::max<double>(1, static_cast<double>(input.batch.nominal_rows));
    if (micro_ == 0) collector_->begin();
    flat_->add_to_header(loss.weight, loss.sum.detach(), micro_ == 0);
    reducing_ = updates && order_known_;
    if (reducing_) reducer_->start(*flat_);
    replica_->backward(loss, nominal);
    if (!order_known_) agree_on_order();
    micro_ = updates ? 0 : micro_ + 1;

    StepResult result;
    result.metrics = {loss_metric(loss)};
    result.updated = updates;
    if (updates) finish_update(nominal, result);
    return result;
  }

  std::vector<Metric> evaluate(const Batch& batch) override { return replica_->evaluate(batch); }
  void settle() override {}
  void visit_state(const StateVisitor& visit) override {
    visit_replicated_state(*replica_, *flat_, *update_, group_->rank(), group_->size(), visit);
  }
  void state_restored() override { update_->restored(); }

 private:
  void ready(int parameter) {
    if (!order_known_) order_.push_back(parameter);
    if (reducing_) reducer_->ready(parameter);
  }

  void finish_update(double nominal, StepResult& result) {
    collector_->finish();
    if (!reducing_) reducer_->start(*flat_);
    reducing_ = false;
    reducer_->flush();
    buffer_sync_->start();
    const auto buckets = static_cast<int>(flat_->buckets().size());
    for (int bucket = 0; bucket < buckets; ++bucket) {
      reducer_->wait(bucket);
      if (bucket == 0) update_->begin(nominal);
      update_->reduced(bucket);
    }
    const UpdateFigures figures = update_->finish();
    buffer_sync_->finish();
    result.finite = figures.finite;
    result.gradient_norm = figures.norm;
    result.learning_rate = figures.learning_rate;
  }

  void lay_out(const std::vector<int>& order) {
    const auto buckets = fill_buckets(replica_->parameters(), order, first_bytes_, cap_bytes_);
    auto flat = std::make_unique<FlatParameters>(replica_->parameters(), buckets, optimizer_);
    if (flat_) flat->header().copy_(flat_->header());
    update_->attach(*flat);
    flat_ = std::move(flat);
  }

  // Rank 0's order for all; what it did not use comes last.
  void agree_on_order() {
    std::vector<char> seen(replica_->parameters().size(), 0);
    for (int parameter : order_) seen[static_cast<size_t>(parameter)] = 1;
    for (size_t index = seen.size(); index-- > 0;)
      if (!seen[index]) order_.push_back(static_cast<int>(index));
    at::Tensor shared = at::tensor(at::ArrayRef<int>(order_), at::kLong).to(replica_->device());
    group_->broadcast(shared, 0, {"order of gradients", {}})->wait();
    shared = shared.cpu();
    for (size_t i = 0; i < order_.size(); ++i)
      order_[i] = static_cast<int>(shared[static_cast<int64_t>(i)].item<int64_t>());
    if (order_ != laid_out_) lay_out(order_);
    order_known_ = true;
  }

  int64_t every_;
  double first_bytes_, cap_bytes_;
  bool overlap_;
  std::string buffers_;
  Component optimizer_;
  CommunicatorPtr group_;
  std::optional<Replica> replica_;
  std::unique_ptr<FlatParameters> flat_;
  std::optional<Update> update_;
  std::optional<BucketReducer> reducer_;
  std::optional<BufferSync> buffer_sync_;
  std::optional<GradientCollector> collector_;
  std::vector<int> order_;     // in which gradients became ready, while it is recorded
  std::vector<int> laid_out_;  // the order of storage until it is known
  bool order_known_ = false;
  bool reducing_ = false;  // this backward launches buckets
  int64_t micro_ = 0;      // micro-steps since the last update
};

}  // namespace

std::unique_ptr<Strategy> make_ddp(const Options& options) { return std::make_unique<Ddp>(options); }

}  // namespace convoy
