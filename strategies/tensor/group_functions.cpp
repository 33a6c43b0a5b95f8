#include "strategies/tensor/group_functions.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <optional>

#include "core/base/error.h"
#include "core/tensors/init.h"
#include "core/tensors/products.h"
#include "strategies/common/layers/linear_function.h"

namespace convoy {

// --- Products with a sharded weight ---

namespace {

using torch::autograd::variable_list;

class GroupProductNode : public ProductNode {
 public:
  GroupProductNode(const at::Tensor& input, ParameterPtr weight, ParameterPtr bias, StatePtr state, ProductGroup group)
      : ProductNode(input, std::move(weight), std::move(bias), std::move(state)), group_(std::move(group)) {}

 protected:
  // `output`: gradient of the output. `with_graph`: second derivatives will be needed.
  virtual void once(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                    variable_list& results) = 0;
  virtual void with_graph(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                          variable_list& results) = 0;

  void differentiate(at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                     variable_list& results) override {
    if (at::GradMode::is_enabled())
      with_graph(output, input, weight, results);
    else
      once(output, input, weight, results);
  }

  Communicator& ranks() const { return *group_.group; }
  std::string gradient_name() const { return "gradient of the input of " + group_.name; }

  ProductGroup group_;
};

class ColumnBackward : public GroupProductNode {
 public:
  using GroupProductNode::GroupProductNode;
  std::string name() const override { return "ConvoyColumnBackward"; }

 protected:
  void once(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
            variable_list& results) override {
    std::optional<GroupExchange> gathering, summing;
    if (group_.shares && wants_weight())
      gathering = start_gathering_sequence(input, ranks(), "input of " + group_.name);
    const at::Tensor flat = output.reshape({-1, weight.size(0)});
    if (wants_input()) {
      const at::Tensor part = product(flat, weight).view(with_last(output.sizes(), weight.size(1)));
      summing = group_.shares ? start_sequence_of_sum(part, ranks(), gradient_name())
                              : start_sum(part, ranks(), gradient_name());
    }
    if (wants_weight()) {
      const at::Tensor whole = gathering ? gathering->wait() : input;
      results[1] = weight_gradient(*weight_, *state_, flat, whole.reshape({-1, weight.size(1)}));
    }
    if (wants_bias()) results[2] = bias_gradient(*bias_, *state_, flat);
    if (summing) results[0] = summing->wait();
  }

  void with_graph(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                  variable_list& results) override {
    const at::Tensor whole = group_.shares ? sequence_to_parts(input, group_.group, group_.name)
                                           : to_parts(input, group_.group, group_.name);
    const at::Tensor flat = output.reshape({-1, weight.size(0)});
    const at::Tensor part = product(flat, weight).view(whole.sizes());
    if (wants_input())
      results[0] = group_.shares ? sequence_of_sum(part, group_.group, gradient_name())
                                 : sum_of_parts(part, group_.group, gradient_name());
    if (wants_weight()) results[1] = flat.t().mm(whole.reshape({-1, weight.size(1)}));
    if (wants_bias()) results[2] = flat.sum(0);
  }
};

class RowBackward : public GroupProductNode {
 public:
  using GroupProductNode::GroupProductNode;
  std::string name() const override { return "ConvoyRowBackward"; }

 protected:
  void once(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
            variable_list& results) override {
    const at::Tensor whole =
        group_.shares ? start_gathering_sequence(output, ranks(), "gradient of " + group_.name).wait() : output;
    const at::Tensor flat = whole.reshape({-1, weight.size(0)});
    if (wants_weight()) results[1] = weight_gradient(*weight_, *state_, flat, input.reshape({-1, weight.size(1)}));
    if (wants_bias()) results[2] = bias_gradient(*bias_, *state_, flat);
    if (wants_input()) results[0] = product(flat, weight).view(input.sizes());
  }

  void with_graph(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                  variable_list& results) override {
    const at::Tensor whole = group_.shares ? sequence_to_parts(output, group_.group, group_.name)
                                           : to_parts(output, group_.group, group_.name);
    const at::Tensor flat = whole.reshape({-1, weight.size(0)});
    if (wants_input()) results[0] = product(flat, weight).view(input.sizes());
    if (wants_weight()) results[1] = flat.t().mm(input.reshape({-1, weight.size(1)}));
    if (!wants_bias()) return;
    const at::Tensor own = output.reshape({-1, weight.size(0)}).sum(0);
    results[2] = group_.shares ? sum_of_parts(own, group_.group, group_.name) : own;
  }
};

at::Tensor column_by_functions(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                               const ProductGroup& group) {
  const at::Tensor whole = group.shares ? sequence_to_parts(input, group.group, "input of " + group.name)
                                        : to_parts(input, group.group, "input of " + group.name);
  return at::linear(whole, weight, bias);
}

at::Tensor row_by_functions(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                            const ProductGroup& group) {
  const at::Tensor part = at::linear(input, weight);
  const at::Tensor sum =
      group.shares ? sequence_of_sum(part, group.group, group.name) : sum_of_parts(part, group.group, group.name);
  if (!bias.defined()) return sum;
  const at::Tensor added = bias.to(sum.scalar_type());
  return sum + (group.shares ? to_parts(added, group.group, "bias of " + group.name) : added);
}

}  // namespace

at::Tensor column_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                          const StatePtr& state, const ProductGroup& group) {
  const at::Tensor bias_value = bias ? bias->value : at::Tensor();
  if (without_node(input, weight->value)) return column_by_functions(input, weight->value, bias_value, group);
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor whole =
        group.shares ? start_gathering_sequence(input, *group.group, "input of " + group.name).wait() : input;
    output = linear_product(whole, weight->value, bias_value);
  }
  return recorded<ColumnBackward>(std::move(output), input, weight, bias, state, group);
}

at::Tensor row_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                       const StatePtr& state, const ProductGroup& group) {
  const at::Tensor bias_value = bias ? bias->value : at::Tensor();
  if (without_node(input, weight->value)) return row_by_functions(input, weight->value, bias_value, group);
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor part = linear_product(input, weight->value, {}).contiguous();
    output = (group.shares ? start_sequence_of_sum(part, *group.group, group.name)
                           : start_sum(part, *group.group, group.name))
                 .wait();
    if (bias_value.defined()) output.add_(bias_value);
  }
  return recorded<RowBackward>(std::move(output), input, weight, bias, state, group);
}

// --- Parameters that are sharded over the ranks of a tensor group ---

std::vector<LocalPiece> local_pieces(at::IntArrayRef shape, const TensorShard& shard) {
  const auto [begin, end] = shard.shard.share();
  const auto dimension = size_t(shard.dimension);
  std::vector<LocalPiece> pieces;
  for (int64_t part = 0; part < shard.shard.parts; ++part) {
    LocalPiece piece;
    piece.piece = Piece::whole(shape);
    piece.piece.offset[dimension] = part * shard.shard.part() + begin;
    piece.piece.length[dimension] = end - begin;
    piece.begin = shard.dimension == 0 ? part * (end - begin) : 0;
    piece.end = shard.dimension == 0 ? piece.begin + end - begin : shape[0];
    pieces.push_back(piece);
  }
  return pieces;
}

namespace {

// Fills the value range by range; each range is contiguous in the whole tensor.
void fill_pieces(const at::Tensor& value, at::IntArrayRef shape, const std::string& name,
                 const std::vector<LocalPiece>& held, const TensorShard& shard, const Init& init, uint64_t seed) {
  const Fans fans = fans_of(shape);
  const auto fill = [&](const at::Tensor& range, int64_t first) {
    fill_initial(range, init, fans, seed, name, uint64_t(first));
  };
  for (const LocalPiece& local : held) {
    if (shard.dimension == 0) {
      const int64_t width = shape.size() == 1 ? 1 : shape[1];
      fill(value.narrow(0, local.begin, local.end - local.begin), local.piece.offset[0] * width);
      continue;
    }
    for (int64_t row = 0; row < shape[0]; ++row) fill(value.select(0, row), row * shape[1] + local.piece.offset[1]);
  }
}

}  // namespace

ParameterPtr make_sharded_parameter(LayerStore& store, const std::string& name, at::IntArrayRef shape,
                                    const TensorShard& shard, const Init& init) {
  check_sizes(name, shape);
  CONVOY_CHECK(!shape.empty() && shape.size() <= 2 && shard.dimension < int64_t(shape.size()) &&
                   shape[size_t(shard.dimension)] == shard.shard.whole &&
                   (shard.dimension == 0 || shard.shard.parts == 1),
               name, " of ", shape, " is sharded along ", shard.dimension, " of ", shard.shard.whole);
  const std::vector<LocalPiece> held = local_pieces(shape, shard);
  std::vector<int64_t> local = shape.vec();
  local[size_t(shard.dimension)] = shard.shard.length();
  const at::Tensor value = at::empty(local, at::TensorOptions(store.dtype));
  fill_pieces(value, shape, name, held, shard, init, store.seed);
  ParameterPtr parameter = add_parameter(store, name, value.to(store.device));
  parameter->counted = true;  // no other rank has this shard
  parameter->held = held;
  return parameter;
}

// --- Differentiable collectives ---

namespace {

using torch::autograd::variable_list;
using Map = std::function<at::Tensor(const at::Tensor&)>;

class MapBackward : public torch::autograd::Node {
 public:
  explicit MapBackward(Map map) : map_(std::move(map)) {}
  std::string name() const override { return "ConvoyGroupBackward"; }
  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {map_(gradients[0])};
  }

 private:
  Map map_;
};

// Node: value forward(input), gradient backward(gradient of the output). Both are linear; `forward` returns a new
// tensor.
at::Tensor mapped(const at::Tensor& input, const Map& forward, Map backward) {
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    output = forward(input);
  }
  if (torch::autograd::compute_requires_grad(input)) {
    auto node = std::make_shared<MapBackward>(std::move(backward));
    node->set_next_edges(torch::autograd::collect_next_edges(input));
    torch::autograd::set_history(output, node);
  }
  return output;
}

std::vector<int64_t> in_front(int64_t size, at::IntArrayRef sizes) {
  std::vector<int64_t> shape{size};
  shape.insert(shape.end(), sizes.begin(), sizes.end());
  return shape;
}

at::Tensor sum(const at::Tensor& part, Communicator& group, const std::string& name) {
  return start_sum(part.clone(at::MemoryFormat::Contiguous), group, name).wait();
}

at::Tensor gather_last(const at::Tensor& part, const DimensionShard& shard, Communicator& group,
                       const std::string& name) {
  if (part.size(-1) != shard.length())
    throw Error(Failure::training, name, ": a tensor of shape ", part.sizes(), " is not a shard of ", shard.whole,
                "; a block must keep the last dimension of sharded activations");
  if (shard.even()) {
    const at::Tensor input = part.unflatten(-1, {shard.parts, shard.length() / shard.parts}).contiguous();
    at::Tensor all = at::empty(in_front(shard.size, input.sizes()), input.options());
    group.all_gather(all, input, {name, {}})->wait();
    return all.movedim(0, -2).flatten(-3, -1);
  }
  CONVOY_CHECK(shard.parts == 1, name, ": ", shard.parts, " parts of ", shard.part(), " among ", shard.size, " ranks");
  std::vector<int64_t> counts;
  for (int rank = 0; rank < shard.size; ++rank) counts.push_back(shard.share(rank).second - shard.share(rank).first);
  const at::Tensor input = part.movedim(-1, 0).contiguous();
  at::Tensor all = at::empty(in_front(shard.whole, input.sizes().slice(1)), input.options());
  group.all_gather_v(all, input, counts, {name, {}})->wait();
  return all.movedim(0, -1).contiguous();
}

at::Tensor share_last(const at::Tensor& whole, const DimensionShard& shard) {
  const auto [begin, end] = shard.share();
  const at::Tensor share = whole.unflatten(-1, {shard.parts, shard.part()}).narrow(-1, begin, end - begin);
  return share.flatten(-2, -1).clone(at::MemoryFormat::Contiguous);
}

at::Tensor share_of_sequence(const at::Tensor& whole, const Communicator& group) {
  const int64_t length = whole.size(-2) / group.size();
  return whole.narrow(-2, group.rank() * length, length).clone(at::MemoryFormat::Contiguous);
}

std::string gradient_of(const std::string& name) { return "gradient of " + name; }

}  // namespace

at::Tensor to_parts(const at::Tensor& whole, const CommunicatorPtr& group, const std::string& name) {
  return mapped(
      whole, [](const at::Tensor& x) { return x.detach(); },
      [group, name](const at::Tensor& gradient) { return sum_of_parts(gradient, group, gradient_of(name)); });
}

at::Tensor sum_of_parts(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name) {
  return mapped(
      part, [&](const at::Tensor& x) { return sum(x, *group, name); },
      [group, name](const at::Tensor& gradient) { return to_parts(gradient, group, gradient_of(name)); });
}

at::Tensor gathered_last(const at::Tensor& part, const DimensionShard& shard, const CommunicatorPtr& group,
                         const std::string& name) {
  return mapped(
      part, [&](const at::Tensor& x) { return gather_last(x, shard, *group, name); },
      [shard, group, name](const at::Tensor& gradient) {
        return last_dimension_shard(gradient, shard, group, gradient_of(name));
      });
}

at::Tensor last_dimension_shard(const at::Tensor& whole, const DimensionShard& shard, const CommunicatorPtr& group,
                                const std::string& name) {
  return mapped(
      whole, [&](const at::Tensor& x) { return share_last(x, shard); },
      [shard, group, name](const at::Tensor& gradient) {
        return gathered_last(gradient, shard, group, gradient_of(name));
      });
}

at::Tensor sequence_shard(const at::Tensor& whole, const CommunicatorPtr& group, const std::string& name) {
  return mapped(
      whole, [&](const at::Tensor& x) { return share_of_sequence(x, *group); },
      [group, name](const at::Tensor& gradient) { return gathered_sequence(gradient, group, gradient_of(name)); });
}

at::Tensor gathered_sequence(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name) {
  return mapped(
      part, [&](const at::Tensor& x) { return start_gathering_sequence(x, *group, name).wait(); },
      [group, name](const at::Tensor& gradient) { return sequence_shard(gradient, group, gradient_of(name)); });
}

at::Tensor sequence_to_parts(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name) {
  return mapped(
      part, [&](const at::Tensor& x) { return start_gathering_sequence(x, *group, name).wait(); },
      [group, name](const at::Tensor& gradient) { return sequence_of_sum(gradient, group, gradient_of(name)); });
}

at::Tensor sequence_of_sum(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name) {
  return mapped(
      part, [&](const at::Tensor& x) { return start_sequence_of_sum(x, *group, name).wait(); },
      [group, name](const at::Tensor& gradient) { return sequence_to_parts(gradient, group, gradient_of(name)); });
}

GroupExchange start_sum(const at::Tensor& contiguous, Communicator& group, const std::string& name) {
  return {group.all_reduce(contiguous, ReduceOp::sum, {name, {}}), contiguous};
}

GroupExchange start_gathering_sequence(const at::Tensor& part, Communicator& group, const std::string& name) {
  const at::Tensor input = part.contiguous();
  at::Tensor all = at::empty(in_front(group.size(), input.sizes()), input.options());
  WorkPtr work = group.all_gather(all, input, {name, {}});
  return {std::move(work), all, [](const at::Tensor& shares) { return shares.movedim(0, -3).flatten(-3, -2); }};
}

GroupExchange start_sequence_of_sum(const at::Tensor& part, Communicator& group, const std::string& name) {
  const int64_t ranks = group.size();
  CONVOY_CHECK(part.size(-2) % ranks == 0, name, ": ", ranks, " ranks do not divide a sequence of ", part.size(-2));
  const at::Tensor shares = part.unflatten(-2, {ranks, part.size(-2) / ranks}).movedim(-3, 0).contiguous();
  at::Tensor own = at::empty(shares.sizes().slice(1), shares.options());
  WorkPtr work = group.reduce_scatter(own, shares, ReduceOp::sum, {name, {}});
  return {std::move(work), own};
}

}  // namespace convoy
