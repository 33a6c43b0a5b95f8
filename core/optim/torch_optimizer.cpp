#include "core/optim/torch_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cxxabi.h>
#include <algorithm>
#include <typeinfo>

#include "core/base/error.h"

namespace convoy {
namespace {

std::string class_name(const torch::optim::Optimizer& optimizer) {
  const char* const mangled = typeid(optimizer).name();
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                        std::free);
  return status == 0 ? readable.get() : mangled;
}

void* key_of(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }

}  // namespace

// Known state of an optimizer class. Moments have the names of convoy's optimizers if they mean the same.
class TorchOptimizer::Rule {
 public:
  virtual ~Rule() = default;
  // Moments that parameters of the group have, in the order of all_names().
  virtual std::vector<std::string> names(const Group& group) const = 0;
  virtual std::vector<std::string> all_names() const = 0;
  virtual at::Tensor& moment(State& state, const std::string& name) const = 0;
  virtual std::unique_ptr<State> make() const = 0;
  virtual void set_step(State& state, int64_t step) const = 0;
  virtual int64_t step(const State& state) const = 0;
  // Parameters have a state before their first step.
  virtual bool always_has_state() const { return false; }
};

template <class Options, class State_>
class TorchOptimizer::AdamRule : public Rule {
 public:
  std::vector<std::string> names(const Group& group) const override {
    if (!static_cast<const Options&>(group.options()).amsgrad()) return {"exp_avg", "exp_avg_sq"};
    return all_names();
  }
  std::vector<std::string> all_names() const override { return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}; }
  at::Tensor& moment(State& state, const std::string& name) const override {
    auto& own = static_cast<State_&>(state);
    if (name == "exp_avg") return own.exp_avg();
    return name == "exp_avg_sq" ? own.exp_avg_sq() : own.max_exp_avg_sq();
  }
  std::unique_ptr<State> make() const override { return std::make_unique<State_>(); }
  void set_step(State& state, int64_t step) const override { static_cast<State_&>(state).step(step); }
  int64_t step(const State& state) const override { return static_cast<const State_&>(state).step(); }
};

class TorchOptimizer::SgdRule : public Rule {
  using Own = torch::optim::SGDParamState;

 public:
  std::vector<std::string> names(const Group& group) const override {
    if (static_cast<const torch::optim::SGDOptions&>(group.options()).momentum() == 0) return {};
    return all_names();
  }
  std::vector<std::string> all_names() const override { return {"momentum"}; }
  at::Tensor& moment(State& state, const std::string&) const override {
    return static_cast<Own&>(state).momentum_buffer();
  }
  std::unique_ptr<State> make() const override { return std::make_unique<Own>(); }
  void set_step(State&, int64_t) const override {}
  int64_t step(const State&) const override { return 1; }
};

class TorchOptimizer::AdagradRule : public Rule {
  using Own = torch::optim::AdagradParamState;

 public:
  std::vector<std::string> names(const Group&) const override { return all_names(); }
  std::vector<std::string> all_names() const override { return {"sum"}; }
  at::Tensor& moment(State& state, const std::string&) const override { return static_cast<Own&>(state).sum(); }
  std::unique_ptr<State> make() const override { return std::make_unique<Own>(); }
  void set_step(State& state, int64_t step) const override { static_cast<Own&>(state).step(step); }
  int64_t step(const State& state) const override { return static_cast<const Own&>(state).step(); }
  bool always_has_state() const override { return true; }
};

class TorchOptimizer::RmspropRule : public Rule {
  using Own = torch::optim::RMSpropParamState;

 public:
  std::vector<std::string> names(const Group& group) const override {
    const auto& options = static_cast<const torch::optim::RMSpropOptions&>(group.options());
    std::vector<std::string> names{"square_avg"};
    if (options.momentum() > 0) names.emplace_back("momentum");
    if (options.centered()) names.emplace_back("grad_avg");
    return names;
  }
  std::vector<std::string> all_names() const override { return {"square_avg", "momentum", "grad_avg"}; }
  at::Tensor& moment(State& state, const std::string& name) const override {
    auto& own = static_cast<Own&>(state);
    if (name == "square_avg") return own.square_avg();
    return name == "momentum" ? own.momentum_buffer() : own.grad_avg();
  }
  std::unique_ptr<State> make() const override { return std::make_unique<Own>(); }
  void set_step(State& state, int64_t step) const override { static_cast<Own&>(state).step(step); }
  int64_t step(const State& state) const override { return static_cast<const Own&>(state).step(); }
};

std::unique_ptr<TorchOptimizer::Rule> TorchOptimizer::rule_of(torch::optim::Optimizer& optimizer) {
  namespace optim = torch::optim;
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) return std::make_unique<SgdRule>();
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr)
    return std::make_unique<AdamRule<optim::AdamOptions, optim::AdamParamState>>();
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr)
    return std::make_unique<AdamRule<optim::AdamWOptions, optim::AdamWParamState>>();
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) return std::make_unique<AdagradRule>();
  if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) return std::make_unique<RmspropRule>();
  return nullptr;
}

// Part of a parameter that this rank updates.
struct TorchOptimizer::Piece {
  size_t parameter = 0;
  at::Tensor target;   // tensor that the optimizer steps: the parameter itself, or a view of the slot
  int64_t offset = 0;  // in the slot
  bool applied = false;
};

struct TorchOptimizer::Slot {
  at::Tensor values;
  at::Tensor gradient;  // gradient of the update that has begun
  bool applies = false;
  std::vector<Piece> pieces;
  NamedTensors moments;  // each shaped as values

  at::Tensor of(const Piece& piece, const at::Tensor& flat) const {
    return flat.narrow(0, piece.offset, piece.target.numel()).view(piece.target.sizes());
  }
  // True if `tensor` is of(piece, flat); makes no tensor, because each step asks for each piece.
  bool has(const Piece& piece, const at::Tensor& flat, const at::Tensor& tensor) const {
    const auto* const begin = static_cast<const char*>(flat.const_data_ptr());
    return tensor.const_data_ptr() == begin + piece.offset * flat.element_size();
  }
};

class TorchOptimizer::Layout : public Optimizer {
 public:
  explicit Layout(std::shared_ptr<TorchOptimizer> owner) : owner_(std::move(owner)) {}

  int add_slot(at::Tensor values, const SlotOptions& options) override {
    at::NoGradGuard no_grad;
    Slot slot;
    slot.values = std::move(values);
    for (const std::string& name : owner_->moment_names())
      slot.moments.emplace_back(name, at::zeros({slot.values.numel()}, slot.values.options().requires_grad(false)));
    for (const ParameterPiece& piece : options.pieces) owner_->add(slot, piece);
    moments_.push_back(slot.moments);
    owner_->slots_.push_back(std::move(slot));
    owner_->fill_groups();
    return int(moments_.size()) - 1;
  }
  void set_weight_decays(int, const std::vector<double>&) override {
    CONVOY_CHECK(false, "a torch optimizer has no members");
  }
  void update(int slot, const Gradient& gradient, const UpdateScalars& scalars) override {
    owner_->update(owner_->slots_[size_t(slot)], gradient.dense, scalars);
  }
  void finish() override { owner_->finish(); }
  // Those of a replaced layout stay readable.
  NamedTensors moments(int slot) override { return moments_[size_t(slot)]; }
  NamedTensors counters() const override { return owner_->counters(); }
  void restored(int64_t updates) override { owner_->restored(updates); }
  std::optional<double> learning_rate() const override { return owner_->learning_rate(); }
  bool scales_gradients() const override { return true; }

 private:
  std::shared_ptr<TorchOptimizer> owner_;
  std::vector<NamedTensors> moments_;  // by slot
};

TorchOptimizer::TorchOptimizer(torch::optim::Optimizer& optimizer, const NamedTensors& parameters)
    : optimizer_(optimizer), rule_(rule_of(optimizer)) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr)
    throw Error(Failure::config,
                "torch::optim::LBFGS evaluates the loss several times in a step, and ranks make one backward for each; "
                "take another optimizer");
  // A derived class may count in another way.
  for (const std::type_info* known : {&typeid(torch::optim::Adam), &typeid(torch::optim::AdamW),
                                      &typeid(torch::optim::Adagrad), &typeid(torch::optim::RMSprop)})
    counts_steps_ |= typeid(optimizer) == *known;
  for (const auto& entry : parameters) {
    const at::Tensor& parameter = entry.second;
    numbers_.emplace(key_of(parameter), parameters_.size());
    parameters_.push_back(parameter);
  }
  groups_.assign(parameters_.size(), optimizer_.param_groups().size());
  uses_.assign(parameters_.size(), 0);
  held_.assign(parameters_.size(), 0);
  reached_.assign(parameters_.size(), true);
  targets_.resize(parameters_.size());
  steps_ = at::zeros({int64_t(parameters_.size())}, at::kLong);
  rates_ = at::zeros({int64_t(optimizer_.param_groups().size())}, at::kDouble);
  for (size_t group = 0; group < optimizer_.param_groups().size(); ++group) {
    originals_.push_back(optimizer_.param_groups()[group].params());
    for (const at::Tensor& parameter : originals_.back()) {
      const size_t number = number_of(parameter);
      if (number == parameters_.size())
        throw Error(Failure::config, "group ", group, " of the optimizer holds a tensor ", parameter.sizes(),
                    " that is no parameter of the module, so ranks would not update it equally; register it in the "
                    "module, or give it to another optimizer");
      groups_[number] = group;
      ++uses_[number];  // module.parameters() lists a tied parameter under each of its names
    }
  }
}

TorchOptimizer::~TorchOptimizer() = default;

std::unique_ptr<Optimizer> TorchOptimizer::layout() {
  slots_.clear();
  held_.assign(parameters_.size(), 0);
  return std::make_unique<Layout>(shared_from_this());
}

bool TorchOptimizer::knows(torch::optim::Optimizer& optimizer) { return rule_of(optimizer) != nullptr; }

std::string TorchOptimizer::unknown_class() const { return rule_ ? "" : class_name(optimizer_); }

double TorchOptimizer::learning_rate() const {
  const auto& groups = optimizer_.param_groups();
  return groups.empty() ? 0 : groups.front().options().get_lr();
}

bool TorchOptimizer::was_stepped(size_t parameter) const { return steps_.const_data_ptr<int64_t>()[parameter] > 0; }

size_t TorchOptimizer::number_of(const at::Tensor& parameter) const {
  const auto found = numbers_.find(key_of(parameter));
  return found == numbers_.end() ? parameters_.size() : found->second;
}

// Names that any group needs, so that every slot has the same.
std::vector<std::string> TorchOptimizer::moment_names() const {
  std::vector<std::string> names;
  if (!rule_) return names;
  for (const std::string& name : rule_->all_names())
    for (const Group& group : optimizer_.param_groups()) {
      const std::vector<std::string> wanted = rule_->names(group);
      if (std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
      names.push_back(name);
      break;
    }
  return names;
}

void TorchOptimizer::add(Slot& slot, const ParameterPiece& given) {
  Piece piece;
  piece.parameter = number_of(given.parameter);
  CONVOY_CHECK(piece.parameter < parameters_.size(), "a slot holds a tensor that is no parameter of the module");
  piece.offset = given.offset;
  const int64_t elements = given.end - given.begin;
  const at::Tensor range = slot.values.narrow(0, given.offset, elements);
  const bool itself = elements == given.parameter.numel() && range.is_alias_of(given.parameter);
  piece.target = itself ? given.parameter : range.detach();
  const at::Tensor before = targets_[piece.parameter].defined() ? targets_[piece.parameter] : given.parameter;
  targets_[piece.parameter] = piece.target;
  held_[piece.parameter] = 1;
  take_state(slot, piece, before, given.begin);
  slot.pieces.push_back(std::move(piece));
}

// Moves the state of `from`, the parameter or an earlier piece of it, to the slot's moments. `begin`: first element of
// the piece in a whole parameter.
void TorchOptimizer::take_state(const Slot& slot, const Piece& piece, const at::Tensor& from, int64_t begin) {
  auto& states = optimizer_.state();
  const auto found = states.find(key_of(from));
  if (!rule_ || found == states.end()) return;
  const std::shared_ptr<State> old(std::move(found->second));
  states.erase(key_of(from));
  int64_t& steps = steps_.mutable_data_ptr<int64_t>()[piece.parameter];
  steps = std::max(steps, rule_->step(*old) / std::max<int64_t>(1, uses_[piece.parameter]));
  auto state = old->clone();
  for (const auto& [name, flat] : slot.moments) {
    at::Tensor& moment = rule_->moment(*state, name);
    if (!moment.defined()) continue;
    const at::Tensor range = slot.of(piece, flat);
    const at::Tensor all = moment.reshape({-1});
    range.copy_(all.narrow(0, all.numel() == range.numel() ? 0 : begin, range.numel()).view(range.sizes()));
    moment = range;
  }
  states[key_of(piece.target)] = std::move(state);
}

// The groups' parameters, in the user's order. A parameter without a piece on this rank is left out of its group.
void TorchOptimizer::fill_groups() {
  for (size_t group = 0; group < originals_.size(); ++group) {
    std::vector<at::Tensor>& params = optimizer_.param_groups()[group].params();
    params.clear();
    for (const at::Tensor& original : originals_[group]) {
      const size_t number = number_of(original);
      if (held_[number])
        params.push_back(targets_[number]);
      else if (!original.requires_grad())
        params.push_back(original);
    }
  }
}

void TorchOptimizer::update(Slot& slot, const at::Tensor& gradient, const UpdateScalars& scalars) {
  // On a GPU this waits for the device: the user's optimizer has no switch to skip a step.
  const bool apply = scalars.apply.is_cpu() ? *scalars.apply.const_data_ptr<bool>() : scalars.apply.item<bool>();
  any_applied_ = any_applied_ || apply;
  if (apply && !scalars.gradient_scale.is_cpu()) {
    at::Tensor(gradient).mul_(scalars.gradient_scale.to(gradient.scalar_type()));
  } else if (apply) {
    // Usually the scale is 1, because the losses were divided by the right weight. Then this pass is left out.
    const double scale = *scalars.gradient_scale.const_data_ptr<double>();
    if (scale != 1) at::Tensor(gradient).mul_(scale);
  }
  slot.gradient = gradient;
  slot.applies = apply;
}

void TorchOptimizer::finish() {
  if (before_step_) before_step_();
  for (Slot& slot : slots_) {
    for (Piece& piece : slot.pieces) {
      piece.applied = slot.applies && reached_[piece.parameter];
      piece.target.mutable_grad() = piece.applied ? slot.of(piece, slot.gradient) : at::Tensor();
    }
    slot.gradient = at::Tensor();
  }
  if (!std::exchange(any_applied_, false)) return;
  check_groups();
  adopt_loaded_state();
  if (counts_steps_) check_steps();
  optimizer_.step();
  int64_t* const steps = steps_.mutable_data_ptr<int64_t>();
  for (const Slot& slot : slots_)
    for (const Piece& piece : slot.pieces) {
      if (!piece.applied) continue;
      ++steps[piece.parameter];
      keep_state(slot, piece);
    }
  // Parameters whose pieces are on other ranks.
  for (size_t number = 0; number < parameters_.size(); ++number)
    if (!held_[number] && reached_[number]) ++steps[number];
}

// Tensors of a group that is added later would get other gradients on each rank.
void TorchOptimizer::check_groups() const {
  const size_t groups = optimizer_.param_groups().size();
  if (groups != originals_.size())
    throw Error(Failure::config, "the optimizer had ", originals_.size(), " parameter groups when Replicas or Shards ",
                "was made, and has ", groups, " now; call add_param_group before");
}

// A program that loads its optimizer replaces the state: its moments are then not views of the slot's moments.
bool TorchOptimizer::was_loaded(const Slot& slot, const Piece& piece) const {
  const auto& states = optimizer_.state();
  const auto found = states.find(key_of(piece.target));
  if (found == states.end()) return was_stepped(piece.parameter);
  return std::any_of(slot.moments.begin(), slot.moments.end(), [&](const auto& entry) {
    const at::Tensor& moment = rule_->moment(*found->second, entry.first);
    return moment.defined() && !slot.has(piece, entry.second, moment);
  });
}

void TorchOptimizer::adopt_loaded_state() {
  if (!rule_) return;
  for (const Slot& slot : slots_)
    for (const Piece& piece : slot.pieces) {
      if (slot.moments.empty() || !was_loaded(slot, piece)) continue;
      const auto found = optimizer_.state().find(key_of(piece.target));
      const bool any = found != optimizer_.state().end();
      for (const auto& [name, flat] : slot.moments)
        if (any && rule_->moment(*found->second, name).defined() &&
            rule_->moment(*found->second, name).numel() != piece.target.numel())
          throw Error(Failure::config, "the program loaded its optimizer, and this rank holds a part of a parameter; ",
                      "load the optimizer before Shards is made");
      steps_.mutable_data_ptr<int64_t>()[piece.parameter] =
          any ? rule_->step(*found->second) / std::max<int64_t>(1, uses_[piece.parameter]) : 0;
      if (any)
        keep_state(slot, piece);
      else
        for (const auto& [name, flat] : slot.moments) slot.of(piece, flat).zero_();
    }
}

// A step() of the program itself would apply the gradients of an update again. One parameter shows it.
void TorchOptimizer::check_steps() const {
  const auto& states = optimizer_.state();
  for (const Slot& slot : slots_)
    for (const Piece& piece : slot.pieces) {
      const auto found = states.find(key_of(piece.target));
      if (found == states.end() || uses_[piece.parameter] == 0) continue;
      const int64_t expected = steps_.const_data_ptr<int64_t>()[piece.parameter] * uses_[piece.parameter];
      const int64_t made = rule_->step(*found->second);
      if (made == expected) return;
      throw Error(
          Failure::training, "the optimizer has made ", made, " updates of a parameter, and step() ", expected,
          ": something else has called step() of the optimizer, or changed its state; remove that call, because "
          "step() of Replicas or Shards makes it");
    }
}

// Moves tensors that the optimizer made in this step to the slot's moments.
void TorchOptimizer::keep_state(const Slot& slot, const Piece& piece) {
  if (!rule_ || slot.moments.empty()) return;
  const auto found = optimizer_.state().find(key_of(piece.target));
  if (found == optimizer_.state().end()) return;
  for (const auto& [name, flat] : slot.moments) {
    at::Tensor& moment = rule_->moment(*found->second, name);
    if (!moment.defined() || slot.has(piece, flat, moment)) continue;
    const at::Tensor range = slot.of(piece, flat);
    range.copy_(moment);
    moment = range;
  }
}

// Learning rates too: a scheduler of torch computes the next rate from the current one.
NamedTensors TorchOptimizer::counters() {
  check_groups();
  for (size_t group = 0; group < originals_.size(); ++group)
    rates_.mutable_data_ptr<double>()[group] = optimizer_.param_groups()[group].options().get_lr();
  return {{"steps", steps_}, {"learning_rates", rates_}};
}

void TorchOptimizer::restored(int64_t updates) {
  for (size_t group = 0; group < originals_.size(); ++group)
    optimizer_.param_groups()[group].options().set_lr(rates_.const_data_ptr<double>()[group]);
  // If `updates` is 0, the checkpoint is of another optimizer, and moments start again. If it has updates but no steps,
  // its optimizer counted all parameters together.
  if (updates == 0) steps_.zero_();
  if (updates > 0 && steps_.max().item<int64_t>() == 0) steps_.fill_(updates);
  if (!rule_) return;
  for (const Slot& slot : slots_)
    for (const Piece& piece : slot.pieces) restore_state(slot, piece);
}

void TorchOptimizer::restore_state(const Slot& slot, const Piece& piece) {
  auto& states = optimizer_.state();
  const size_t group = groups_[piece.parameter];
  if (group == originals_.size()) return;
  const int64_t steps = steps_.const_data_ptr<int64_t>()[piece.parameter];
  if (steps == 0 && !rule_->always_has_state()) {
    states.erase(key_of(piece.target));
    return;
  }
  auto state = rule_->make();
  rule_->set_step(*state, steps * uses_[piece.parameter]);
  const std::vector<std::string> wanted = rule_->names(optimizer_.param_groups()[group]);
  for (const auto& [name, flat] : slot.moments)
    if (std::find(wanted.begin(), wanted.end(), name) != wanted.end())
      rule_->moment(*state, name) = slot.of(piece, flat);
  states[key_of(piece.target)] = std::move(state);
}

}  // namespace convoy
