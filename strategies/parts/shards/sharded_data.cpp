#include "strategies/parts/shards/sharded_data.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/model.h"
#include "strategies/parts/equal_start.h"
#include "strategies/parts/precision.h"
#include "strategies/parts/visit_parts.h"

namespace convoy {
namespace {

Shard shard_of(const std::string& text) {
  if (text == "optimizer") return Shard::optimizer;
  return text == "gradients" ? Shard::gradients : Shard::parameters;
}

}  // namespace

// What is done around the blocks of one part. Units of a block: those that it uses, tied ones too.
class ShardedData::PartHooks : public BlockHooks {
 public:
  PartHooks(ShardedData& owner, size_t part)
      : owner_(owner), part_(*owner.parts_[part]), units_(part_.blocks()), begins_(part_.blocks()) {
    part_.set_hooks(this);
  }
  ~PartHooks() override { part_.set_hooks(nullptr); }
  PartHooks(const PartHooks&) = delete;
  PartHooks& operator=(const PartHooks&) = delete;

  void add(size_t unit, const std::vector<size_t>& blocks) {
    for (size_t block : blocks) units_[block].push_back(unit);
    begins_[blocks.front()].push_back(unit);
  }
  // Whether gradients of the backwards to come are sent.
  void send(bool sends) { sends_ = sends; }

  void before_forward(int64_t block) override {
    const auto here = static_cast<size_t>(block);
    for (size_t unit : units_[here]) owner_.units_[unit]->acquire();
    if (owner_.options_.overlap && here + 1 < units_.size()) prefetch(here + 1);
  }

  void after_forward(int64_t block) override {
    const auto here = static_cast<size_t>(block);
    // Backward begins where forward ends: what it needs first stays.
    const bool keeps =
        at::GradMode::is_enabled() && (!owner_.options_.reshard || (part_.last() && here + 1 == units_.size()));
    for (size_t unit : units_[here]) {
      if (keeps) owner_.units_[unit]->keep();
      owner_.units_[unit]->release();
    }
  }

  void begin_backward() override { border_ = units_.size() + 1; }

  void backward_at(int64_t border) override {
    at::NoGradGuard no_grad;
    while (border_ > static_cast<size_t>(border)) {
      --border_;
      if (border_ < units_.size()) close(border_);
      if (border_ > 0) open(border_ - 1);
    }
  }

  void end_backward() override {
    backward_at(0);
    owner_.finish_reductions();
  }

 private:
  void prefetch(size_t block) {
    for (size_t unit : units_[block]) owner_.units_[unit]->prefetch();
  }

  // The block's backward is next.
  void open(size_t block) {
    for (size_t unit : units_[block]) {
      owner_.units_[unit]->acquire();
      owner_.units_[unit]->open_gradients();
    }
    if (owner_.options_.overlap && block > 0) prefetch(block - 1);
  }

  // It is over.
  void close(size_t block) {
    for (size_t unit : units_[block]) {
      owner_.units_[unit]->let_go();
      owner_.units_[unit]->release();
    }
    if (sends_) owner_.reduce(begins_[block]);
  }

  ShardedData& owner_;
  ModelPart& part_;
  std::vector<std::vector<size_t>> units_;   // by block
  std::vector<std::vector<size_t>> begins_;  // those whose gradients are complete behind its backward
  size_t border_ = 0;                        // that backward has reached
  bool sends_ = false;
};

ShardedOptions sharded_options(const Options& strategy) {
  ShardedOptions options;
  options.every = strategy.section("sync").integer("every");
  options.shard = shard_of(strategy.text("shard"));
  options.reshard = strategy.boolean("reshard_after_forward");
  options.by_tensor = strategy.text("units") == "tensors";
  options.overlap = strategy.boolean("overlap");
  options.buffers = strategy.text("buffers");
  return options;
}

ShardedData::ShardedData(const Context& context, std::vector<ModelPart*> parts, const ShardedOptions& options)
    : options_(options),
      optimizer_(context.config.optimizer),
      group_(context.axis("data")),
      pipeline_(context.axis("pipeline")),
      first_of_job_(context.rank == 0),
      parts_(std::move(parts)),
      update_(context, options.every, {group_, context.axis("tensor"), pipeline_}) {
  check_equal_start(context, parts_);
  share_foreign_values(parts_, *group_);
  for (size_t part = 0; part < parts_.size(); ++part) hooks_.push_back(std::make_unique<PartHooks>(*this, part));
  UnitOptions units;
  units.shard = options.shard;
  units.by_tensor = options.by_tensor;
  units.narrow = autocast_dtype(context.config.precision);
  units.tensor = context.axis("tensor");
  for (PlannedUnit& plan : plan_units(parts_, units)) add_unit(std::move(plan));
  // Behind the units, since accumulators know the dtype of what they accumulate into.
  for (ModelPart* part : parts_) {
    collectors_.push_back(std::make_unique<GradientCollector>(part->parameters(), part->state(), [](int) {}));
    part->state()->loss_scale = update_.loss_scale();
  }
  attach_update();
  buffer_sync_.emplace(buffers_of(parts_), group_, options_.buffers);
}

ShardedData::~ShardedData() = default;

void ShardedData::add_unit(PlannedUnit plan) {
  const at::Device device = parts_[plan.part]->device();
  auto& pool = pools_[device.str()];
  if (!pool) pool = std::make_shared<BufferPool>(device);
  hooks_[plan.part]->add(units_.size(), plan.blocks);
  units_.push_back(std::make_unique<ShardedUnit>(plan.request, group_, pool, optimizer_));
  partial_.push_back(plan.partial);
}

void ShardedData::attach_update() {
  const at::Device device = parts_.empty() ? at::Device(at::kCPU) : parts_.front()->device();
  header_ = at::zeros({2}, at::TensorOptions(device.is_cpu() ? at::kDouble : at::kFloat).device(device));
  std::vector<UpdateSlot> slots;
  for (const auto& unit : units_) {
    first_slots_.push_back(static_cast<int>(slots.size()));
    for (const UnitLayout::Slot& slot : unit->layout().slots(group_->rank()))
      slots.push_back({unit->values().narrow(0, slot.range.begin, slot.range.size()),
                       unit->gradients().narrow(0, slot.range.begin, slot.range.size()), slot.group, slot.counted});
  }
  update_.attach(std::move(slots), header_);
}

void ShardedData::begin(bool first, bool updates) {
  updates_ = updates;
  for (auto& hooks : hooks_) hooks->send(options_.shard != Shard::optimizer);
  if (!first) return;
  header_.zero_();
  for (auto& unit : units_) unit->begin();
}

void ShardedData::add_loss(const Loss& loss) {
  at::NoGradGuard no_grad;
  header_.select(0, 0).add_(loss.weight.to(header_.options()));
  header_.select(0, 1).add_(loss.sum.detach().to(header_.options()));
}

void ShardedData::last_backward(int part) {
  if (updates_) hooks_[static_cast<size_t>(part)]->send(true);
}

// The sums of one block are on their way while the next is differentiated.
void ShardedData::reduce(const std::vector<size_t>& units) {
  finish_reductions();
  for (size_t unit : units) units_[unit]->reduce();
  reducing_ = units;
  if (!options_.overlap) finish_reductions();
}

void ShardedData::finish_reductions() {
  for (size_t unit : reducing_) units_[unit]->finish_reduce();
  reducing_.clear();
}

UpdateFigures ShardedData::update(double nominal, bool /*told*/) {
  const WorkPtr header = group_->all_reduce(header_, ReduceOp::sum, {"loss and weight", {}});
  finish_reductions();
  buffer_sync_->start();
  for (const auto& unit : units_) unit->zero_if_none();
  sum_partial();
  header->wait();
  pipeline_->broadcast(header_, pipeline_->size() - 1, {"loss and weight", {}})->wait();
  update_.begin(nominal);
  for (int slot = 0; slot < update_.slots(); ++slot) update_.reduced_slot(slot);
  const UpdateFigures figures = update_.finish();
  for (auto& unit : units_) unit->spread();
  buffer_sync_->finish();
  return figures;
}

// By name: ranks of another stage have the same tensors in another order.
void ShardedData::sum_partial() {
  std::vector<size_t> order;
  for (size_t unit = 0; unit < units_.size(); ++unit)
    if (partial_[unit]) order.push_back(unit);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return units_[a]->name() < units_[b]->name(); });
  for (const size_t unit : order)
    partial_[unit]
        ->all_reduce(units_[unit]->gradients(), ReduceOp::sum, {"gradients of " + units_[unit]->name(), {}})
        ->wait();
}

void ShardedData::settle() {
  for (auto& unit : units_) unit->settle();
}

void ShardedData::state_restored() {
  update_.restored();
  for (auto& unit : units_) unit->spread();
  settle();
}

int64_t ShardedData::held_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += unit->bytes();
  return bytes;
}

int64_t ShardedData::borrowed_bytes_peak() const {
  int64_t bytes = 0;
  for (const auto& entry : pools_) bytes += entry.second->peak();
  return bytes;
}

// What this rank owns of a unit: parameters, the moments, or the gradients of the update before.
void ShardedData::visit_unit(size_t index, StateKind kind, const StateVisitor& visit) {
  const ShardedUnit& unit = *units_[index];
  const std::vector<UnitLayout::Slot> slots = unit.layout().slots(group_->rank());
  const int64_t part_begin = group_->rank() * unit.layout().part();
  // By slot: named tensors of its length.
  std::vector<std::vector<std::pair<std::string, at::Tensor>>> shown(slots.size());
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const int number = first_slots_[index] + static_cast<int>(slot);
    const UnitLayout::Range& range = slots[slot].range;
    if (kind == StateKind::parameter) shown[slot] = {{"", unit.values().narrow(0, range.begin, range.size())}};
    if (kind == StateKind::moment) shown[slot] = update_.slot_moments(number);
    if (kind == StateKind::gradient)
      if (const at::Tensor gradient = update_.slot_gradient(number); gradient.defined()) shown[slot] = {{"", gradient}};
  }
  for (size_t i = 0; i < unit.layout().parameters().size(); ++i) {
    const Parameter& parameter = *unit.layout().parameters()[i];
    const UnitLayout::Range held = unit.layout().held(i, group_->rank());
    if (held.size() == 0) continue;
    const int64_t begin = unit.layout().offset(i) + held.begin - part_begin;
    size_t slot = 0;  // a parameter is in one only
    while (slots[slot].range.end <= begin) ++slot;
    const int64_t offset = begin - slots[slot].range.begin;
    for (const auto& [moment, tensor] : shown[slot])
      visit_range(parameter, kind, moment, tensor.narrow(0, offset, held.size()), held.begin, held.end, visit);
  }
}

void ShardedData::visit_state(const StateVisitor& visit) {
  settle();
  for (size_t unit = 0; unit < units_.size(); ++unit) visit_unit(unit, StateKind::parameter, visit);
  visit_untrained(parts_, group_->rank() == 0, visit);
  for (size_t unit = 0; unit < units_.size(); ++unit) visit_unit(unit, StateKind::moment, visit);
  for (size_t unit = 0; unit < units_.size(); ++unit) visit_unit(unit, StateKind::gradient, visit);
  visit_counters(update_, first_of_job_, visit);
}

}  // namespace convoy
