#include "strategies/stages/stage_loop.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <functional>
#include <map>
#include <set>

#include "core/base/error.h"

namespace convoy {

// --- TiedParameters ---

namespace {

[[noreturn]] void fail_unmade(int stage, const std::string& name) {
  throw Error(Failure::config, "model: a layer of stage ", stage, " is tied to ", name,
              ", which no layer before it has made");
}

void check_shape(int stage, const std::string& name, const std::vector<int64_t>& wanted,
                 const std::vector<int64_t>& made) {
  if (wanted != made)
    throw Error(Failure::config, "model: a layer of stage ", stage, " has a weight of ", at::IntArrayRef(wanted),
                " and is tied to ", name, " of ", at::IntArrayRef(made));
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.device() == b.device() && a.const_data_ptr() == b.const_data_ptr();
}

// A rank that has an awaited tensor.
struct TiedRank {
  bool makes = false;
  int stage = 0;
  std::vector<int64_t> shape;
};
using TiedRanks = std::map<int, TiedRank>;  // by rank of the axis `pipeline`

// Collective. Returns the texts of all ranks of the axis `pipeline`, by rank.
std::vector<std::string> gather_texts(const Context& context, const std::string& what, const std::string& mine) {
  const std::vector<int> ranks = context.mesh.group(context.rank, "pipeline");
  const auto timeout = timeout_of(context.config.launch.rendezvous);
  return context.channel->agree(convoy::str("ties/", ranks.front(), "/", what),
                                context.mesh.coordinate(context.rank, "pipeline"), int(ranks.size()), mine, timeout);
}

// Value that the owner broadcasts. A sharded parameter has no memory yet, so its initial value is computed here.
at::Tensor first_value(const Parameter& parameter) {
  if (!parameter.initial) return parameter.value.detach();
  const at::Tensor value = at::empty(parameter.value.sizes(), parameter.value.options().requires_grad(false));
  parameter.initial(value.view({-1}), 0);
  return value;
}

// Checks a tie. Returns the rank that creates the tensor.
int maker_of(const std::string& name, const TiedRanks& tied_ranks) {
  int maker = -1;
  for (const auto& [rank, tied_rank] : tied_ranks)
    if (tied_rank.makes) maker = rank;
  for (const auto& [rank, tied_rank] : tied_ranks) {
    if (tied_rank.makes) continue;
    if (maker < 0 || tied_ranks.at(maker).stage > tied_rank.stage) fail_unmade(tied_rank.stage, name);
    check_shape(tied_rank.stage, name, tied_rank.shape, tied_ranks.at(maker).shape);
  }
  return maker;
}

}  // namespace

PartRequest TiedParameters::with_ties(PartRequest request, int stage) {
  request.layers = [this, stage, layers = request.layers](std::shared_ptr<LayerStore> store) {
    const size_t part = parts_.size();
    parts_.push_back({stage, store});
    store->distant = [this, part](const std::string& name, at::IntArrayRef shape) {
      return copy_of(part, name, shape);
    };
    return layers ? layers(store) : std::make_shared<DefaultLayers>(store);
  };
  return request;
}

ParameterPtr TiedParameters::copy_of(size_t part, const std::string& name, at::IntArrayRef shape) {
  LayerStore& store = *parts_[part].store;
  for (size_t earlier = 0; earlier < part; ++earlier) {
    const auto found = parts_[earlier].store->by_name.find(name);
    if (found == parts_[earlier].store->by_name.end()) continue;
    check_shape(parts_[part].stage, name, shape.vec(), found->second->value.sizes().vec());
    return store.by_name[name] = follow(part, earlier, found->second);
  }
  auto copy = std::make_shared<Parameter>();
  copy->name = name;
  copy->counted = false;
  copy->value = at::zeros(shape, at::TensorOptions(store.dtype).device(store.device));
  copy->value.set_requires_grad(true);
  store.parameters.push_back(copy);
  awaited_.push_back({copy, parts_[part].stage});
  return store.by_name[name] = copy;
}

ParameterPtr TiedParameters::follow(size_t part, size_t leading_part, const ParameterPtr& leader) {
  at::NoGradGuard no_grad;
  LayerStore& store = *parts_[part].store;
  auto copy = std::make_shared<Parameter>();
  copy->name = leader->name;
  copy->counted = false;
  copy->prompt = true;
  const at::Tensor value = leader->value.variable_data();
  copy->value = value.device() == store.device ? value : value.to(store.device);
  copy->value.set_requires_grad(true);
  copy->gradient = at::zeros_like(copy->value, at::MemoryFormat::Contiguous).detach();
  copy->held = leader->held;
  store.followers.push_back(copy);
  followers_.push_back({leader, copy, leading_part, part});
  return copy;
}

void TiedParameters::connect(const Context& context) {
  for (Part& part : parts_) part.store->distant = nullptr;
  collect();
  std::vector<std::string> names;
  for (const Awaited& awaited : awaited_) names.push_back(awaited.copy->name);
  std::set<std::string> wanted;
  for (const std::string& text : gather_texts(context, "awaited", Json(names).dump())) {
    const Json list = Json::parse(text);
    for (const Json& name : list) wanted.insert(name.get<std::string>());
  }
  if (wanted.empty()) return;

  // Every rank announces its tensors to all, so all ranks make the same decisions.
  std::map<std::string, ParameterPtr> mine;
  Json announced = Json::object();
  const auto announce = [&](const ParameterPtr& parameter, int stage, bool makes) {
    mine[parameter->name] = parameter;
    announced[parameter->name] = {{"makes", makes}, {"stage", stage}, {"shape", parameter->value.sizes().vec()}};
  };
  for (const Awaited& awaited : awaited_) announce(awaited.copy, awaited.stage, false);
  for (const Part& part : parts_)
    for (const ParameterPtr& parameter : part.store->parameters)
      if (wanted.count(parameter->name) != 0 && mine.count(parameter->name) == 0) announce(parameter, part.stage, true);
  std::map<std::string, TiedRanks> tied;
  const std::vector<std::string> texts = gather_texts(context, "held", announced.dump());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const Json items = Json::parse(texts[rank]);
    for (const auto& [name, item] : items.items())
      tied[name][int(rank)] = {item.at("makes").get<bool>(), item.at("stage").get<int>(),
                               item.at("shape").get<std::vector<int64_t>>()};
  }

  const CommunicatorPtr pipeline = context.axis("pipeline");
  std::map<std::vector<int>, CommunicatorPtr> groups;  // by their ranks
  at::NoGradGuard no_grad;
  for (const auto& [name, tied_ranks] : tied) {
    const int maker = maker_of(name, tied_ranks);
    std::vector<int> ranks;
    int root = 0;
    for (const auto& [rank, tied_rank] : tied_ranks) {
      if (rank == maker) root = int(ranks.size());
      ranks.push_back(rank);
    }
    const bool here = tied_ranks.count(pipeline->rank()) != 0;
    CommunicatorPtr& group = groups[ranks];
    if (!group) group = pipeline->split(here ? 0 : 1, pipeline->rank(), {"tie " + name, {}});
    if (!here) continue;
    const ParameterPtr& parameter = mine.at(name);
    if (parameter->partial)
      throw Error(Failure::config, "model: ", name,
                  " is tied to a layer of another stage, and its gradient is "
                  "summed over the ranks of the axis tensor; do not tie it, or set "
                  "sequence_parallel: false");
    parameter->partial = group;
    group->broadcast(first_value(*parameter), root, {name, {}})->wait();
  }
  refresh();
}

void TiedParameters::collect() {
  for (size_t part = 0; part < parts_.size(); ++part) {
    const auto& copies = parts_[part].store->followers;
    if (copies.empty()) continue;
    collectors_.push_back(std::make_unique<GradientCollector>(copies, parts_[part].store->state, [](int) {}));
    collectors_.back()->begin();
  }
}

void TiedParameters::refresh() {
  at::NoGradGuard no_grad;
  for (const Follower& follower : followers_) {
    const at::Tensor value = follower.leader->value.detach();
    if (value.device() != follower.copy->value.device())
      follower.copy->value.detach().copy_(value);
    else if (!same_memory(value, follower.copy->value))
      follower.copy->value.set_data(value);
  }
}

void TiedParameters::fold(int part) {
  at::NoGradGuard no_grad;
  for (const Follower& follower : followers_) {
    if (follower.leading_part != size_t(part) || !follower.copy->written) continue;
    Parameter& leader = *follower.leader;
    CONVOY_CHECK(leader.gradient.defined(), leader.name, " has no gradient memory");
    if (leader.written)
      leader.gradient.add_(follower.copy->gradient.to(leader.gradient.device()));
    else
      leader.gradient.copy_(follower.copy->gradient);
    leader.written = leader.reached = true;
    follower.copy->written = false;
  }
}

// --- StageLoop, and its StageInputs ---

// End of a stage's graph: collects the gradients for the previous stage.
class StageInputs::Keeper : public torch::autograd::Node {
 public:
  std::string name() const override { return "ConvoyStageInputs"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    gradients_ = std::move(gradients);
    return {};
  }

  void add(const at::Tensor& input) {
    torch::autograd::set_history(input, shared_from_this());
    options_.push_back(at::TensorOptions(input.scalar_type()).device(input.device()));
    sizes_.push_back(input.sizes().vec());
  }

  TensorList take() {
    gradients_.resize(sizes_.size());
    for (size_t i = 0; i < sizes_.size(); ++i)
      if (!gradients_[i].defined()) gradients_[i] = at::zeros(sizes_[i], options_[i]);
    return std::move(gradients_);
  }

 private:
  std::vector<at::TensorOptions> options_;
  std::vector<std::vector<int64_t>> sizes_;
  torch::autograd::variable_list gradients_;
};

StageInputs::StageInputs(const Activations& activations) {
  CONVOY_CHECK(activations.tensors.size() == activations.trained.size(),
               "activations and trained flags differ in number");
  for (size_t i = 0; i < activations.tensors.size(); ++i) {
    tensors_.push_back(activations.tensors[i].detach());
    if (!activations.trained[i]) continue;
    if (!keeper_) keeper_ = std::make_shared<Keeper>();
    keeper_->add(tensors_.back());
  }
}

TensorList StageInputs::gradients() { return keeper_ ? keeper_->take() : TensorList(); }

namespace {

Activations given(TensorList outputs) {
  Activations activations;
  for (at::Tensor& output : outputs) {
    activations.trained.push_back(output.requires_grad() ? 1 : 0);
    activations.tensors.push_back(output.detach());
  }
  return activations;
}

}  // namespace

const LocalStage* StageLoop::find(int stage) const {
  for (const LocalStage& local : stages_)
    if (local.stage == stage) return &local;
  return nullptr;
}

const LocalStage& StageLoop::local_stage(int stage) const {
  const LocalStage* const found = find(stage);
  if (found == nullptr) throw Error(Failure::internal, "stage ", stage, " is not executed here");
  return *found;
}

void StageLoop::train(const std::vector<Action>& actions, const StepWork& work, StageLink& link) {
  live_.clear();
  size_t forwards = 0;  // index after the last forward
  for (size_t index = 0; index < actions.size(); ++index)
    if (actions[index].kind == Action::Kind::forward) forwards = index + 1;
  for (size_t index = 0; index < actions.size(); ++index) {
    link.ahead(index);
    if (actions[index].kind == Action::Kind::forward)
      forward(actions[index], work, link);
    else
      backward(actions[index], work, link, index >= forwards);
  }
  CONVOY_CHECK(live_.empty(), live_.size(), " forwards without a backward");
}

void StageLoop::forward(const Action& action, const StepWork& work, StageLink& link) {
  ModelPart& part = *local_stage(action.stage).model;
  const Batch& micro = work.micro[size_t(action.micro)];
  Live live;
  TensorList inputs;
  if (!part.first()) {
    live.inputs = std::make_unique<StageInputs>(link.take_activations(action.stage, action.micro));
    inputs = live.inputs->tensors();
  }
  TensorList outputs = part.forward(micro, work.step, inputs);
  if (part.last()) {
    live.loss = part.loss(outputs, micro);
    work.hooks.loss(live.loss);
  } else {
    live.roots = roots_of(outputs);
    link.give_activations(action.stage + 1, action.micro, given(std::move(outputs)));
  }
  live_[{action.stage, action.micro}] = std::move(live);
}

void StageLoop::backward(const Action& action, const StepWork& work, StageLink& link, bool draining) {
  const LocalStage& here = local_stage(action.stage);
  const auto found = live_.find({action.stage, action.micro});
  CONVOY_CHECK(found != live_.end(), "backward of stage ", action.stage, ", micro-batch ", action.micro,
               " before its forward");
  Live live = std::move(found->second);
  live_.erase(found);
  TensorList gradients;
  if (!here.model->last()) gradients = link.take_gradients(action.stage, action.micro);
  if (size_t(action.micro) + 1 == work.micro.size()) {
    // Later stages have finished this micro-batch, and so the step: their gradients are complete.
    ties_.fold(here.part);
    work.hooks.last_backward(here.part);
  }
  // While the schedule drains, the previous stage only waits for this one. So it gets its gradients first, and the
  // weight gradients follow. Earlier it still has forwards to run; then weight gradients are computed at once, while
  // their factors are in the cache.
  const auto send_gradients = [&] {
    if (live.inputs) link.give_gradients(action.stage - 1, action.micro, live.inputs->gradients());
  };
  const bool awaited = draining && live.inputs && live.inputs->trained() && find(action.stage - 1) == nullptr;
  const std::function<void()> early = awaited ? std::function<void()>(send_gradients) : nullptr;
  if (here.model->last())
    here.model->backward(live.loss, work.nominal, early);
  else
    here.model->backward(live.roots, gradients, early);
  if (!early) send_gradients();
}

std::vector<Metric> StageLoop::evaluate(const std::vector<Action>& actions, const std::vector<Batch>& micro,
                                        StageLink& link) {
  std::vector<Metric> metrics;
  for (size_t index = 0; index < actions.size(); ++index) {
    const Action& action = actions[index];
    link.ahead(index);
    ModelPart& part = *local_stage(action.stage).model;
    const Batch& batch = micro[size_t(action.micro)];
    TensorList inputs;
    if (!part.first()) inputs = link.take_activations(action.stage, action.micro).tensors;
    TensorList outputs = part.evaluate(batch, inputs);
    if (!part.last()) {
      link.give_activations(action.stage + 1, action.micro, given(std::move(outputs)));
      continue;
    }
    for (Metric& metric : part.metrics(outputs, batch)) add_metric(metrics, std::move(metric));
  }
  return metrics;
}

}  // namespace convoy
