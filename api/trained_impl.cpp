#include "api/trained_impl.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "convoy/model_of.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/optim/precision.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/common/step/start_checks.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {
namespace {

// The tensors that a module has registered itself, without those of its children.
struct RootBlock : public Block {
  explicit RootBlock(torch::nn::Module& module) {
    for (auto& entry : module.named_parameters(/*recurse=*/false))
      if (entry.value().defined()) register_parameter(entry.key(), entry.value(), entry.value().requires_grad());
    for (auto& entry : module.named_buffers(/*recurse=*/false))
      if (entry.value().defined()) register_buffer(entry.key(), entry.value());
  }
  TensorList forward(const TensorList& inputs) override { return inputs; }
};

using NamedBlocks = std::vector<std::pair<std::string, BlockPtr>>;

at::Tensor not_called(const at::Tensor&) {
  CONVOY_CHECK(false, "the forward of a user's module goes through the user");
}

NamedBlocks blocks_of(torch::nn::Module& module, bool by_children) {
  // Does not own the module.
  const std::shared_ptr<torch::nn::Module> whole(std::shared_ptr<torch::nn::Module>(), &module);
  if (!by_children) return {{"", std::make_shared<ModuleBlock>(whole, not_called)}};
  NamedBlocks blocks;
  if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module)) {
    auto child = sequential->begin();
    for (const auto& entry : module.named_children())
      blocks.emplace_back(entry.key(), std::make_shared<ModuleBlock>(*child++));
    return blocks;
  }
  blocks.emplace_back("", std::make_shared<RootBlock>(module));
  for (const auto& entry : module.named_children())
    blocks.emplace_back(entry.key(), std::make_shared<ModuleBlock>(entry.value(), not_called));
  return blocks;
}

// A model of blocks that exist already, for one rank.
class BuiltModel : public Model {
 public:
  explicit BuiltModel(NamedBlocks blocks) : blocks_(std::move(blocks)) {}
  int64_t blocks() const override { return int64_t(blocks_.size()); }
  std::string block_name(int64_t index) const override { return blocks_[size_t(index)].first; }
  BlockPtr block(int64_t index, Layers&) const override { return blocks_[size_t(index)].second; }
  TensorList inputs(const Batch& batch) const override { return {batch.at("input")}; }
  std::string default_loss() const override { return "of the program"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }

 private:
  NamedBlocks blocks_;
};

// The precision that a module's parameters have. Error(config) if they differ.
std::string precision_of(torch::nn::Module& module) {
  std::string first;
  std::optional<at::ScalarType> dtype;
  for (const auto& entry : module.named_parameters()) {
    if (!entry.value().defined() || !entry.value().is_floating_point()) continue;
    if (dtype && entry.value().scalar_type() != *dtype)
      throw Error(Failure::config, "parameter ", first, " has type ", *dtype, ", but ", entry.key(), " has ",
                  entry.value().scalar_type(), "; convert the module with to(torch::kFloat) or to(torch::kDouble)");
    dtype = entry.value().scalar_type();
    if (first.empty()) first = entry.key();
  }
  if (!dtype) throw Error(Failure::config, "the module has no parameter to train; register one");
  if (*dtype == at::kFloat) return "fp32";
  if (*dtype == at::kDouble) return "fp64";
  throw Error(Failure::config, "parameter ", first, " is of ", *dtype,
              ", and optimizers need float or double; convert the module with to(torch::kFloat), and set the option "
              "precision for products in half precision");
}

// Autograd allocates a new gradient for each parameter of a torch module. glibc takes blocks above 24 MiB
// (rank_process.cpp) from the system and returns them, which costs a page fault every 4 KiB in each step. Call it when
// the permanent blocks have been allocated, so that those leave no holes in the heap. Explicit settings of the user
// take precedence.
void keep_large_blocks_in_heap() {
  for (const char* name : {"MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"})
    if (std::getenv(name) != nullptr) return;
  mallopt(M_MMAP_MAX, 0);
}

Context context_for(const Context& job, const TrainedRequest& request, const TrainedSettings& settings) {
  Context context = job;
  context.config = trained_config(job.config, settings, precision_of(request.module));
  context.config.model.name = "of the program";
  context.config.loss.name = "of the program";
  return context;
}

}  // namespace

Trained::Impl::Impl(const Context& context, const TrainedRequest& request, const TrainedSettings& settings,
                    const Kind& kind)
    : job_users_(request.job_users),
      context_(context_for(context, request, settings)),
      kept_(request.module.weak_from_this().lock()),
      module_(request.module),
      kind_(kind),
      optimizer_(request.optimizer),
      nominal_(at::zeros({1}, at::kDouble)) {
  if (request.continues && optimizer_ != nullptr && !TorchOptimizer::knows(*optimizer_))
    throw Error(Failure::config, "launch.min_ranks is ", context_.config.launch.min_ranks,
                ", and convoy does not know ",
                "the members of this optimizer's class, so a rank could not send its state to another one; take SGD, ",
                "Adam, AdamW, Adagrad, RMSprop or a class derived from them, or set launch.min_ranks=0");
  set_up();
  set_steps(0);
}

void Trained::Impl::set_up() {
  loss_check_.emplace(context_);
  coverage_.emplace(context_);
  PartRequest part;
  part.keep_dtypes = true;
  part_.emplace(context_, std::make_shared<BuiltModel>(blocks_of(module_, kind_.by_children)), nullptr, part);
  if (part_->parameters().empty())
    throw Error(Failure::config,
                "no parameter of the module requires a gradient; call requires_grad_(true) on those to "
                "train");
  const std::vector<ModelPart*> parts{&*part_};
  make_optimizer();
  const Options& strategy = context_.config.strategy.options;
  OptimizerFactory factory;
  if (torch_optimizer_) factory = [optimizer = torch_optimizer_] { return optimizer->layout(); };
  data_ = kind_.data(context_, parts, strategy, std::move(factory));
  const SyncPolicy policy = sync_policy(strategy);
  every_ = policy.every;
  follows_ = context_.devices.front().is_cpu() && !policy.ever_local();
  note_memory();
  result_.metrics = {{"loss", at::zeros({}, at::kDouble), at::zeros({}, at::kDouble), true}};
}

Trained::Impl::~Impl() = default;

void Trained::Impl::detach() {
  skipped_ = nullptr;
  data_.reset();
  torch_optimizer_.reset();
  part_.reset();
  coverage_.reset();
  homes_.clear();
  context_.world.reset();
  context_.axes.clear();
  context_.channel.reset();
}

void Trained::Impl::attach(const Context& job) {
  RunConfig config = std::move(context_.config);
  context_ = job;
  context_.config = std::move(config);
  accumulated_ = postponed_ = skips_ = 0;
  checks_ = 0;
  forwarded_ = adopted_ = all_reached_ = false;
  set_up();
}

std::vector<double> Trained::Impl::learning_rates() const {
  std::vector<double> rates;
  if (optimizer_ == nullptr) {
    if (const std::optional<double> set = end_of_step().base_rate()) rates.push_back(*set);
    return rates;
  }
  for (const auto& group : optimizer_->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void Trained::Impl::set_learning_rates(const std::vector<double>& rates) {
  if (optimizer_ == nullptr)
    return end_of_step().set_base_rate(rates.empty() ? std::nullopt : std::make_optional(rates.front()));
  for (size_t group = 0; group < rates.size(); ++group)
    optimizer_->param_groups().at(group).options().set_lr(rates[group]);
}

void Trained::Impl::skip_calls(int64_t calls, std::function<void()> done) {
  skips_ = calls;
  skipped_ = std::move(done);
}

// Reports an update for the last skipped call, and without accumulation for each call that ends a step: a program may
// step a scheduler after each update.
StepReport Trained::Impl::skip_call(bool last) {
  ++calls_;
  StepReport report;
  report.updated = --skips_ == 0 || (last && every_ == 1);
  if (report.updated) report.gradient_norm = at::full({}, std::nan(""), at::kDouble);
  if (report.updated && context_.config.precision == "fp16")
    report.skipped = at::zeros({}, at::TensorOptions(part_->device()).dtype(at::kBool));
  result_ = StepResult();
  result_.metrics = {{"loss", at::zeros({}, at::kDouble), at::zeros({}, at::kDouble), true}};
  result_.updated = report.updated;
  if (skips_ == 0 && skipped_) std::exchange(skipped_, nullptr)();
  end_step(last);
  return report;
}

void Trained::Impl::make_optimizer() {
  if (optimizer_ == nullptr) return;
  NamedTensors all;
  for (const auto* list : {&part_->parameters(), &part_->frozen()})
    for (const ParameterPtr& parameter : *list) all.emplace_back(parameter->name, parameter->value);
  torch_optimizer_ = std::make_shared<TorchOptimizer>(*optimizer_, all);
  torch_optimizer_->before_step([this] { share_reached(); });
  const std::string unknown = torch_optimizer_->unknown_class();
  if (unknown.empty()) return;
  if (context_.config.strategy.name != replicas_strategy().name)
    throw Error(
        Failure::config, "Shards cannot shard the state of ", unknown,
        "; take SGD, Adam, AdamW, Adagrad, RMSprop or a class derived from them, a FusedOptimizer, or Replicas");
  if (context_.rank == 0)
    log::warning(str("checkpoints leave out the state of ", unknown,
                     ", whose members convoy does not know; a resumed run begins with a new state"));
}

void Trained::Impl::set_steps(int64_t steps) {
  step_ = steps;
  context_.state->step(steps);
}

Sampling Trained::Impl::sampling() const {
  const CommunicatorPtr data = context_.axis("data");
  return {data->rank(), data->size(), 1};
}

void Trained::Impl::check_equal_values() {
  std::vector<ParameterPtr> parameters = data_->equal_parameters();
  // Each rank of Replicas has whole frozen parameters. No rank sends them after the start, so they may differ too.
  if (kind_.adopts) parameters.insert(parameters.end(), part_->frozen().begin(), part_->frozen().end());
  convoy::check_equal_values(context_, parameters, checks_++);
}

void Trained::Impl::visit_state(const StateVisitor& visit) {
  data_->visit_state(visit);
  visit(state_entry("loss_divisor", StateKind::counter, nominal_, context_.rank == 0));
}

namespace {

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             b.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset();
}

}  // namespace

// A step may give parameters a new layout.
void Trained::Impl::note_memory() {
  if (homes_.empty()) {
    for (const ParameterPtr& parameter : part_->parameters()) homes_.push_back({parameter->name, parameter->value, {}});
    for (const NamedBuffer& buffer : part_->buffers()) homes_.push_back({buffer.name, buffer.value, {}});
  }
  for (Home& home : homes_)
    if (!home.memory.defined() || !same_memory(home.tensor, home.memory)) home.memory = home.tensor.variable_data();
}

// torch::load, Module::to and set_data give a tensor other memory, which this object would not update. This moves the
// values to the old memory, between the forward of a step and its backward.
void Trained::Impl::adopt_loaded() {
  check_frozen();
  if (torch_optimizer_) torch_optimizer_->adopt_loaded_state();
  bool moved = false;
  at::NoGradGuard no_grad;
  for (Home& home : homes_) {
    at::Tensor& tensor = home.tensor;
    if (same_memory(tensor, home.memory)) continue;
    const char* const call = "(torch::load, Module::to or set_data)";
    if (tensor.sizes() != home.memory.sizes() || tensor.scalar_type() != home.memory.scalar_type() ||
        tensor.device() != home.memory.device())
      throw Error(Failure::config, "step ", step_, ": ", home.name, " was ", home.memory.scalar_type(), " ",
                  home.memory.sizes(), " on ", home.memory.device(), " and is now ", tensor.scalar_type(), " ",
                  tensor.sizes(), " on ", tensor.device(), " ", call, "; change the module before ",
                  "Replicas or Shards are made");
    if (!kind_.adopts)
      throw Error(Failure::config, "step ", step_, ": the program gave ", home.name, " other memory ", call,
                  ", and Shards would not train it; load the module before Shards is made");
    home.memory.copy_(tensor);
    tensor.set_data(home.memory);
    moved = true;
  }
  if (!moved) return;
  data_->watch_gradients();
  if (!std::exchange(adopted_, true) && context_.rank == 0)
    log::info(str("step ", step_, ": takes over the values that the program loaded into the module"));
}

// Which gradients are averaged is decided once, so a parameter that is unfrozen later would differ between ranks.
void Trained::Impl::check_frozen() {
  const char* const advice =
      "; leave it trainable, and give its parameter group a learning rate of 0 while it is frozen";
  for (const ParameterPtr& parameter : part_->parameters())
    if (!parameter->value.requires_grad())
      throw Error(Failure::config, "step ", step_, ": the program froze ", parameter->name,
                  " (requires_grad_(false)), which was trained when Replicas or Shards were made; momentum and weight ",
                  "decay would still change it", advice);
  for (const ParameterPtr& parameter : part_->frozen())
    if (parameter->value.requires_grad())
      throw Error(
          Failure::config, "step ", step_, ": ", parameter->name,
          " requires a gradient and was frozen when Replicas or Shards were made, so no rank would average its ",
          "gradients", advice);
}

at::Tensor Trained::Impl::forward(const at::Tensor& input) {
  if (dynamic_cast<torch::nn::SequentialImpl*>(&module_) == nullptr)
    throw Error(Failure::config, "Shards::forward is for a torch::nn::Sequential; call forward of the module itself");
  Batch batch;
  batch.tensors = {{"input", input}};
  batch.rows = input.dim() == 0 ? 1 : input.size(0);
  if (!module_.is_training()) return part_->evaluate(batch).front();
  forwarded_ = true;
  return part_->forward(batch, step_).front();
}

StepReport Trained::Impl::run(const Loss* given, bool last) {
  if (skips_ > 0) return skip_call(last);
  const at::TensorOptions real = at::TensorOptions(part_->dtype()).device(part_->device());
  const Loss loss = given != nullptr ? *given : Loss{at::zeros({}, real), at::zeros({}, real)};
  const bool updates = last && postponed_ + 1 == every_;
  part_->state()->step = step_;
  context_.state->phase("forward/backward");
  // Forward communicates before all else in the step. A rank without a forward takes part in that here.
  if (kind_.drives && !forwarded_) part_->pass_over();
  forwarded_ = false;
  if (nominal_.item<double>() == 0) choose_nominal(loss);
  const double nominal = nominal_.item<double>();
  ++calls_;
  adopt_loaded();
  data_->begin(accumulated_ == 0, updates);
  data_->add_loss(loss);
  if (updates) data_->last_backward(0);
  part_->backward(loss, nominal);
  // The program may call this while its autocast is on.
  if (autocast_dtype(context_.config.precision)) clear_autocast_cache();
  result_ = StepResult();
  result_.metrics = {loss_metric(loss)};
  result_.updated = updates;
  accumulated_ = updates ? 0 : accumulated_ + 1;
  postponed_ = updates ? 0 : postponed_ + (last ? 1 : 0);
  if (updates) {
    context_.state->phase("optimizer");
    const TimeBreakdown::Scope counted(*context_.times, TimePart::update);
    const UpdateStatistics statistics = data_->update(nominal, /*log_step=*/true);
    coverage_->updated({&*part_});
    result_.finite = statistics.finite;
    result_.gradient_norm = statistics.norm;
    result_.learning_rate = statistics.learning_rate;
    result_.skipped = statistics.skipped;
    follow_nominal();
    if (on_update_) on_update_();
    // A process without a supervisor belongs to an application, which keeps its allocator settings.
    if (updates_here_++ == 0 && context_.channel->supervised() != nullptr && part_->device().is_cpu())
      keep_large_blocks_in_heap();
  } else {
    data_->keep();
  }
  loss_check_->check_finite(result_, step_);
  if (on_loss_) {
    Metric own = result_.metrics.front();
    if (!updates) own.sum = own.sum.clone();  // the program may reuse its tensor before the step is counted
    on_loss_(own);
  }
  end_step(last);
  return {updates, result_.gradient_norm, result_.skipped};
}

void Trained::Impl::end_step(bool last) {
  note_memory();
  if (last) set_steps(step_ + 1);
  context_.state->phase("training");
}

// The first divisor is the weight of the first backward, over all ranks.
void Trained::Impl::choose_nominal(const Loss& loss) {
  at::Tensor total = loss.weight.detach().to(at::kDouble).reshape({1}).clone();
  context_.axis("data")->all_reduce(total, ReduceOp::sum, {"first weight", {}})->wait();
  const double weight = total.item<double>();
  if (weight == 0 && context_.rank == 0)
    log::warning(str("step ", step_,
                     ": the weight of the loss is 0 on all ranks, and a step without weight updates by "
                     "gradients of 0; give step() the number of rows, or the sum of their weights"));
  nominal_.fill_(weight > 0 ? weight : 1);
}

// Uses this update's weight as divisor of the next update. Weights are usually equal; then gradients need no factor.
void Trained::Impl::follow_nominal() {
  if (!follows_) return;
  const double weight = data_->end_of_step().header()[0].item<double>();
  if (weight > 0) nominal_.fill_(weight);
}

void Trained::Impl::share_reached() {
  if (all_reached_) return;
  std::vector<int> flags;
  for (const ParameterPtr& parameter : part_->parameters())
    flags.push_back(parameter->reached || torch_optimizer_->was_stepped(flags.size()) ? 1 : 0);
  at::Tensor shared = at::tensor(at::ArrayRef<int>(flags), at::kInt);
  context_.axis("data")->all_reduce(shared, ReduceOp::max, {"parameters with gradients", {}})->wait();
  const int* const values = shared.const_data_ptr<int>();
  std::vector<bool> reached(values, values + shared.numel());
  all_reached_ = std::all_of(reached.begin(), reached.end(), [](bool one) { return one; });
  reached.resize(flags.size() + part_->frozen().size(), false);
  torch_optimizer_->set_reached(reached);
}

void Trained::Impl::setup(const Context&, ModelPtr, LossPtr) { CONVOY_CHECK(false, "a Trained sets itself up"); }
StepResult Trained::Impl::step(const StepInput&) { CONVOY_CHECK(false, "the program makes the steps of a Trained"); }
std::vector<Metric> Trained::Impl::evaluate(const Batch&) {
  CONVOY_CHECK(false, "the program evaluates the module of a Trained");
}

}  // namespace convoy
