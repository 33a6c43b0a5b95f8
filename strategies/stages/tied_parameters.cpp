#include "strategies/stages/tied_parameters.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <set>

#include "core/base/error.h"

namespace convoy {
namespace {

[[noreturn]] void fail_unmade(int stage, const std::string& name) {
  throw Error(Failure::config, "model: a layer of stage ", stage, " is tied to ", name,
              ", which no layer before it has made");
}

void check_shape(int stage, const std::string& name, const std::vector<int64_t>& wanted,
                 const std::vector<int64_t>& made) {
  if (wanted != made)
    throw Error(Failure::config, "model: a layer of stage ", stage, " wants a weight of ", at::IntArrayRef(wanted),
                " and is tied to ", name, " of ", at::IntArrayRef(made));
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.device() == b.device() && a.const_data_ptr() == b.const_data_ptr();
}

// Rank that holds an awaited tensor, by rank of the group.
struct TiedRank {
  bool makes = false;
  int stage = 0;
  std::vector<int64_t> shape;
};
using TiedRanks = std::map<int, TiedRank>;

// Every rank's text, by rank of the axis.
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

// Checks a tie and names the rank that makes the tensor.
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

  // Every rank announces its tensors; all reach the same conclusions.
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
  std::map<std::vector<int>, CommunicatorPtr> groups;  // by their members
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

}  // namespace convoy
