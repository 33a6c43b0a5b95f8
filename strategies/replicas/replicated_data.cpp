#include "strategies/replicas/replicated_data.h"
#include "strategies/common/step/start_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "strategies/common/model/visit_parts.h"
#include "strategies/plans/options/sparse_embeddings.h"

namespace convoy {

ReplicatedData::ReplicatedData(const Context& context, std::vector<ModelPart*> parts, const ReplicatedOptions& options)
    : DataAxis(context, std::move(parts), options.sync.every, {context.axis("tensor"), context.axis("pipeline")},
               options.optimizer),
      options_(options),
      optimizer_(context.config.optimizer),
      device_(context.devices.front()),
      // Local updates send no gradients.
      overlap_(context, group_, options.overlap, device_.is_cpu() && !options.sync.ever_local(), options.number),
      reducer_(group_, options.sync.compress),
      rows_(make_row_exchange(group_, summed_tables(options.sync, tables_of(parts_)), options.sync.compress)),
      sending_(parts_.size(), 0) {
  check_equal_parameters(context, parts_, options.number);
  update_.attach_tables(tables_of(parts_));
  share_foreign_values(parts_, *group_);
  for (size_t part = 0; part < parts_.size(); ++part) {
    const auto offset = int(parameters_.size());
    const auto& list = parts_[part]->parameters();
    parameters_.insert(parameters_.end(), list.begin(), list.end());
    part_of_.resize(parameters_.size(), int(part));
    collectors_.push_back(std::make_unique<GradientCollector>(
        list, parts_[part]->state(), [this, offset](int parameter) { ready(offset + parameter); }));
  }
  seen_.assign(parameters_.size(), 0);
  for (const ParameterPtr& parameter : parameters_)
    if (parameter->partial) partial_.push_back(parameter);
  std::sort(partial_.begin(), partial_.end(), [](const auto& a, const auto& b) { return a->name < b->name; });
  buffer_sync_.emplace(buffers_of(parts_), group_, options_.buffers);
  local_updates_.emplace(context, options_.sync, parts_, update_, *buffer_sync_);
  late_bytes_ = options_.cap_bytes / 4;
  if (options_.cap_bytes == 0) {
    late_bytes_ = 6.25 * (1 << 20);
    double bytes = 0;
    for (const ParameterPtr& parameter : parameters_) bytes += double(parameter->value.nbytes());
    options_.cap_bytes = bucket_cap(bytes);
  }
  std::vector<int> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  lay_out(order);
}

void ReplicatedData::begin(bool first, bool updates) {
  first_micro_ = first;
  local_updates_->begin(first);
  if (first) {
    if (with_rows_.empty()) overlap_.begin_update();
    for (auto& collector : collectors_) collector->begin();
    flat_->header().zero_();
    begin_rows(update_.tables());
    rows_->begin();
  }
  std::fill(sending_.begin(), sending_.end(), 0);
  reducing_ = updates && order_known_ && with_rows_.empty();
  if (reducing_) start_reducing();
}

void ReplicatedData::start_reducing() {
  if (local_updates_->any())
    reducer_.start(overlap_.overlaps(), local_updates_->local_buckets(), local_updates_->sums_gradients());
  else
    reducer_.start(overlap_.overlaps());
}

void ReplicatedData::add_loss(const Loss& loss) {
  flat_->add_to_header(loss.weight, loss.sum, first_micro_);
  local_updates_->add_loss(loss.weight, loss.sum.detach());
  first_micro_ = false;
}

void ReplicatedData::last_backward(int part) { sending_[size_t(part)] = 1; }

void ReplicatedData::ready(int parameter) {
  const auto index = size_t(parameter);
  if (!order_known_ && !seen_[index]) {
    seen_[index] = 1;
    order_.push_back(parameter);
  }
  if (reducing_ && sending_[size_t(part_of_[index])]) reducer_.ready(parameter);
}

void ReplicatedData::keep() {
  if (!order_known_) take_order_of_rank_0();
}

UpdateStatistics ReplicatedData::update(double nominal, bool log_step) {
  if (!order_known_) take_order_of_rank_0();
  for (auto& collector : collectors_) collector->finish();
  const bool by_bucket = with_rows_.empty();
  if (by_bucket && !reducing_) start_reducing();
  reducing_ = false;
  if (by_bucket) reducer_.flush();
  const bool buffers = local_updates_->synchronises_buffers();
  if (buffers) buffer_sync_->start();
  rows_->run(with_rows_);
  local_updates_->exchange_rows();
  const auto buckets = int(flat_->buckets().size());
  if (!partial_.empty()) {
    for (int bucket = 0; by_bucket && bucket < buckets; ++bucket) reducer_.wait(bucket);
    sum_partial();
  }
  for (int bucket = 0; bucket < buckets; ++bucket) {
    if (by_bucket && partial_.empty()) reducer_.wait(bucket);
    if (bucket == 0) {
      share_header();
      local_updates_->prepare();
      update_.begin(nominal);
    }
    update_.reduced(bucket);
  }
  // With gradient accumulation the next logged step is unknown here; updates are rare then, so always compute the norm.
  update_.reduced_rows(rows_->finite_sums(), log_step || options_.sync.every > 1);
  // All waits end before parameters change. So a lost peer leaves each rank with the state before or after the update.
  if (buffers) buffer_sync_->finish();
  const UpdateStatistics statistics = update_.finish();
  rows_->written();
  local_updates_->updated(statistics);
  if (by_bucket) overlap_.end_update();
  return statistics;
}

// Broadcasts the headers as doubles, since a stage without parameters has a header of another dtype.
void ReplicatedData::share_header() {
  if (pipeline_->size() == 1) return;
  const at::TensorOptions real = at::TensorOptions(at::kDouble).device(device_);
  std::vector<at::Tensor> headers{flat_->header()};
  if (local_updates_->any()) headers.push_back(local_updates_->local_header());
  std::vector<at::Tensor> wide;
  for (const at::Tensor& header : headers) wide.push_back(header.to(real));
  at::Tensor shared = at::cat(wide);
  pipeline_->broadcast(shared, pipeline_->size() - 1, {"loss and weight", {}})->wait();
  for (size_t i = 0; i < headers.size(); ++i) headers[i].copy_(shared.narrow(0, 2 * int64_t(i), 2));
}

void ReplicatedData::sum_partial() {
  for (const ParameterPtr& parameter : partial_)
    parameter->partial->all_reduce(parameter->gradient, ReduceOp::sum, {"gradient of " + parameter->name, {}})->wait();
}

// Messages of the dense gradients if they are small enough to travel with rows; else none.
std::vector<at::Tensor> ReplicatedData::messages_with_rows() const {
  // Local updates and compression send dense gradients differently, or not at all.
  if (update_.tables().empty() || !options_.sync.plain()) return {};
  std::vector<at::Tensor> messages;
  double bytes = 0;
  for (int bucket = 0; bucket < int(flat_->buckets().size()); ++bucket) {
    messages.push_back(flat_->message(bucket));
    bytes += double(messages.back().nbytes());
  }
  return bytes <= most_dense_with_rows ? messages : std::vector<at::Tensor>();
}

void ReplicatedData::visit_state(const StateVisitor& visit) {
  rows_->read();
  rows_->complete();
  visit_parts(parts_, *flat_, update_, owner(), visit);
  local_updates_->visit(visit);
  reducer_.visit(visit);
  rows_->visit(visit);
}

// Every other kind of `sync` runs the same operations at every update, compression included.
std::string ReplicatedData::obstacle() const {
  if (options_.sync.ever_local()) return "the host decides at which updates local training (sync.what) synchronises";
  if (!update_.tables().empty()) return "each step of a sparse embedding has another number of rows";
  const std::vector<at::DeviceType> devices = group_->devices();
  const bool on_host = std::find(devices.begin(), devices.end(), at::kCPU) != devices.end();
  if (device_.is_cuda() && group_->size() > 1 && on_host)
    return str("backend ", group_->backend(), " has the host wait in the middle of a step; take nccl");
  for (const ModelPart* part : parts_)
    if (part->state()->drew) return "its dropout uses random keys from the host";
  return "";
}

void ReplicatedData::lay_out(const std::vector<int>& order) {
  const auto buckets = local_updates_->buckets(parameters_, order, options_.first_bytes, options_.cap_bytes);
  auto flat = std::make_unique<FlatParameters>(parameters_, buckets, optimizer_);
  if (flat_) flat->header().copy_(flat_->header());
  update_.attach(*flat);
  local_updates_->attach(flat_.get(), *flat);
  reducer_.attach(flat_.get(), *flat, [this](int bucket) { return local_updates_->ever_shared(bucket); });
  flat_ = std::move(flat);
  with_rows_ = messages_with_rows();
}

// Takes rank 0's order on all ranks. Parameters that rank 0 did not use come last.
void ReplicatedData::take_order_of_rank_0() {
  for (size_t index = seen_.size(); index-- > 0;)
    if (!seen_[index]) order_.push_back(int(index));
  at::Tensor shared = at::tensor(at::ArrayRef<int>(order_), at::kLong).to(flat_->header().device());
  group_->broadcast(shared, 0, {"order of gradients", {}})->wait();
  shared = shared.cpu();
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = int(shared[int64_t(i)].item<int64_t>());
  if (waits_too_long()) lay_out(order_);
  order_known_ = true;
}

// A new layout needs twice the memory for a moment. So it happens only where a bucket would wait for much more than its
// own gradients: a quarter of a bucket, or of the largest one if no size was configured.
bool ReplicatedData::waits_too_long() const {
  const auto bytes_of = [&](int parameter) { return double(parameters_[size_t(parameter)]->value.nbytes()); };
  std::vector<double> ready_bytes(parameters_.size());  // bytes of gradients that are ready when this one is
  double sum = 0;
  for (int parameter : order_) ready_bytes[size_t(parameter)] = sum += bytes_of(parameter);
  double laid_out = 0;
  for (const FlatParameters::Bucket& bucket : flat_->buckets()) {
    double complete = 0;
    for (int parameter : bucket.parameters) {
      laid_out += bytes_of(parameter);
      complete = std::max(complete, ready_bytes[size_t(parameter)]);
    }
    if (complete > laid_out + late_bytes_) return true;
  }
  return false;
}

}  // namespace convoy
