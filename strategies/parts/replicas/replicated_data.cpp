#include "strategies/parts/replicas/replicated_data.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "strategies/parts/equal_start.h"
#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/rows/row_tables.h"
#include "strategies/parts/rows/row_tables_entry.h"
#include "strategies/parts/visit_parts.h"

namespace convoy {
ReplicatedOptions replicated_options(const Options& strategy) {
  constexpr double mib = 1024 * 1024;
  ReplicatedOptions options;
  options.sync = sync_policy(strategy.json());
  options.first_bytes = strategy.real("first_bucket_mb") * mib;
  options.cap_bytes = strategy.is_auto("bucket_cap_mb") ? 0 : strategy.real("bucket_cap_mb") * mib;
  options.overlap = strategy.boolean("overlap");
  options.buffers = strategy.text("buffers");
  return options;
}

ReplicatedData::ReplicatedData(const Context& context, std::vector<ModelPart*> parts, const ReplicatedOptions& options)
    : options_(options),
      optimizer_(context.config.optimizer),
      group_(context.axis("data")),
      pipeline_(context.axis("pipeline")),
      device_(context.devices.front()),
      first_of_job_(context.rank == 0),
      parts_(std::move(parts)),
      update_(context, options.sync.every, {context.axis("tensor"), pipeline_}),
      reducer_(group_, options.overlap, options.sync.compress),
      rows_(make_row_exchange(group_, summed_tables(options.sync, tables_of(parts_)), options.sync.compress)),
      sending_(parts_.size(), 0) {
  check_equal_start(context, parts_);
  update_.attach_tables(tables_of(parts_));
  share_foreign_values(parts_, *group_);
  for (size_t part = 0; part < parts_.size(); ++part) {
    const auto offset = static_cast<int>(parameters_.size());
    const auto& list = parts_[part]->parameters();
    parameters_.insert(parameters_.end(), list.begin(), list.end());
    part_of_.resize(parameters_.size(), static_cast<int>(part));
    collectors_.push_back(std::make_unique<GradientCollector>(
        list, parts_[part]->state(), [this, offset](int parameter) { ready(offset + parameter); }));
  }
  for (ModelPart* part : parts_) part->state()->loss_scale = update_.loss_scale();
  seen_.assign(parameters_.size(), 0);
  for (const ParameterPtr& parameter : parameters_)
    if (parameter->partial) partial_.push_back(parameter);
  std::sort(partial_.begin(), partial_.end(), [](const auto& a, const auto& b) { return a->name < b->name; });
  buffer_sync_.emplace(buffers_of(parts_), group_, options_.buffers);
  apart_.emplace(context, options_.sync, parts_, update_, *buffer_sync_);
  late_bytes_ = options_.cap_bytes / 4;
  if (options_.cap_bytes == 0) {
    late_bytes_ = 6.25 * (1 << 20);
    double bytes = 0;
    for (const ParameterPtr& parameter : parameters_) bytes += static_cast<double>(parameter->value.nbytes());
    options_.cap_bytes = bucket_cap(bytes);
  }
  std::vector<int> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  lay_out(order);
}

void ReplicatedData::begin(bool first, bool updates) {
  first_micro_ = first;
  apart_->begin(first);
  if (first) {
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
  if (apart_->any())
    reducer_.start(apart_->apart(), apart_->shares());
  else
    reducer_.start();
}

void ReplicatedData::add_loss(const Loss& loss) {
  flat_->add_to_header(loss.weight, loss.sum.detach(), first_micro_);
  apart_->add_loss(loss.weight, loss.sum.detach());
  first_micro_ = false;
}

void ReplicatedData::last_backward(int part) { sending_[static_cast<size_t>(part)] = 1; }

void ReplicatedData::ready(int parameter) {
  const auto index = static_cast<size_t>(parameter);
  if (!order_known_ && !seen_[index]) {
    seen_[index] = 1;
    order_.push_back(parameter);
  }
  if (reducing_ && sending_[static_cast<size_t>(part_of_[index])]) reducer_.ready(parameter);
}

void ReplicatedData::keep() {
  if (!order_known_) agree_on_order();
}

UpdateFigures ReplicatedData::update(double nominal, bool told) {
  if (!order_known_) agree_on_order();
  for (auto& collector : collectors_) collector->finish();
  const bool apart = with_rows_.empty();
  if (apart && !reducing_) start_reducing();
  reducing_ = false;
  if (apart) reducer_.flush();
  const bool buffers = apart_->shares_buffers();
  if (buffers) buffer_sync_->start();
  exchange_rows();
  const auto buckets = static_cast<int>(flat_->buckets().size());
  if (!partial_.empty()) {
    for (int bucket = 0; apart && bucket < buckets; ++bucket) reducer_.wait(bucket);
    sum_partial();
  }
  for (int bucket = 0; bucket < buckets; ++bucket) {
    if (apart && partial_.empty()) reducer_.wait(bucket);
    if (bucket == 0) {
      share_header();
      apart_->prepare();
      update_.begin(nominal);
    }
    update_.reduced(bucket);
  }
  // Who accumulates does not know which step's figures are told next, and updates seldom.
  update_.reduced_rows(rows_->finite_sums(), told || options_.sync.every > 1);
  const UpdateFigures figures = update_.finish();
  rows_->written();
  if (buffers) buffer_sync_->finish();
  apart_->updated(figures);
  return figures;
}

// As numbers of one dtype, since a stage without parameters has its header in another than the rest.
void ReplicatedData::share_header() {
  if (pipeline_->size() == 1) return;
  const at::TensorOptions real = at::TensorOptions(at::kDouble).device(device_);
  std::vector<at::Tensor> headers{flat_->header()};
  if (apart_->any()) headers.push_back(apart_->own_header());
  std::vector<at::Tensor> wide;
  for (const at::Tensor& header : headers) wide.push_back(header.to(real));
  at::Tensor shared = at::cat(wide);
  pipeline_->broadcast(shared, pipeline_->size() - 1, {"loss and weight", {}})->wait();
  for (size_t i = 0; i < headers.size(); ++i) headers[i].copy_(shared.narrow(0, 2 * static_cast<int64_t>(i), 2));
}

void ReplicatedData::sum_partial() {
  for (const ParameterPtr& parameter : partial_)
    parameter->partial->all_reduce(parameter->gradient, ReduceOp::sum, {"gradient of " + parameter->name, {}})->wait();
}

// The dense gradients' messages, where they are small enough to travel with rows; none otherwise.
std::vector<at::Tensor> ReplicatedData::messages_with_rows() const {
  // Where sums are sent in another way too, or not at all, they take that.
  if (update_.tables().empty() || !options_.sync.plain()) return {};
  std::vector<at::Tensor> messages;
  double bytes = 0;
  for (int bucket = 0; bucket < static_cast<int>(flat_->buckets().size()); ++bucket) {
    messages.push_back(flat_->message(bucket));
    bytes += static_cast<double>(messages.back().nbytes());
  }
  return bytes <= most_dense_with_rows ? messages : std::vector<at::Tensor>();
}

void ReplicatedData::exchange_rows() {
  rows_->run(with_rows_);
  apart_->exchange_rows();
}

void ReplicatedData::visit_state(const StateVisitor& visit) {
  rows_->read();
  rows_->complete();
  visit_parts(parts_, *flat_, update_, {group_->rank(), group_->size(), first_of_job_}, visit);
  apart_->visit(visit);
  reducer_.visit(visit);
  rows_->visit(visit);
}

// What is left of `sync` is a sequence of operations that is the same at every update: narrowed gradients too.
std::string ReplicatedData::obstacle() const {
  if (options_.sync.ever_apart()) return "replicas that train apart (sync.what) agree at updates that the host counts";
  if (!update_.tables().empty()) return "row tables have as many rows as a step touches";
  const std::vector<at::DeviceType> devices = group_->capabilities().devices;
  const bool on_host = std::find(devices.begin(), devices.end(), at::kCPU) != devices.end();
  if (device_.is_cuda() && group_->size() > 1 && on_host)
    return str("backend ", group_->backend(), " has the host wait in the middle of a step; take nccl");
  for (const ModelPart* part : parts_)
    if (part->state()->drew) return "its dropout draws with keys of the host's";
  return "";
}

void ReplicatedData::lay_out(const std::vector<int>& order) {
  const auto buckets = apart_->buckets(parameters_, order, options_.first_bytes, options_.cap_bytes);
  auto flat = std::make_unique<FlatParameters>(parameters_, buckets, optimizer_);
  if (flat_) flat->header().copy_(flat_->header());
  update_.attach(*flat);
  apart_->attach(flat_.get(), *flat);
  reducer_.attach(flat_.get(), *flat, [this](int bucket) { return apart_->ever_shared(bucket); });
  flat_ = std::move(flat);
  with_rows_ = messages_with_rows();
  laid_out_ = order;
}

// Rank 0's order for all; what it did not use comes last.
void ReplicatedData::agree_on_order() {
  for (size_t index = seen_.size(); index-- > 0;)
    if (!seen_[index]) order_.push_back(static_cast<int>(index));
  at::Tensor shared = at::tensor(at::ArrayRef<int>(order_), at::kLong).to(flat_->header().device());
  group_->broadcast(shared, 0, {"order of gradients", {}})->wait();
  shared = shared.cpu();
  for (size_t i = 0; i < order_.size(); ++i)
    order_[i] = static_cast<int>(shared[static_cast<int64_t>(i)].item<int64_t>());
  if (sends_late()) lay_out(order_);
  order_known_ = true;
}

// Laying out anew holds everything twice for a moment, so only where some bucket would wait for much more than its own
// gradients: a quarter of a bucket, where one's size was given, else of the largest.
bool ReplicatedData::sends_late() const {
  const auto bytes_of = [&](int parameter) {
    return static_cast<double>(parameters_[static_cast<size_t>(parameter)]->value.nbytes());
  };
  std::vector<double> there(parameters_.size());  // how much has come when it does
  double come = 0;
  for (int parameter : order_) there[static_cast<size_t>(parameter)] = come += bytes_of(parameter);
  double laid_out = 0;
  for (const FlatParameters::Bucket& bucket : flat_->buckets()) {
    double complete = 0;
    for (int parameter : bucket.parameters) {
      laid_out += bytes_of(parameter);
      complete = std::max(complete, there[static_cast<size_t>(parameter)]);
    }
    if (complete > laid_out + late_bytes_) return true;
  }
  return false;
}

}  // namespace convoy
