#include "strategies/shards/sharded_data.h"
#include "strategies/common/step/start_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/optim/precision.h"
#include "strategies/common/model/visit_parts.h"

namespace convoy {
// Hooks around the blocks of one part. The units of a block include tied parameters that it uses.
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
  // Sets whether the next backwards send gradients.
  void send(bool sends) { sends_ = sends; }

  void before_forward(int64_t block) override {
    const auto here = size_t(block);
    for (size_t unit : units_[here]) owner_.units_[unit]->acquire();
    if (owner_.overlap_.overlaps() && here + 1 < units_.size()) prefetch(here + 1);
  }

  void after_forward(int64_t block) override {
    const auto here = size_t(block);
    // Backward begins where forward ends, so the last block keeps its values.
    const bool keeps =
        at::GradMode::is_enabled() && (!owner_.options_.reshard || (part_.last() && here + 1 == units_.size()));
    for (size_t unit : units_[here]) {
      if (keeps) owner_.units_[unit]->keep();
      owner_.units_[unit]->release();
    }
  }

  void begin_backward() override {
    boundary_ = units_.size() + 1;
    missing_ = parameters_;
  }

  void backward_at(int64_t boundary) override {
    at::NoGradGuard no_grad;
    while (boundary_ > size_t(boundary)) {
      --boundary_;
      if (boundary_ < units_.size()) close(boundary_);
      if (boundary_ > 0) open(boundary_ - 1);
    }
  }

  void end_backward() override {
    backward_at(0);
    owner_.finish_reductions();
  }

  // --- Without boundaries: a block is differentiated when each of its parameters has a gradient ---

  void count_gradients() {
    first_block_.assign(part_.parameters().size(), 0);
    parameters_.assign(part_.blocks(), 0);
    std::map<const Parameter*, size_t> first;
    for (size_t block = 0; block < part_.blocks(); ++block)
      for (const ParameterPtr& parameter : part_.block_parameters(block)) first.emplace(parameter.get(), block);
    for (size_t i = 0; i < first_block_.size(); ++i)
      ++parameters_[first_block_[i] = first.at(part_.parameters()[i].get())];
  }
  void open_for(size_t parameter) {
    // Units of other blocks may come first: a tied tensor is complete only after the backward of its first block.
    for (size_t unit : begins_[first_block_[parameter]]) owner_.units_[unit]->open_gradients();
  }
  void ready(size_t parameter) {
    --missing_[first_block_[parameter]];
    size_t block = std::min(boundary_, units_.size());
    while (block > 0 && missing_[block - 1] == 0) --block;
    if (block < std::min(boundary_, units_.size())) backward_at(int64_t(block));
  }

 private:
  void prefetch(size_t block) {
    for (size_t unit : units_[block]) owner_.units_[unit]->prefetch();
  }

  // Prepares the block for its backward.
  void open(size_t block) {
    for (size_t unit : units_[block]) {
      owner_.units_[unit]->acquire();
      owner_.units_[unit]->open_gradients();
    }
    if (owner_.overlap_.overlaps() && block > 0) prefetch(block - 1);
  }

  // Ends the block's backward.
  void close(size_t block) {
    for (size_t unit : units_[block]) {
      owner_.units_[unit]->let_go();
      owner_.units_[unit]->release();
    }
    if (sends_) owner_.reduce(begins_[block]);
  }

  ShardedData& owner_;
  ModelPart& part_;
  std::vector<std::vector<size_t>> units_;    // by block
  std::vector<std::vector<size_t>> begins_;   // units with gradients that are complete after the block's backward
  size_t boundary_ = 0;                       // boundary that backward has reached
  std::vector<size_t> first_block_;           // that uses it, by parameter
  std::vector<size_t> parameters_, missing_;  // by block that uses them first: all, and those without a gradient yet
  bool sends_ = false;
};

ShardedData::ShardedData(const Context& context, std::vector<ModelPart*> parts, const ShardedOptions& options)
    : DataAxis(context, std::move(parts), options.sync.every,
               {context.axis("data"), context.axis("tensor"), context.axis("pipeline")}, options.optimizer),
      options_(options),
      overlap_(context, group_, options.overlap, context.devices.front().is_cpu(), options.number),
      optimizer_(context.config.optimizer) {
  check_equal_parameters(context, parts_, options.number);
  share_foreign_values(parts_, *group_);
  for (size_t part = 0; part < parts_.size(); ++part) hooks_.push_back(std::make_unique<PartHooks>(*this, part));
  UnitOptions units;
  units.shard = options.shard;
  units.by_tensor = options.by_tensor;
  units.autocast = autocast_dtype(context.config.precision);
  units.tensor = context.axis("tensor");
  for (PlannedUnit& plan : plan_units(parts_, units)) add_unit(std::move(plan));
  // Collectors need the units first: accumulators take the dtype of the gradients.
  for (size_t part = 0; part < parts_.size(); ++part) {
    PartHooks& hooks = *hooks_[part];
    std::function<void(int)> ready = [](int) {}, open;
    if (options_.by_gradient) {
      hooks.count_gradients();
      ready = [&hooks](int parameter) { hooks.ready(size_t(parameter)); };
      open = [&hooks](int parameter) { hooks.open_for(size_t(parameter)); };
    }
    collectors_.push_back(std::make_unique<GradientCollector>(parts_[part]->parameters(), parts_[part]->state(),
                                                              std::move(ready), std::move(open)));
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
    first_slots_.push_back(int(slots.size()));
    for (const UnitLayout::Slot& slot : unit->layout().slots(group_->rank()))
      slots.push_back({unit->values().narrow(0, slot.range.begin, slot.range.size()),
                       unit->gradients().narrow(0, slot.range.begin, slot.range.size()), slot.group, slot.counted,
                       pieces_of(*unit, slot)});
  }
  update_.attach(std::move(slots), header_);
}

std::vector<ParameterPiece> ShardedData::pieces_of(const ShardedUnit& unit, const UnitLayout::Slot& slot) const {
  const UnitLayout& layout = unit.layout();
  const int64_t shard_begin = group_->rank() * layout.shard_size();
  std::vector<ParameterPiece> pieces;
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    const UnitLayout::Range local = layout.local_range(i, group_->rank());
    const int64_t begin = layout.offset(i) + local.begin - shard_begin;
    if (local.size() > 0 && begin >= slot.range.begin && begin < slot.range.end)
      pieces.push_back({layout.parameters()[i]->value, local.begin, local.end, begin - slot.range.begin});
  }
  return pieces;
}

void ShardedData::begin(bool first, bool updates) {
  updates_ = updates;
  for (auto& hooks : hooks_) hooks->send(options_.shard != Shard::optimizer);
  if (!first) return;
  const bool overlapped = overlap_.overlaps();
  overlap_.begin_update();
  if (overlap_.overlaps() != overlapped)
    for (const auto& entry : pools_) entry.second->restart();
  header_.zero_();
  for (auto& unit : units_) unit->begin();
}

void ShardedData::add_loss(const Loss& loss) {
  at::NoGradGuard no_grad;
  header_.select(0, 0).add_(loss.weight.to(header_.options()));
  header_.select(0, 1).add_(loss.sum.detach().to(header_.options()));
}

void ShardedData::last_backward(int part) {
  if (updates_) hooks_[size_t(part)]->send(true);
}

// Sends the sums of one block while the next is differentiated.
void ShardedData::reduce(const std::vector<size_t>& units) {
  finish_reductions();
  for (size_t unit : units) units_[unit]->reduce();
  reducing_ = units;
  if (!overlap_.overlaps()) finish_reductions();
}

void ShardedData::finish_reductions() {
  for (size_t unit : reducing_) units_[unit]->finish_reduce();
  reducing_.clear();
}

UpdateStatistics ShardedData::update(double nominal, bool /*log_step*/) {
  const WorkPtr header = group_->all_reduce(header_, ReduceOp::sum, {"loss and weight", {}});
  finish_reductions();
  buffer_sync_->start();
  for (const auto& unit : units_) unit->zero_if_none();
  sum_partial();
  header->wait();
  pipeline_->broadcast(header_, pipeline_->size() - 1, {"loss and weight", {}})->wait();
  update_.begin(nominal);
  for (int slot = 0; slot < update_.slots(); ++slot) update_.reduced_slot(slot);
  const UpdateStatistics statistics = update_.finish();
  for (auto& unit : units_) unit->spread();
  buffer_sync_->finish();
  if (options_.by_gradient) flush();
  overlap_.end_update();
  return statistics;
}

// Sums in order of name: ranks of another stage have the same tensors in another order.
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

void ShardedData::flush() {
  for (auto& unit : units_) unit->flush();
}

void ShardedData::state_restored() {
  update_.restored();
  for (auto& unit : units_) unit->spread();
  flush();
}

int64_t ShardedData::local_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += unit->bytes();
  return bytes;
}

int64_t ShardedData::borrowed_bytes_peak() const {
  int64_t bytes = 0;
  for (const auto& entry : pools_) bytes += entry.second->peak();
  return bytes;
}

// Visits this rank's shard of a unit: parameters, moments, or gradients of the last update.
void ShardedData::visit_unit(size_t index, StateKind kind, const StateVisitor& visit) {
  const ShardedUnit& unit = *units_[index];
  const std::vector<UnitLayout::Slot> slots = unit.layout().slots(group_->rank());
  const int64_t shard_begin = group_->rank() * unit.layout().shard_size();
  // Tensors of each slot's length, with names, by slot.
  std::vector<NamedTensors> shown(slots.size());
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const int number = first_slots_[index] + int(slot);
    const UnitLayout::Range& range = slots[slot].range;
    if (kind == StateKind::parameter) shown[slot] = {{"", unit.values().narrow(0, range.begin, range.size())}};
    if (kind == StateKind::moment) shown[slot] = update_.slot_moments(number);
    if (kind == StateKind::gradient)
      if (const at::Tensor gradient = update_.slot_gradient(number); gradient.defined()) shown[slot] = {{"", gradient}};
  }
  for (size_t i = 0; i < unit.layout().parameters().size(); ++i) {
    const Parameter& parameter = *unit.layout().parameters()[i];
    const UnitLayout::Range local = unit.layout().local_range(i, group_->rank());
    if (local.size() == 0) continue;
    const int64_t begin = unit.layout().offset(i) + local.begin - shard_begin;
    size_t slot = 0;  // a shard of a parameter is in one slot only
    while (slots[slot].range.end <= begin) ++slot;
    const int64_t offset = begin - slots[slot].range.begin;
    for (const auto& [moment, tensor] : shown[slot])
      visit_range(parameter, kind, moment, tensor.narrow(0, offset, local.size()), local.begin, local.end, visit);
  }
}

void ShardedData::visit_state(const StateVisitor& visit) {
  flush();
  for (size_t unit = 0; unit < units_.size(); ++unit) visit_unit(unit, StateKind::parameter, visit);
  visit_untrained(parts_, group_->rank() == 0, visit);
  for (size_t unit = 0; unit < units_.size(); ++unit) visit_unit(unit, StateKind::moment, visit);
  visit_counters(update_, first_of_job_, visit);
}

void ShardedData::visit_gradients(const StateVisitor& visit) {
  for (size_t unit = 0; unit < units_.size(); ++unit) visit_unit(unit, StateKind::gradient, visit);
}

}  // namespace convoy
