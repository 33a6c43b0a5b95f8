#include "strategies/ensemble/stacked_members.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <list>
#include <numeric>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/optim/precision.h"
#include "core/tensors/init.h"
#include "strategies/common/model/visit_parts.h"

namespace convoy {
namespace {

constexpr const char* as_one_stack = "as one stack";
constexpr const char* side_by_side = "side by side";

Context of_member(const Context& context, const MemberSettings& member) {
  Context own = context;
  own.config.seed = member.seed;
  return own;
}

// Slices one member's rows out of a batch [members, rows, …].
Batch rows_of_member(const Batch& batch, int64_t row) {
  Batch own = batch;
  for (auto& entry : own.tensors) entry.second = entry.second.select(0, row);
  return own;
}

// Expands the batch for `members`, without copies.
Batch shared_by(const Batch& batch, int64_t members) {
  Batch shared = batch;
  for (auto& entry : shared.tensors) {
    std::vector<int64_t> shape = entry.second.sizes().vec();
    shape.insert(shape.begin(), members);
    entry.second = entry.second.unsqueeze(0).expand(shape);
  }
  return shared;
}

// Copies the batch for a model that may change its input in place while others use the same input.
Batch copied(const Batch& batch) {
  Batch copy = batch;
  for (auto& entry : copy.tensors) entry.second = entry.second.clone();
  return copy;
}

std::vector<uint32_t> versions_of(const Batch& batch) {
  std::vector<uint32_t> versions;
  for (const auto& entry : batch.tensors) versions.push_back(entry.second._version());
  return versions;
}

double nominal_of(const Batch& batch) { return std::max<double>(1, double(batch.nominal_rows)); }

Loss joined(const std::vector<Loss>& losses) {
  std::vector<at::Tensor> sums, weights;
  for (const Loss& loss : losses) {
    sums.push_back(loss.sum.detach().reshape({}));
    weights.push_back(loss.weight.reshape({}));
  }
  return {at::stack(sums), at::stack(weights)};
}

}  // namespace

struct StackedMembers::SingleMember {
  std::unique_ptr<ModelPart> part;
  std::unique_ptr<GradientCollector> collector;
};

StackedMembers::StackedMembers(const Context& context, const EnsembleOptions& options, ModelPtr model, LossPtr loss,
                               std::vector<MemberSettings> members)
    : context_(context),
      options_(options),
      model_(std::move(model)),
      loss_(std::move(loss)),
      members_(std::move(members)),
      active_(int64_t(members_.size())),
      dtype_(parameter_dtype(context_.config.precision)),
      chosen_by_trial_(at::zeros({active_}, at::kLong)),
      first_gradients_(context_) {
  build();
  update_ = std::make_unique<StackedUpdate>(context_, *storage_, members_);
  best_ = std::make_unique<BestMembers>(*storage_, members_);
  graph_ = std::make_unique<StepGraph>(context_, options_.graph, graph_parts());
}

StackedMembers::~StackedMembers() = default;

std::unique_ptr<ModelPart> StackedMembers::make_stack(int64_t rows, std::shared_ptr<Stack>& stack) const {
  stack = std::make_shared<Stack>();
  stack->grouped = options_.convolutions == Convolutions::grouped ||
                   (options_.convolutions == Convolutions::automatic && context_.devices.front().is_cuda());
  for (int64_t row = 0; row < rows; ++row) stack->seeds.push_back(members_[size_t(row)].seed);
  PartRequest request;
  request.layers = [&stack](std::shared_ptr<LayerStore> store) {
    return std::make_shared<StackedLayers>(std::move(store), stack);
  };
  return std::make_unique<ModelPart>(context_, model_, loss_, request);
}

StackedMembers::SingleMember StackedMembers::make_single(const MemberSettings& member, bool deferred) const {
  PartRequest request;
  request.deferred = deferred;
  SingleMember single;
  single.part = std::make_unique<ModelPart>(of_member(context_, member), model_, loss_, request);
  single.collector = std::make_unique<GradientCollector>(single.part->parameters(), single.part->state(), [](int) {});
  return single;
}

void StackedMembers::build() {
  std::shared_ptr<Stack> stack;
  stack_ = make_stack(active_, stack);
  const bool frozen = !stack_->frozen().empty();
  if (frozen || stack->parameters.size() != stack_->parameters().size() ||
      std::any_of(stack_->buffers().begin(), stack_->buffers().end(), [&](const NamedBuffer& buffer) {
        return buffer.value.dim() == 0 || buffer.value.size(0) != active_;
      })) {
    stack_.reset();
    stacked_ = false;
    chosen_ = true;
    for (const MemberSettings& member : members_) single_.push_back(make_single(member, false));
    storage_ = std::make_unique<StackedStorage>(*single_.front().part, false, members_, context_.config.optimizer);
    for (int64_t row = 0; row < active_; ++row) {
      storage_->copy(row, *single_[size_t(row)].part);
      storage_->bind_row(*single_[size_t(row)].part, row);
    }
    report_mode(frozen ? "a stack has no frozen parameters" : "the model has foreign modules");
    return;
  }
  storage_ = std::make_unique<StackedStorage>(*stack_, true, members_, context_.config.optimizer);
  for (int64_t row = 0; row < active_; ++row) storage_->fill(row, *stack, members_[size_t(row)].seed);
  storage_->bind(*stack_, active_);
  if (convolves_on_a_cpu(*stack)) {
    build_single();
    return use_single("convolutions on a CPU gain nothing from a stack");
  }
  collector_ = std::make_unique<GradientCollector>(stack_->parameters(), stack_->state(), [](int) {});
}

void StackedMembers::report_mode(const std::string& why) const {
  const std::string mode = stacked_ ? as_one_stack : side_by_side;
  log::info(convoy::str("ensemble: rank ", context_.rank, " trains ", counted(int64_t(members_.size()), "member"), " ",
                        mode, ": ", why));
  // Earlier versions measured the passes; the field stays.
  const Json report{{"members", members_.size()}, {"trained", mode}, {"because", why}, {"seconds_per_pass", nullptr}};
  context_.add_to_summary({{"ensemble", report}});
}

// --- Execution mode ---

void StackedMembers::build_single() {
  for (int64_t row = 0; row < int64_t(members_.size()); ++row) {
    single_.push_back(make_single(members_[size_t(row)], true));
    storage_->bind_row(*single_.back().part, row);
  }
}

void StackedMembers::use_single(const std::string& why) {
  chosen_ = true;
  stacked_ = false;
  report_mode(why);
  collector_.reset();
  stack_.reset();
}

void StackedMembers::use_stack(const std::string& why) {
  chosen_ = true;
  report_mode(why);
  single_.clear();
  storage_->bind(*stack_, active_);
}

// Chooses once, with the first batch: checks that a stack computes the same losses as single members. Does not change
// the members' state.
void StackedMembers::choose_mode(const Batch& batch) {
  build_single();
  const std::string fault = difference_from_single(batch);
  const auto count = int64_t(members_.size());
  chosen_by_trial_.fill_(fault.empty() ? count : -count);
  if (!fault.empty()) return use_single(fault);
  use_stack(active_ > 1 ? "one batched product per layer" : "there is one member");
}

void StackedMembers::restored() {
  update_->restored();
  if (chosen_) return;
  const auto count = int64_t(members_.size());
  const auto stored = [&](int64_t choice) { return chosen_by_trial_.eq(choice).all().item<bool>(); };
  const std::string why = "as before the checkpoint";
  if (stored(count)) return use_stack(why);
  if (!stored(-count)) return;  // another layout, or an earlier version: the next step chooses
  build_single();
  use_single(why);
}

// Convolutions on a CPU gain nothing from a stack, which must split and join activations around each. Finished members
// count too, so a resumed run gets the same result.
bool StackedMembers::convolves_on_a_cpu(const Stack& stack) const {
  return options_.how == EnsembleMode::automatic && options_.convolutions == Convolutions::automatic &&
         stack.convolves && members_.size() > 1 && context_.devices.front().is_cpu();
}

// Returns why the stack differs from single members on this batch, or "".
std::string StackedMembers::difference_from_single(const Batch& batch) {
  at::NoGradGuard no_grad;
  // Training draws as if there had been no trial. Ranks that share a generator draw in any order, so they leave it.
  std::list<KeptGenerator> kept;
  if (context_.process_ranks == 1) {
    kept.emplace_back(at::kCPU);
    if (const at::Device device = context_.devices.front(); !device.is_cpu()) kept.emplace_back(device);
  }
  at::Tensor together;
  try {
    together = stack_->metrics(stack_->evaluate(copied(batch)), batch).front().sum;
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    return convoy::str("its blocks do not accept a member dimension (", error.what(), ")");
  }
  if (together.dim() != 1 || together.size(0) != active_)
    return convoy::str("its loss has shape ", together.sizes(), " for ", active_, " members");
  std::vector<at::Tensor> each;
  for (int64_t row = 0; row < active_; ++row) {
    ModelPart& part = *single_[size_t(row)].part;
    const Batch own = rows_of_member(batch, row);
    each.push_back(part.metrics(part.evaluate(copied(own)), own).front().sum.reshape({}));
  }
  const at::Tensor separate = at::stack(each);
  const bool bf16 = context_.config.precision == "bf16";
  // The first step reports losses that are not finite.
  if (!at::isfinite(separate).all().item<bool>() ||
      at::allclose(together, separate, bf16 ? 5e-2 : 1e-3, bf16 ? 5e-2 : 1e-4))
    return "";
  return "a stack computes other losses than single members";
}

// --- Steps ---

void StackedMembers::run_stack(const Batch& batch, int64_t step) {
  collector_->begin();
  const Loss loss = stack_->loss(stack_->forward(batch, step), batch);
  step_loss_ = {loss.sum.detach(), loss.weight};
  stack_->backward(loss, nominal_of(batch));
  collector_->finish();
}

void StackedMembers::run_single(const Batch& batch, int64_t step) {
  Losses losses;
  for (int64_t row = 0; row < active_; ++row) {
    SingleMember& single = single_[size_t(row)];
    const Batch own = rows_of_member(batch, row);
    single.collector->begin();
    const Loss loss = single.part->loss(single.part->forward(own, step), own);
    losses.push_back({loss.sum.detach(), loss.weight});
    single.part->backward(loss, nominal_of(batch));
    single.collector->finish();
  }
  step_loss_ = joined(losses);
}

StepResult StackedMembers::step(const StepInput& input) {
  if (!chosen_) choose_mode(prepared(input.batch, context_.devices.front(), dtype_));
  StepResult result = graph_->run(input);
  check_finite(std::exchange(result.finite, at::Tensor()), result.metrics.front().sum);
  return result;
}

StepGraph::Hooks StackedMembers::graph_parts() {
  return {[this] { update_->set_rates(); }, [this](const StepInput& input) { return trained(input); },
          [this](const StateVisitor& visit) { visit_state(visit); },
          [this]() -> std::string {
            bool drew = stack_ && stack_->state()->drew;
            for (const SingleMember& single : single_) drew = drew || single.part->state()->drew;
            return drew ? "its dropout uses random keys from the host" : "";
          }};
}

StepResult StackedMembers::trained(const StepInput& input) {
  const Batch batch = prepared(input.batch, context_.devices.front(), dtype_);
  if (stacked_)
    run_stack(batch, input.step);
  else
    run_single(batch, input.step);
  context_.state->phase("optimizer");
  const TimeBreakdown::Scope counted(*context_.times, TimePart::update);
  update_->set_loss(step_loss_);
  const UpdateStatistics statistics = update_->finish(nominal_of(batch));
  report_gradients();
  StepResult result;
  result.metrics = {loss_metric(step_loss_)};
  result.finite = statistics.finite;
  result.gradient_norm = statistics.norm;
  result.learning_rate = statistics.learning_rate;
  return result;
}

void StackedMembers::report_gradients() {
  std::vector<ModelPart*> parts;
  if (stack_) parts.push_back(stack_.get());
  for (const SingleMember& single : single_) parts.push_back(single.part.get());
  first_gradients_.updated(parts);
}

// Each rank reports its members without waiting for other ranks.
// On CUDA it reads the flag of the previous step, so that the host never waits for the current one.
void StackedMembers::check_finite(at::Tensor finite, at::Tensor loss) {
  if (finite.is_cuda()) {
    std::swap(finite, pending_finite_);
    std::swap(loss, pending_loss_);
    if (!finite.defined() || finite.size(0) != active_) return;
  }
  if (finite.all().item<bool>()) return;
  std::vector<std::string> names;
  bool of_loss = false;
  for (int64_t row = 0; row < active_; ++row) {
    if (finite[row].item<bool>()) continue;
    const MemberSettings& member = members_[size_t(row)];
    names.push_back(convoy::str(member.number, " (lr ", member.learning_rate, ")"));
    of_loss = of_loss || !at::isfinite(loss[row]).item<bool>();
  }
  throw Error(Failure::training, of_loss ? "the loss" : "a gradient", " of member ", join(names, ", "),
              " is not finite; its update was not applied and nothing was saved. Try a smaller lr for it, "
              "optimizer.clip_norm, or look at the data of that step");
}

// --- Evaluation ---

StackedMembers::Evaluation StackedMembers::evaluate_stack(ModelPart& part, const Batch& given, bool held_out) const {
  Batch batch = prepared(given, part.device(), part.dtype());
  if (!held_out) batch = shared_by(batch, int64_t(members_.size()));
  Evaluation all;
  all.outputs = part.evaluate(batch);
  all.metrics = part.metrics(all.outputs, batch);
  return all;
}

StackedMembers::Evaluation StackedMembers::evaluate_single(const Batch& given, bool held_out) const {
  std::vector<TensorList> outputs;  // by member
  std::vector<std::vector<Metric>> metrics;
  bool changes = true;  // the first member shows whether its blocks change their input
  for (size_t row = 0; row < single_.size(); ++row) {
    ModelPart& part = *single_[row].part;
    const Batch batch = held_out ? rows_of_member(given, int64_t(row)) : changes ? copied(given) : given;
    const std::vector<uint32_t> versions = versions_of(batch);
    outputs.push_back(part.evaluate(batch));
    metrics.push_back(part.metrics(outputs.back(), batch));
    changes = versions_of(batch) != versions;
  }
  Evaluation all;
  const auto of_members = [&](const auto& take) {
    TensorList each;
    for (size_t row = 0; row < single_.size(); ++row) each.push_back(take(row));
    return at::stack(each);
  };
  for (size_t i = 0; i < outputs.front().size(); ++i)
    all.outputs.push_back(of_members([&](size_t row) { return outputs[row][i]; }));
  all.metrics = metrics.front();
  for (size_t i = 0; i < all.metrics.size(); ++i) {
    all.metrics[i].sum = of_members([&](size_t row) { return metrics[row][i].sum; });
    all.metrics[i].weight = of_members([&](size_t row) { return metrics[row][i].weight; });
  }
  return all;
}

StackedMembers::Evaluation StackedMembers::evaluate(const Batch& batch, bool held_out) {
  at::NoGradGuard no_grad;
  if (!single_.empty()) return evaluate_single(batch, held_out);
  const bool all_train = active_ == int64_t(members_.size());
  return evaluate_stack(all_train ? *stack_ : *whole_, batch, held_out);
}

// --- Members that finish ---

void StackedMembers::keep(const std::vector<int64_t>& numbers) {
  for (size_t row = 0; row < members_.size(); ++row)
    if (std::find(numbers.begin(), numbers.end(), members_[row].number) != numbers.end())
      best_->keep(*storage_, int64_t(row), members_[row].number);
}

void StackedMembers::finish(const std::vector<int64_t>& numbers) {
  const auto ends = [&](const MemberSettings& member) {
    return std::find(numbers.begin(), numbers.end(), member.number) != numbers.end();
  };
  std::vector<int64_t> order(members_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto first_ended = std::stable_partition(order.begin(), order.begin() + active_,
                                                 [&](int64_t row) { return !ends(members_[size_t(row)]); });
  const int64_t remaining = first_ended - order.begin();
  if (remaining == active_) return;
  for (int64_t row = 0; row < active_; ++row)
    if (ends(members_[size_t(row)])) best_->restore(*storage_, row, members_[size_t(row)].number);
  std::vector<MemberSettings> members;
  std::vector<SingleMember> single_members;
  for (int64_t row : order) {
    members.push_back(members_[size_t(row)]);
    if (!single_.empty()) single_members.push_back(std::move(single_[size_t(row)]));
  }
  members_ = std::move(members);
  single_ = std::move(single_members);
  active_ = remaining;
  storage_->reorder(order);
  update_->attach(active_, order);
  graph_->forget();
  if (!single_.empty())
    for (size_t row = 0; row < single_.size(); ++row) storage_->bind_row(*single_[row].part, int64_t(row));
  else
    attach_stack();
}

// Rebuilds the stack with the width of the training members; evaluations use all members.
void StackedMembers::attach_stack() {
  std::shared_ptr<Stack> unused;
  collector_.reset();
  stack_.reset();
  whole_ = make_stack(int64_t(members_.size()), unused);
  storage_->bind(*whole_, int64_t(members_.size()));
  if (active_ == 0) return;
  stack_ = make_stack(active_, unused);
  storage_->bind(*stack_, active_);
  collector_ = std::make_unique<GradientCollector>(stack_->parameters(), stack_->state(), [](int) {});
}

// --- State ---

void StackedMembers::visit_state(const StateVisitor& visit) {
  std::vector<int64_t> order(members_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return members_[size_t(a)].number < members_[size_t(b)].number; });
  for (int64_t row : order) {
    const auto show = [&](const std::string& name, StateKind kind, const std::string& moment,
                          const at::Tensor& tensor) {
      StateEntry entry = state_entry(name, kind, tensor);
      entry.moment = moment;
      entry.member = int(members_[size_t(row)].number);
      visit(entry);
    };
    const auto& groups = storage_->groups();
    for (const auto& tensor : storage_->tensors())
      show(tensor.name, StateKind::parameter, "", storage_->view(tensor, groups[tensor.group].values, row));
    if (!single_.empty())
      for (const ParameterPtr& frozen : single_[size_t(row)].part->frozen())
        show(frozen->name, StateKind::parameter, "", frozen->value);
    for (const auto& buffer : storage_->buffers())
      show(buffer.name, StateKind::buffer, "", buffer.value.select(0, row));
    const bool trains = row < active_;
    for (const auto& tensor : storage_->tensors())
      for (const auto& [name, all] : update_->moments(tensor.group, trains))
        show(tensor.name, StateKind::moment, name, storage_->view(tensor, all, trains ? row : row - active_));
    show("updates", StateKind::counter, "", update_->counts().narrow(0, row, 1));
  }
  best_->visit_state(visit);
}

void StackedMembers::visit_gradients(const StateVisitor& visit) const {
  const at::Tensor scale = update_->mean_scale();
  if (!scale.defined()) return;
  for (int64_t row = 0; row < active_; ++row)
    for (const auto& tensor : storage_->tensors()) {
      const at::Tensor gradient = storage_->view(tensor, storage_->groups()[tensor.group].gradients, row);
      StateEntry entry = state_entry(tensor.name, StateKind::gradient, gradient * scale[row].to(gradient.options()));
      entry.member = int(members_[size_t(row)].number);
      visit(entry);
    }
}

}  // namespace convoy
