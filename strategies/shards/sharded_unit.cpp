#include "strategies/shards/sharded_unit.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <map>
#include <numeric>

#include "core/base/error.h"
#include "strategies/common/step/gradient_collector.h"

namespace convoy {

// --- BufferPool ---

namespace {

int64_t size_of(const at::Tensor& buffer) { return buffer.numel(); }
bool smaller(const at::Tensor& a, const at::Tensor& b) { return size_of(a) < size_of(b); }

}  // namespace

at::Tensor BufferPool::take(int64_t bytes) {
  std::sort(free_.begin(), free_.end(), smaller);
  auto fit = std::find_if(free_.begin(), free_.end(), [&](const at::Tensor& one) { return size_of(one) >= bytes; });
  // A much larger tensor stays in the pool: its usual user will need it soon.
  if (fit != free_.end() && size_of(*fit) < 2 * bytes) {
    at::Tensor found = std::move(*fit);
    free_.erase(fit);
    kept_ -= size_of(found);
    return lend(std::move(found));
  }
  lent_ += bytes;
  peak_ = std::max(peak_, lent_);
  make_room();
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
}

at::Tensor BufferPool::lend(at::Tensor buffer) {
  lent_ += size_of(buffer);
  peak_ = std::max(peak_, lent_);
  make_room();
  return buffer;
}

// Frees kept tensors until the limit holds: the smallest one that is large enough, or else the largest.
void BufferPool::make_room() {
  while (!free_.empty() && lent_ + kept_ > peak_) {
    const int64_t excess = lent_ + kept_ - peak_;
    auto fit = std::find_if(free_.begin(), free_.end(), [&](const at::Tensor& one) { return size_of(one) >= excess; });
    if (fit == free_.end()) --fit;
    kept_ -= size_of(*fit);
    free_.erase(fit);
  }
}

void BufferPool::give(at::Tensor buffer) {
  if (!buffer.defined()) return;
  lent_ -= size_of(buffer);
  kept_ += size_of(buffer);
  free_.push_back(std::move(buffer));
}

void BufferPool::restart() {
  free_.clear();
  kept_ = 0;
  peak_ = lent_;
}

at::Tensor numbers_in(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype) {
  return buffer.narrow(0, 0, elements * int64_t(c10::elementSize(dtype))).view(dtype);
}

// --- SwappedStorage ---

SwappedStorage::SwappedStorage(int64_t elements, at::ScalarType dtype, at::Device device)
    : options_(at::TensorOptions(dtype).device(device)) {
  storage_ = without_memory({elements}, options_).storage();
}

SwappedStorage::~SwappedStorage() { take(); }

at::Tensor SwappedStorage::view(int64_t offset, at::IntArrayRef shape) const {
  return on_storage(storage_, offset, shape, options_);
}

void SwappedStorage::put(at::Tensor memory) {
  CONVOY_CHECK(!present() && memory.is_contiguous() && memory.nbytes() >= storage_.nbytes(), memory.nbytes(),
               " bytes for a storage of ", storage_.nbytes());
  memory_ = std::move(memory);
  storage_.set_data_ptr_noswap(at::DataPtr(memory_.mutable_data_ptr(), options_.device()));
}

at::Tensor SwappedStorage::take() {
  storage_.set_data_ptr_noswap(at::DataPtr(nullptr, options_.device()));
  return std::move(memory_);
}

// --- UnitLayout ---

namespace {

UnitLayout::Range common(const UnitLayout::Range& a, const UnitLayout::Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

UnitLayout::UnitLayout(const std::vector<ParameterPtr>& parameters, int ranks, int64_t alignment,
                       const Component& optimizer)
    : ranks_(ranks) {
  std::vector<int> all(parameters.size());
  std::iota(all.begin(), all.end(), 0);
  int64_t end = 0;
  for (const ParameterGroup& group : parameter_groups(parameters, all, optimizer)) {
    const int64_t begin = end;
    for (int index : group.indices) {
      parameters_.push_back(parameters[size_t(index)]);
      offsets_.push_back(end);
      const int64_t size = parameters_.back()->value.numel();
      end += padded(size, alignment);
      if (end > offsets_.back() + size) gaps_.push_back({offsets_.back() + size, end});
    }
    runs_.push_back({{begin, end}, group.group, group.counted});
  }
  shard_size_ = padded((end + ranks - 1) / ranks, alignment);
  if (whole() == end) return;
  gaps_.push_back({end, whole()});
  runs_.back().range.end = whole();
}

std::vector<UnitLayout::Slot> UnitLayout::slots(int rank) const {
  const Range mine{rank * shard_size_, (rank + 1) * shard_size_};
  std::vector<Slot> slots;
  for (const Slot& run : runs_) {
    const Range both = common(run.range, mine);
    if (both.size() > 0) slots.push_back({{both.begin - mine.begin, both.end - mine.begin}, run.group, run.counted});
  }
  return slots;
}

UnitLayout::Range UnitLayout::local_range(size_t parameter, int rank) const {
  const int64_t begin = offsets_[parameter];
  const Range both =
      common({begin, begin + parameters_[parameter]->value.numel()}, {rank * shard_size_, (rank + 1) * shard_size_});
  return {both.begin - begin, std::max(both.end, both.begin) - begin};
}

// --- ShardedUnit ---

namespace {

constexpr int64_t alignment = 64;  // bytes: a cache line, and the widest vector

int64_t bytes_of(at::ScalarType dtype) { return int64_t(c10::elementSize(dtype)); }

UnitLayout layout_of(const UnitRequest& request, int ranks, const Component& optimizer) {
  CONVOY_CHECK(!request.parameters.empty(), "unit ", request.name, " has no parameter");
  const Parameter& first = *request.parameters.front();
  for (const ParameterPtr& parameter : request.parameters)
    CONVOY_CHECK(parameter->value.scalar_type() == first.value.scalar_type() &&
                     parameter->value.device() == first.value.device(),
                 parameter->name, " has another dtype or device than ", first.name);
  const at::ScalarType dtype = first.value.scalar_type();
  const int64_t smallest = std::min(bytes_of(dtype), bytes_of(request.gathered.value_or(dtype)));
  return UnitLayout(request.parameters, ranks, alignment / smallest, optimizer);
}

// Writes elements [begin, end) of the parameter's values to `out`; computes them if they have no memory yet.
void write_values(const Parameter& parameter, const UnitLayout::Range& range, const at::Tensor& out) {
  if (range.size() == 0) return;
  if (parameter.initial)
    parameter.initial(out, range.begin);
  else
    out.copy_(parameter.value.detach().reshape({-1}).narrow(0, range.begin, range.size()));
}

}  // namespace

ShardedUnit::ShardedUnit(const UnitRequest& request, CommunicatorPtr group, std::shared_ptr<BufferPool> pool,
                         const Component& optimizer)
    : name_(request.name),
      shard_(request.shard),
      group_(std::move(group)),
      pool_(std::move(pool)),
      dtype_(request.parameters.front()->value.scalar_type()),
      gathered_(request.gathered.value_or(dtype_)),
      device_(request.parameters.front()->value.device()),
      layout_(layout_of(request, group_->size(), optimizer)) {
  CONVOY_CHECK(gathers() || gathered_ == dtype_, "unit ", name_, " must be gathered in its own dtype");
  at::NoGradGuard no_grad;
  if (gathers())
    store_shard();
  else
    store_whole();
  for (const ParameterPtr& parameter : layout_.parameters()) {
    parameter->initial = nullptr;
    parameter->gradient = at::Tensor();
  }
  if (shard_ != Shard::optimizer) {
    gradients_ = at::zeros({layout_.shard_size()}, values_.options());
    return;
  }
  whole_gradients_ = at::zeros({layout_.whole()}, values_.options());
  gradients_ = whole_gradients_.narrow(0, group_->rank() * layout_.shard_size(), layout_.shard_size());
  bind_gradients(whole_gradients_);
}

void ShardedUnit::store_shard() {
  values_ = at::zeros({layout_.shard_size()}, at::TensorOptions(dtype_).device(device_));
  storage_ = std::make_unique<SwappedStorage>(layout_.whole(), gathered_, device_);
  const int64_t begin = group_->rank() * layout_.shard_size();
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    const Parameter& parameter = *layout_.parameters()[i];
    const UnitLayout::Range range = layout_.local_range(i, group_->rank());
    if (range.size() > 0)
      write_values(parameter, range, values_.narrow(0, layout_.offset(i) + range.begin - begin, range.size()));
    parameter.value.set_data(storage_->view(layout_.offset(i), parameter.value.sizes()));
  }
  versions_.resize(layout_.parameters().size());
}

void ShardedUnit::store_whole() {
  whole_values_ = at::zeros({layout_.whole()}, at::TensorOptions(dtype_).device(device_));
  values_ = whole_values_.narrow(0, group_->rank() * layout_.shard_size(), layout_.shard_size());
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    const Parameter& parameter = *layout_.parameters()[i];
    const at::Tensor whole_value = whole_values_.narrow(0, layout_.offset(i), parameter.value.numel());
    write_values(parameter, {0, parameter.value.numel()}, whole_value);
    parameter.value.set_data(whole_value.view(parameter.value.sizes()));
  }
}

int64_t ShardedUnit::bytes() const {
  const int64_t values = gathers() ? layout_.shard_size() : layout_.whole();
  const int64_t gradients = shard_ == Shard::optimizer ? layout_.whole() : layout_.shard_size();
  return (values + gradients) * bytes_of(dtype_);
}

at::Tensor ShardedUnit::by_rank(const at::Tensor& flat) const {
  return flat.view({group_->size(), layout_.shard_size()});
}

// --- ShardedUnit: values ---

void ShardedUnit::prefetch() {
  if (!gathers() || gather_ || storage_->present()) return;
  at::NoGradGuard no_grad;
  incoming_ = pool_->take(layout_.whole() * bytes_of(gathered_));
  gather_ = group_->all_gather(by_rank(numbers_in(incoming_, layout_.whole(), gathered_)), values_.to(gathered_),
                               {"parameters of " + name_, {}});
}

void ShardedUnit::spread() {
  if (gathers()) return;
  at::NoGradGuard no_grad;
  // Sends a copy, since the result overwrites the shard.
  gather_ = group_->all_gather(by_rank(whole_values_), values_.clone(), {"parameters of " + name_, {}});
}

void ShardedUnit::flush() {
  if (gathers() || !gather_) return;
  gather_->wait();
  gather_ = nullptr;
}

void ShardedUnit::acquire() {
  prefetch();
  ++uses_;
  if (!gather_) return;
  gather_->wait();
  gather_ = nullptr;
  if (!gathers()) return;
  storage_->put(std::move(incoming_));
  for (size_t i = 0; i < versions_.size(); ++i) versions_[i] = layout_.parameters()[i]->value._version();
}

void ShardedUnit::release() {
  CONVOY_CHECK(uses_ > 0, "unit ", name_, " is released more often than it was acquired");
  if (--uses_ == 0 && !kept_) drop();
}

void ShardedUnit::keep() { kept_ = gathers(); }

void ShardedUnit::let_go() {
  kept_ = false;
  if (uses_ == 0) drop();
}

void ShardedUnit::drop() {
  if (!gathers() || !storage_->present()) return;
  check_unwritten();
  pool_->give(storage_->take());
}

// Fails if a block wrote to its parameters: the next gather would silently restore the owners' values.
void ShardedUnit::check_unwritten() const {
  for (size_t i = 0; i < versions_.size(); ++i) {
    const Parameter& parameter = *layout_.parameters()[i];
    if (parameter.value._version() != versions_[i])
      throw Error(Failure::training, parameter.name,
                  " was written to in place while it was gathered, and the change would be "
                  "lost; leave that to the optimizer, or keep parameters whole (shard: "
                  "gradients)");
  }
}

// --- ShardedUnit: gradients ---

void ShardedUnit::begin() {
  fresh_ = true;
  if (shard_ != Shard::optimizer) return;
  for (const ParameterPtr& parameter : layout_.parameters()) parameter->written = false;
}

void ShardedUnit::bind_gradients(const at::Tensor& whole) {
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    Parameter& parameter = *layout_.parameters()[i];
    parameter.gradient = whole.narrow(0, layout_.offset(i), parameter.value.numel()).view(parameter.value.sizes());
    parameter.written = false;
  }
}

void ShardedUnit::open_gradients() {
  if (open_) return;
  open_ = true;
  if (shard_ == Shard::optimizer) return;
  at::NoGradGuard no_grad;
  borrowed_ = pool_->take(layout_.whole() * bytes_of(dtype_));
  const at::Tensor whole = numbers_in(borrowed_, layout_.whole(), dtype_);
  for (const UnitLayout::Range& gap : layout_.gaps()) whole.narrow(0, gap.begin, gap.size()).zero_();
  bind_gradients(whole);
}

void ShardedUnit::reduce() {
  at::NoGradGuard no_grad;
  open_gradients();
  for (const ParameterPtr& parameter : layout_.parameters()) {
    if (!parameter->written) parameter->gradient.zero_();
    if (shard_ != Shard::optimizer) parameter->gradient = at::Tensor();
  }
  const at::Tensor whole =
      shard_ == Shard::optimizer ? whole_gradients_ : numbers_in(borrowed_, layout_.whole(), dtype_);
  at::Tensor result = gradients_;
  // The first sum needs no addition. With `optimizer` the result would overwrite the input.
  if (!fresh_ || shard_ == Shard::optimizer) {
    sum_ = pool_->take(layout_.shard_size() * bytes_of(dtype_));
    result = numbers_in(sum_, layout_.shard_size(), dtype_);
  }
  reduction_ = group_->reduce_scatter(result, by_rank(whole), ReduceOp::sum, {"gradients of " + name_, {}});
}

void ShardedUnit::finish_reduce() {
  if (!reduction_) return;
  at::NoGradGuard no_grad;
  reduction_->wait();
  reduction_ = nullptr;
  if (sum_.defined()) {
    const at::Tensor sum = numbers_in(sum_, layout_.shard_size(), dtype_);
    if (shard_ == Shard::optimizer)
      gradients_.copy_(sum);
    else
      gradients_.add_(sum);
  }
  pool_->give(std::move(sum_));
  pool_->give(std::move(borrowed_));
  sum_ = borrowed_ = at::Tensor();
  fresh_ = false;
  open_ = false;
}

void ShardedUnit::zero_if_none() {
  if (fresh_) gradients_.zero_();
}

// --- Plans of units ---

namespace {

// Plans the units of one part, in the order in which its blocks first use them.
class PartUnits {
 public:
  PartUnits(const ModelPart& part, size_t number, const UnitOptions& options)
      : part_(part), number_(number), options_(options) {
    for (size_t block = 0; block < part.blocks(); ++block)
      for (const ParameterPtr& parameter : part.block_parameters(block)) users_[parameter.get()].push_back(block);
    CONVOY_CHECK(users_.size() == part.parameters().size(), "blocks use ", users_.size(), " parameters of ",
                 part.parameters().size());
  }

  std::vector<PlannedUnit> made() {
    for (size_t block = 0; block < part_.blocks(); ++block) {
      open_.clear();
      for (const ParameterPtr& parameter : part_.block_parameters(block))
        if (users_.at(parameter.get()).front() == block) place(parameter, block);
    }
    return std::move(units_);
  }

 private:
  bool alone(const Parameter& parameter) const {
    return options_.by_tensor || users_.at(&parameter).size() > 1 ||
           (parameter.partial && parameter.partial != options_.tensor);
  }

  void place(const ParameterPtr& parameter, size_t block) {
    const bool half = options_.autocast && options_.shard == Shard::parameters && parameter->products_only;
    const std::pair<bool, Communicator*> key{half, parameter->partial.get()};
    if (!alone(*parameter)) {
      const auto known = open_.find(key);
      if (known != open_.end()) {
        units_[known->second].request.parameters.push_back(parameter);
        return;
      }
      open_.emplace(key, units_.size());
    }
    PlannedUnit unit;
    const std::string name = part_.block_name(block);
    unit.request.name = alone(*parameter) || name.empty() ? parameter->name : name;
    unit.request.parameters = {parameter};
    unit.request.shard = options_.shard;
    if (half) unit.request.gathered = options_.autocast;
    unit.partial = parameter->partial;
    unit.part = number_;
    unit.blocks = users_.at(parameter.get());
    units_.push_back(std::move(unit));
  }

  const ModelPart& part_;
  size_t number_;
  const UnitOptions& options_;
  std::map<const Parameter*, std::vector<size_t>> users_;  // blocks, ascending
  std::map<std::pair<bool, Communicator*>, size_t> open_;  // units of the current block
  std::vector<PlannedUnit> units_;
};

}  // namespace

std::vector<PlannedUnit> plan_units(const std::vector<ModelPart*>& parts, const UnitOptions& options) {
  std::vector<PlannedUnit> all;
  for (size_t part = 0; part < parts.size(); ++part)
    for (PlannedUnit& unit : PartUnits(*parts[part], part, options).made()) all.push_back(std::move(unit));
  return all;
}

}  // namespace convoy
