#include "strategies/parts/members/stacked_members.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <numeric>

#include "core/data/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "strategies/parts/precision.h"

namespace convoy {
namespace {

constexpr const char* as_one_stack = "as one stack";
constexpr const char* side_by_side = "side by side";

Context of_member(const Context& context, const MemberSettings& member) {
  Context own = context;
  own.config.seed = member.seed;
  return own;
}

// One member's rows of a batch [members, rows, …].
Batch own_part(const Batch& batch, int64_t row) {
  Batch own = batch;
  for (auto& entry : own.tensors) entry.second = entry.second.select(0, row);
  return own;
}

// The same rows for `members`, without copies.
Batch shared_by(const Batch& batch, int64_t members) {
  Batch shared = batch;
  for (auto& entry : shared.tensors) {
    std::vector<int64_t> shape = entry.second.sizes().vec();
    shape.insert(shape.begin(), members);
    entry.second = entry.second.unsqueeze(0).expand(shape);
  }
  return shared;
}

// In the model's dtype where its numbers are real: casts of what members share would be made for each.
Batch ready(const Batch& batch, at::Device device, at::ScalarType dtype) {
  Batch moved = batch.to(device, true);
  for (auto& [name, tensor] : moved.tensors) {
    if (tensor.is_floating_point()) tensor = tensor.to(dtype);
    if (name == "features" && tensor.scalar_type() == at::kByte) tensor = from_bytes(tensor, dtype);
  }
  return moved;
}

// For a model that may change its input in place, where others are given the same.
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

double nominal_of(const Batch& batch) { return std::max<double>(1, static_cast<double>(batch.nominal_rows)); }

Loss joined(const std::vector<Loss>& losses) {
  std::vector<at::Tensor> sums, weights;
  for (const Loss& loss : losses) {
    sums.push_back(loss.sum.detach().reshape({}));
    weights.push_back(loss.weight.reshape({}));
  }
  return {at::stack(sums), at::stack(weights)};
}

}  // namespace

struct StackedMembers::Alone {
  std::unique_ptr<ModelPart> part;
  std::unique_ptr<GradientCollector> collector;
};

StackedMembers::StackedMembers(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss,
                               std::vector<MemberSettings> members)
    : context_(context),
      model_(std::move(model)),
      loss_(std::move(loss)),
      members_(std::move(members)),
      active_(static_cast<int64_t>(members_.size())),
      first_gradients_(context_) {
  build();
  update_ = std::make_unique<StackedUpdate>(context_, *storage_, members_);
  graph_ = std::make_unique<StepGraph>(context_, context_.config.strategy.options.text("graph"), graph_parts());
}

StackedMembers::~StackedMembers() = default;

std::unique_ptr<ModelPart> StackedMembers::make_stack(int64_t rows, std::shared_ptr<Stack>& stack) const {
  const std::string& convolutions = context_.config.strategy.options.text("convolutions");
  stack = std::make_shared<Stack>();
  stack->grouped = convolutions == "grouped" || (convolutions == "auto" && context_.devices.front().is_cuda());
  for (int64_t row = 0; row < rows; ++row) stack->seeds.push_back(members_[static_cast<size_t>(row)].seed);
  PartRequest request;
  request.layers = [&stack](std::shared_ptr<LayerStore> store) {
    return std::make_shared<StackedLayers>(std::move(store), stack);
  };
  return std::make_unique<ModelPart>(context_, model_, loss_, request);
}

StackedMembers::Alone StackedMembers::make_alone(const MemberSettings& member, bool deferred) const {
  PartRequest request;
  request.deferred = deferred;
  Alone alone;
  alone.part = std::make_unique<ModelPart>(of_member(context_, member), model_, loss_, request);
  alone.collector = std::make_unique<GradientCollector>(alone.part->parameters(), alone.part->state(), [](int) {});
  return alone;
}

void StackedMembers::build() {
  std::shared_ptr<Stack> stack;
  stack_ = make_stack(active_, stack);
  const bool own = stack->parameters.size() != stack_->parameters().size() || !stack_->frozen().empty() ||
                   std::any_of(stack_->buffers().begin(), stack_->buffers().end(), [&](const NamedBuffer& buffer) {
                     return buffer.value.dim() == 0 || buffer.value.size(0) != active_;
                   });
  if (own) {
    stack_.reset();
    stacked_ = false;
    chosen_ = true;
    for (const MemberSettings& member : members_) aside_.push_back(make_alone(member, false));
    storage_ = std::make_unique<StackedStorage>(*aside_.front().part, false, members_, context_.config.optimizer);
    for (int64_t row = 0; row < active_; ++row) {
      storage_->copy(row, *aside_[static_cast<size_t>(row)].part);
      storage_->bind_row(*aside_[static_cast<size_t>(row)].part, row);
    }
    say("the model has blocks with modules of their own");
    return;
  }
  storage_ = std::make_unique<StackedStorage>(*stack_, true, members_, context_.config.optimizer);
  for (int64_t row = 0; row < active_; ++row) storage_->fill(row, *stack, members_[static_cast<size_t>(row)].seed);
  storage_->bind(*stack_, active_);
  if (convolves_on_a_cpu(*stack)) {
    build_aside();
    return take_aside("convolutions of a CPU gain nothing from a stack");
  }
  collector_ = std::make_unique<GradientCollector>(stack_->parameters(), stack_->state(), [](int) {});
}

void StackedMembers::say(const std::string& why) const {
  const std::string way = stacked_ ? as_one_stack : side_by_side;
  log::info(convoy::str("ensemble: rank ", context_.rank, " trains ", members_.size(), " members ", way, ": ", why));
  // Earlier versions measured the passes.
  const Json told{{"members", members_.size()}, {"trained", way}, {"because", why}, {"seconds_per_pass", nullptr}};
  context_.tell({{"ensemble", told}});
}

// ---- how ---------------------------------------------------------------------------------------------------------

void StackedMembers::build_aside() {
  for (int64_t row = 0; row < static_cast<int64_t>(members_.size()); ++row) {
    aside_.push_back(make_alone(members_[static_cast<size_t>(row)], true));
    storage_->bind_row(*aside_.back().part, row);
  }
}

void StackedMembers::take_aside(const std::string& why) {
  chosen_ = true;
  stacked_ = false;
  say(why);
  collector_.reset();
  stack_.reset();
}

// Once, with the first batch: whether a stack does what the members would do by themselves. Nothing of the members' state is
// changed by it.
void StackedMembers::choose(const Batch& batch) {
  build_aside();
  const std::string fault = unlike(batch);
  if (!fault.empty()) return take_aside(fault);
  chosen_ = true;
  say(active_ > 1 ? "one batched product per layer" : "there is one");
  aside_.clear();
  storage_->bind(*stack_, active_);
}

// Convolutions of a CPU gain nothing from a stack, which has to cut and join activations around each. The answer is the same
// in a run that goes on when members have finished.
bool StackedMembers::convolves_on_a_cpu(const Stack& stack) const {
  const Options& options = context_.config.strategy.options;
  return options.text("how") == "auto" && options.text("convolutions") == "auto" && stack.convolves &&
         members_.size() > 1 && context_.devices.front().is_cpu();
}

// "", or how the losses of the batch differ between the stack and the members by themselves.
std::string StackedMembers::unlike(const Batch& batch) {
  at::NoGradGuard no_grad;
  at::Tensor together;
  try {
    together = stack_->metrics(stack_->evaluate(copied(batch)), batch).front().sum;
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    return convoy::str("its blocks do not take members (", error.what(), ")");
  }
  if (together.dim() != 1 || together.size(0) != active_)
    return convoy::str("its loss has shape ", together.sizes(), " for ", active_, " members");
  std::vector<at::Tensor> each;
  for (int64_t row = 0; row < active_; ++row) {
    ModelPart& part = *aside_[static_cast<size_t>(row)].part;
    const Batch own = own_part(batch, row);
    each.push_back(part.metrics(part.evaluate(copied(own)), own).front().sum.reshape({}));
  }
  const at::Tensor apart = at::stack(each);
  const bool narrow = context_.config.precision == "bf16";
  // What is not finite either way is told by the first step.
  if (!at::isfinite(apart).all().item<bool>() ||
      at::allclose(together, apart, narrow ? 5e-2 : 1e-3, narrow ? 5e-2 : 1e-4))
    return "";
  return "a stack gives other losses than the members by themselves";
}

// ---- steps -------------------------------------------------------------------------------------------------------

void StackedMembers::run_stack(const Batch& batch, int64_t step) {
  collector_->begin();
  const Loss loss = stack_->loss(stack_->forward(batch, step), batch);
  step_loss_ = {loss.sum.detach(), loss.weight};
  stack_->backward(loss, nominal_of(batch));
  collector_->finish();
}

void StackedMembers::run_aside(const Batch& batch, int64_t step) {
  Losses losses;
  for (int64_t row = 0; row < active_; ++row) {
    Alone& alone = aside_[static_cast<size_t>(row)];
    const Batch own = own_part(batch, row);
    alone.collector->begin();
    const Loss loss = alone.part->loss(alone.part->forward(own, step), own);
    losses.push_back({loss.sum.detach(), loss.weight});
    alone.part->backward(loss, nominal_of(batch));
    alone.collector->finish();
  }
  step_loss_ = joined(losses);
}

StackedMembers::Step StackedMembers::step(const Batch& batch, int64_t step) {
  if (!chosen_) choose(ready(batch, context_.devices.front(), parameter_dtype(context_.config.precision)));
  StepInput input;
  input.batch = batch;
  input.step = step;
  const StepResult result = graph_->run(input);
  check_finite(result.finite, result.metrics.front().sum);
  return {result.metrics.front(), {result.gradient_norm, result.finite, result.learning_rate}};
}

StepGraph::Parts StackedMembers::graph_parts() {
  return {[this] { update_->set_rates(); }, [this](const StepInput& input) { return trained(input); },
          [this](const StateVisitor& visit) { visit_state(visit); },
          [this]() -> std::string {
            bool drew = stack_ && stack_->state()->drew;
            for (const Alone& alone : aside_) drew = drew || alone.part->state()->drew;
            return drew ? "its dropout draws with keys of the host's" : "";
          }};
}

StepResult StackedMembers::trained(const StepInput& input) {
  const Batch batch = ready(input.batch, context_.devices.front(), parameter_dtype(context_.config.precision));
  if (stacked_)
    run_stack(batch, input.step);
  else
    run_aside(batch, input.step);
  context_.state->phase("optimizer");
  update_->begin();
  update_->add_loss(step_loss_);
  const StackedFigures figures = update_->finish(nominal_of(batch));
  report_gradients();
  StepResult result;
  result.metrics = {loss_metric(step_loss_)};
  result.finite = figures.finite;
  result.gradient_norm = figures.norm;
  result.learning_rate = figures.learning_rate;
  return result;
}

void StackedMembers::report_gradients() {
  std::vector<ModelPart*> parts;
  if (stack_) parts.push_back(stack_.get());
  for (const Alone& alone : aside_) parts.push_back(alone.part.get());
  first_gradients_.updated(parts);
}

// Other ranks have members of their own: each tells for itself, and nobody waits for the others.
// On CUDA the flag of the step before is read, so that the host never waits for the step under way.
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
    const MemberSettings& member = members_[static_cast<size_t>(row)];
    names.push_back(convoy::str(member.number, " (lr ", member.learning_rate, ")"));
    of_loss = of_loss || !at::isfinite(loss[row]).item<bool>();
  }
  throw Error(Failure::training,
              convoy::str(of_loss ? "the loss" : "a gradient", " of member ", join(names, ", "),
                          " is not finite; its update was not applied and nothing was saved. Try a smaller lr for it, "
                          "optimizer.clip_norm, or look at the data of that step"));
}

// ---- evaluation ----------------------------------------------------------------------------------------------------

StackedMembers::Evaluation StackedMembers::evaluate_stack(ModelPart& part, const Batch& given, bool own) const {
  Batch batch = ready(given, part.device(), part.dtype());
  if (!own) batch = shared_by(batch, static_cast<int64_t>(members_.size()));
  Evaluation all;
  all.outputs = part.evaluate(batch);
  all.metrics = part.metrics(all.outputs, batch);
  return all;
}

StackedMembers::Evaluation StackedMembers::evaluate_aside(const Batch& given, bool own) const {
  std::vector<TensorList> outputs;  // by member
  std::vector<std::vector<Metric>> metrics;
  bool changes = true;  // the first member shows whether its blocks change what all are given
  for (size_t row = 0; row < aside_.size(); ++row) {
    ModelPart& part = *aside_[row].part;
    const Batch batch = own ? own_part(given, static_cast<int64_t>(row)) : changes ? copied(given) : given;
    const std::vector<uint32_t> versions = versions_of(batch);
    outputs.push_back(part.evaluate(batch));
    metrics.push_back(part.metrics(outputs.back(), batch));
    changes = versions_of(batch) != versions;
  }
  Evaluation all;
  const auto joined_of = [&](size_t count, const auto& take) {
    TensorList stacked;
    for (size_t i = 0; i < count; ++i) {
      TensorList each;
      for (size_t row = 0; row < aside_.size(); ++row) each.push_back(take(row, i));
      stacked.push_back(at::stack(each));
    }
    return stacked;
  };
  all.outputs = joined_of(outputs.front().size(), [&](size_t row, size_t i) { return outputs[row][i]; });
  all.metrics = metrics.front();
  const TensorList sums =
      joined_of(all.metrics.size(), [&](size_t row, size_t i) { return metrics[row][i].sum.reshape({}); });
  const TensorList weights =
      joined_of(all.metrics.size(), [&](size_t row, size_t i) { return metrics[row][i].weight.reshape({}); });
  for (size_t i = 0; i < all.metrics.size(); ++i) {
    all.metrics[i].sum = sums[i];
    all.metrics[i].weight = weights[i];
  }
  return all;
}

StackedMembers::Evaluation StackedMembers::evaluate(const Batch& batch, bool own) {
  at::NoGradGuard no_grad;
  if (!aside_.empty()) return evaluate_aside(batch, own);
  const bool all_train = active_ == static_cast<int64_t>(members_.size());
  return evaluate_stack(all_train ? *stack_ : *whole_, batch, own);
}

// ---- members that finish -----------------------------------------------------------------------------------------

void StackedMembers::finish(const std::vector<int64_t>& numbers) {
  const auto ends = [&](const MemberSettings& member) {
    return std::find(numbers.begin(), numbers.end(), member.number) != numbers.end();
  };
  std::vector<int64_t> order(members_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto first_ended = std::stable_partition(
      order.begin(), order.begin() + active_, [&](int64_t row) { return !ends(members_[static_cast<size_t>(row)]); });
  const int64_t left = first_ended - order.begin();
  if (left == active_) return;
  std::vector<MemberSettings> members;
  std::vector<Alone> aside;
  for (int64_t row : order) {
    members.push_back(members_[static_cast<size_t>(row)]);
    if (!aside_.empty()) aside.push_back(std::move(aside_[static_cast<size_t>(row)]));
  }
  members_ = std::move(members);
  aside_ = std::move(aside);
  active_ = left;
  storage_->reorder(order);
  update_->attach(active_, order);
  graph_->forget();
  if (!aside_.empty())
    for (size_t row = 0; row < aside_.size(); ++row) storage_->bind_row(*aside_[row].part, static_cast<int64_t>(row));
  else
    attach_stack();
}

// A stack is as wide as members train; evaluations go on with all of them.
void StackedMembers::attach_stack() {
  std::shared_ptr<Stack> unused;
  collector_.reset();
  stack_.reset();
  whole_ = make_stack(static_cast<int64_t>(members_.size()), unused);
  storage_->bind(*whole_, static_cast<int64_t>(members_.size()));
  if (active_ == 0) return;
  stack_ = make_stack(active_, unused);
  storage_->bind(*stack_, active_);
  collector_ = std::make_unique<GradientCollector>(stack_->parameters(), stack_->state(), [](int) {});
}

// ---- state ---------------------------------------------------------------------------------------------------------

void StackedMembers::visit_state(const StateVisitor& visit) {
  std::vector<int64_t> order(members_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return members_[static_cast<size_t>(a)].number < members_[static_cast<size_t>(b)].number;
  });
  for (int64_t row : order) {
    const auto show = [&](const std::string& name, StateKind kind, const std::string& moment,
                          const at::Tensor& tensor) {
      StateEntry entry;
      entry.name = name;
      entry.kind = kind;
      entry.moment = moment;
      entry.piece = Piece::whole(tensor.sizes());
      entry.member = static_cast<int>(members_[static_cast<size_t>(row)].number);
      entry.tensor = tensor.detach();
      visit(entry);
    };
    const auto& groups = storage_->groups();
    for (const auto& tensor : storage_->tensors())
      show(tensor.name, StateKind::parameter, "", storage_->view(tensor, groups[tensor.group].values, row));
    if (!aside_.empty())
      for (const ParameterPtr& frozen : aside_[static_cast<size_t>(row)].part->frozen())
        show(frozen->name, StateKind::parameter, "", frozen->value);
    for (const auto& buffer : storage_->buffers())
      show(buffer.name, StateKind::buffer, "", buffer.value.select(0, row));
    const bool trains = row < active_;
    for (const auto& tensor : storage_->tensors())
      for (const auto& [name, all] : update_->moments(tensor.group, trains))
        show(tensor.name, StateKind::moment, name, storage_->view(tensor, all, trains ? row : row - active_));
    const at::Tensor scale = update_->mean_scale();
    if (trains && scale.defined())
      for (const auto& tensor : storage_->tensors()) {
        const at::Tensor gradient = storage_->view(tensor, groups[tensor.group].gradients, row);
        show(tensor.name, StateKind::gradient, "", gradient * scale[row].to(gradient.options()));
      }
    show("updates", StateKind::counter, "", update_->counts().narrow(0, row, 1));
  }
}

}  // namespace convoy
