#include "strategies/sparse/sparse_embedding.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/config/init_from.h"
#include "core/model.h"
#include "core/tensors/init.h"
#include "core/tensors/tensor_memory.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "strategies/sparse/shared_rows.h"

namespace convoy {

// --- Layers of sparse embeddings ---

namespace {

ParameterPtr make_sharded_table(LayerStore& store, const std::string& name, int64_t dim, const Init& init,
                                const std::shared_ptr<const SparseRowBlocks>& blocks) {
  if (!store.device.is_cpu())
    throw Error(Failure::config, name, ": rows: sharded is kept in the memory of CPU ranks, and this one is on ",
                store.device.str(), "; set rows: true");
  const std::vector<int64_t> whole{blocks->rows(), dim};
  check_sizes(name, whole);
  const at::Tensor value = untouched_zeros({blocks->local_rows(), dim}, store.dtype);
  std::vector<LocalPiece> held;
  for (const SparseRowBlocks::Range& range : blocks->local_ranges()) {
    const int64_t end = range.index + range.rows;
    fill_initial(value.slice(0, range.index, end), init, fans_of(whole), store.seed, name, uint64_t(range.first * dim));
    held.push_back({range.index, end, {whole, {range.first, 0}, {range.rows, dim}, std::nullopt}});
  }
  // An empty piece, if there are fewer rows than ranks; without a piece the tensor would count as whole.
  if (held.empty()) held.push_back({0, 0, {whole, {0, 0}, {0, dim}, std::nullopt}});
  ParameterPtr parameter = add_parameter(store, name, value);
  parameter->held = std::move(held);
  return parameter;
}

class ShardedRowLayers : public DefaultLayers {
 public:
  ShardedRowLayers(std::shared_ptr<LayerStore> store, int rank, int ranks, const std::string& prefix = "")
      : DefaultLayers(std::move(store), prefix), rank_(rank), ranks_(ranks) {}

  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<ShardedRowLayers>(store_, rank_, ranks_, this->name(name) + ".");
  }

  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override {
    const std::string weight = this->name(name) + ".weight";
    if (!store_->rows->applies(weight, rows, options)) return DefaultLayers::embedding(name, rows, dim, options);
    const auto blocks = std::make_shared<SparseRowBlocks>(rows, rank_, ranks_);
    return sparse_embedding_layer(make_sharded_table(*store_, weight, dim, options.weight, blocks), *store_, blocks);
  }

 private:
  int rank_, ranks_;
};

}  // namespace

LayersFactory sharded_row_layers(const Context& context) {
  const CommunicatorPtr data = context.axis("data");
  if (data->size() == 1 || !wants_sharded_rows(context.config.model.options)) return {};
  return [rank = data->rank(), ranks = data->size()](std::shared_ptr<LayerStore> store) {
    return std::make_shared<ShardedRowLayers>(std::move(store), rank, ranks);
  };
}

namespace {

struct TableEmbedding : LayerModule {
  // A layer that is tied to the table later makes it dense.
  TableEmbedding(ParameterPtr weight, StatePtr state) : weight_(std::move(weight)), state_(std::move(state)) {
    register_parameter("weight", weight_->value);
  }
  at::Tensor forward(const at::Tensor& ids) override {
    return weight_->table ? weight_->table->embedding().embed(ids, *state_) : at::embedding(weight_->value, ids);
  }

 private:
  ParameterPtr weight_;
  StatePtr state_;
};

}  // namespace

Layer sparse_embedding_layer(const ParameterPtr& weight, const LayerStore& store,
                             std::shared_ptr<const SparseRowBlocks> blocks, std::shared_ptr<SharedRows> host) {
  weight->table = std::make_shared<SparseEmbedding>(weight->name, weight->value, std::move(blocks), std::move(host));
  return std::make_shared<TableEmbedding>(weight, store.state);
}

namespace {

class ConfiguredSparseRule : public SparseRule {
 public:
  ConfiguredSparseRule(const RunConfig& config, int ranks, bool warns)
      : config_(config), ranks_(ranks), warns_(warns), frozen_(frozen_names(config.model.options)) {}

  bool applies(const std::string& name, int64_t rows, const EmbeddingOptions& options) const override {
    if (options.rows == EmbeddingOptions::Rows::dense || (frozen_ && frozen_->found_in(name))) return false;
    TableSize table;
    table.name = name;
    table.rows = rows;
    table.asked = options.rows == EmbeddingOptions::Rows::rows;
    table.lookups = options.lookups;
    const SparseDecision decision = sparse_decision(config_, ranks_, table);
    if (table.asked && !decision.key.empty())
      throw Error(Failure::config, decision.key, ": ", decision.reason, "; ", name, " is a sparse embedding");
    if (!decision.rows && decision.large && !decision.key.empty() && warns_ && warned_.insert(name).second)
      log::warning(convoy::str(name, " of ", rows, " rows stays dense, and each update writes all of them: ",
                               decision.key, " ", decision.reason));
    return decision.rows;
  }

  Layer layer(const ParameterPtr& weight, const LayerStore& store) const override {
    return sparse_embedding_layer(weight, store);
  }

 private:
  RunConfig config_;
  int ranks_;
  bool warns_;
  std::optional<NamePattern> frozen_;
  mutable std::set<std::string> warned_;
};

}  // namespace

std::shared_ptr<const SparseRule> make_sparse_rule(const RunConfig& config, int ranks, bool warns) {
  return std::make_shared<ConfiguredSparseRule>(config, ranks, warns);
}

// --- SparseEmbedding ---

using torch::autograd::variable_list;

// Node with an edge to the parameter's value. So a graph that differentiates the table runs this node.
class SparseEmbedding::Backward : public torch::autograd::Node {
 public:
  Backward(std::shared_ptr<SparseEmbedding> table, at::Tensor positions)
      : table_(std::move(table)), positions_(std::move(positions)), round_(table_->round_) {}

  std::string name() const override { return "ConvoySparseEmbeddingBackward"; }

  variable_list apply(variable_list&& gradients) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (at::GradMode::is_enabled())
      throw Error(Failure::config, table_->name_,
                  " is a sparse embedding, which has no second derivative; take a "
                  "dense one");
    if (gradients[0].defined()) {
      at::NoGradGuard no_grad;
      at::AutoDispatchBelowADInplaceOrView below;
      table_->add(positions_, gradients[0], round_);
    }
    return variable_list(1);
  }

 private:
  std::shared_ptr<SparseEmbedding> table_;
  at::Tensor positions_;
  int64_t round_;
};

at::Tensor rows_between(const at::Tensor& tensor, int64_t begin, int64_t end) {
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[0] = end - begin;
  return plain_view(tensor, shape, begin * tensor.stride(0));
}

SparseEmbedding::SparseEmbedding(std::string name, at::Tensor value, std::shared_ptr<const SparseRowBlocks> blocks,
                                 std::shared_ptr<SharedRows> host)
    : name_(std::move(name)), value_(std::move(value)), blocks_(std::move(blocks)), host_(std::move(host)) {
  CONVOY_CHECK(value_.dim() == 2, name_, " is a table of shape ", value_.sizes());
  // Allocates tensors even on a rank that never touches a row.
  make_room(1);
  count_ = 0;
  if (host_) updaters_ = host_->blocks(value_.size(0));
}

void SparseEmbedding::connect(RowOptimizer* optimizer, const SlotOptions& options) {
  optimizer_ = optimizer;
  TableMemory memory;
  if (host_) {
    memory.zeros = [this](at::IntArrayRef shape, at::ScalarType dtype) { return host_->zeros(shape, dtype); };
    memory.local_rows.emplace();  // empty if there are fewer rows than ranks
    for (const SparseRowBlocks::Range& range : updaters_->local_ranges())
      memory.local_rows->emplace_back(range.first, range.first + range.rows);
  }
  index_ = optimizer->add_table(value_.detach(), options, memory);
}

Communicator* SparseEmbedding::update_group() const {
  return source_ != nullptr ? &source_->group() : host_ ? &host_->group() : nullptr;
}

void SparseEmbedding::set_source(RowSource* source, int table) {
  source_ = source;
  source_table_ = table;
}

void SparseEmbedding::look_up_local(const at::Tensor& indices, const at::Tensor& out) const {
  optimizer_->look_up(index_, indices, out);
}

at::Tensor SparseEmbedding::embed(const at::Tensor& ids, const ForwardState& state) {
  if (ids.scalar_type() != at::kLong)
    throw Error(Failure::training, "embedding ", name_, " received ids of ", ids.scalar_type(), "; it takes int64");
  CONVOY_CHECK(!blocks_ || (source_ != nullptr && optimizer_ != nullptr), name_, " is sharded and has no row source");
  if (!state.training || optimizer_ == nullptr) return embed_untrained(ids);
  return embed_trained(ids);
}

// Looks up outside training: nothing is kept.
at::Tensor SparseEmbedding::embed_untrained(const at::Tensor& ids) {
  at::NoGradGuard no_grad;
  check_ids(ids);
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(value_.size(1));
  const at::Tensor flat = ids.reshape({-1}).contiguous(), values = value_.detach();
  if (source_ != nullptr) return embed_fetched(flat).view(shape);
  if (optimizer_ == nullptr) return values.index_select(0, flat).view(shape);
  at::Tensor out = at::empty(shape, values.options());
  optimizer_->look_up(index_, flat, out.view({-1, value_.size(1)}));
  return out;
}

// Fetches each row once: candidates repeat many rows.
at::Tensor SparseEmbedding::embed_fetched(const at::Tensor& ids) {
  const int64_t n = ids.numel();
  RowIndex index;
  at::Tensor positions = at::empty({n}, at::kLong);
  int64_t* to = positions.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) to[i] = index.position(ids.const_data_ptr<int64_t>()[i]);
  const at::Tensor numbers = at::empty({index.size()}, at::kLong);
  std::copy(index.numbers().begin(), index.numbers().end(), numbers.mutable_data_ptr<int64_t>());
  const at::Tensor values = at::empty({index.size(), value_.size(1)}, value_.options().requires_grad(false));
  source_->fetch(source_table_, numbers, values, false);
  return values.index_select(0, positions);
}

at::Tensor SparseEmbedding::embed_trained(const at::Tensor& ids) {
  at::Tensor positions, out;
  {
    at::NoGradGuard no_grad;
    at::AutoDispatchBelowADInplaceOrView below;
    std::vector<int64_t> shape = ids.sizes().vec();
    shape.push_back(value_.size(1));
    const at::Tensor flat = plain_view(ids.contiguous(), {ids.numel()});
    positions = value_.is_cpu() ? positions_of(flat) : positions_on_device(flat);
    out = row_values_.index_select(0, positions).view(shape);
  }
  if (torch::autograd::compute_requires_grad(value_)) {
    auto node = std::make_shared<Backward>(shared_from_this(), positions);
    node->set_next_edges(torch::autograd::collect_next_edges(value_));
    torch::autograd::set_history(out, node);
  }
  return out;
}

at::Tensor SparseEmbedding::positions_of(const at::Tensor& ids) {
  if (source_ != nullptr) lookups_.push_back({ids.const_data_ptr<int64_t>(), ids.numel()});
  const at::Tensor known = prefetched(ids);
  if (known.defined()) return known;
  const int64_t first = positions_.size();
  const at::Tensor positions = touch(ids);
  fetch(first);
  return positions;
}

// Touches rows without fetching the values of new ones.
at::Tensor SparseEmbedding::touch(const at::Tensor& ids) {
  const int64_t first = positions_.size(), n = ids.numel();
  at::Tensor positions = at::empty({n}, at::kLong);
  const int64_t* numbers = ids.const_data_ptr<int64_t>();
  int64_t* to = positions.mutable_data_ptr<int64_t>();
  const auto all = uint64_t(rows());
  for (int64_t i = 0; i < n; ++i) {
    if (uint64_t(numbers[i]) >= all) check_ids(ids);
    to[i] = positions_.position(numbers[i]);
  }
  make_room(positions_.size());
  if (positions_.size() > first)
    std::memcpy(numbers_.mutable_data_ptr<int64_t>() + first, positions_.numbers().data() + first,
                sizeof(int64_t) * size_t(positions_.size() - first));
  return positions;
}

TableRows SparseEmbedding::prefetch(const at::Tensor& ids) {
  const int64_t first = positions_.size();
  prefetched_ids_ = ids;
  prefetched_positions_ = touch(ids.view({-1}));
  zero_gradients(first);
  return rows_from(first);
}

// Positions of prefetched ids; undefined if these ids are not in the prefetched memory.
at::Tensor SparseEmbedding::prefetched(const at::Tensor& ids) const {
  if (!prefetched_ids_.defined()) return {};
  const auto* all = prefetched_ids_.const_data_ptr<int64_t>();
  const auto* some = ids.const_data_ptr<int64_t>();
  if (ids.numel() > 0 && (some < all || some + ids.numel() > all + prefetched_ids_.numel())) return {};
  return prefetched_positions_.narrow(0, ids.numel() == 0 ? 0 : some - all, ids.numel());
}

std::vector<SparseEmbedding::Lookup> SparseEmbedding::take_lookups() { return std::exchange(lookups_, {}); }

// Positions among all touched rows. New rows of one look-up are in order of their numbers.
at::Tensor SparseEmbedding::positions_on_device(const at::Tensor& ids) {
  const auto [numbers, inverse, counts] = at::_unique2(ids, true, true, false);
  const int64_t first = count_;
  at::Tensor known = at::full({numbers.numel()}, -1, numbers.options());
  if (first > 0) {
    const auto [sorted, order] = numbers_.narrow(0, 0, first).sort();
    const at::Tensor spot = at::searchsorted(sorted, numbers).clamp_max(first - 1);
    known = at::where(sorted.index_select(0, spot) == numbers, order.index_select(0, spot), known);
  }
  const at::Tensor fresh = known < 0;
  const at::Tensor added = numbers.masked_select(fresh);
  make_room(first + added.numel());
  numbers_.narrow(0, first, added.numel()).copy_(added);
  known = at::where(fresh, fresh.to(at::kLong).cumsum(0) - 1 + first, known);
  fetch(first);
  return known.index_select(0, inverse);
}

void SparseEmbedding::make_room(int64_t rows) {
  count_ = rows;
  const int64_t capacity = numbers_.defined() ? numbers_.numel() : 0;
  if (rows <= capacity) return;
  const int64_t larger = std::max<int64_t>(rows + rows / 2, 64);
  const auto grown = [&](at::Tensor& tensor, at::IntArrayRef shape, const at::TensorOptions& options) {
    at::Tensor next = at::empty(shape, options);
    if (tensor.defined()) next.narrow(0, 0, capacity).copy_(tensor);
    tensor = std::move(next);
  };
  const auto options = value_.options().requires_grad(false);
  grown(numbers_, {larger}, options.dtype(at::kLong));
  grown(row_values_, {larger, value_.size(1)}, options);
  grown(gradients_, {larger, value_.size(1)}, options);
}

TableRows SparseEmbedding::rows_from(int64_t first) const {
  return {rows_between(numbers_, first, count_), rows_between(row_values_, first, count_)};
}

void SparseEmbedding::zero_gradients(int64_t first) {
  if (count_ == first) return;
  const at::Tensor rows = rows_between(gradients_, first, count_);
  if (rows.is_cpu())
    std::memset(rows.mutable_data_ptr(), 0, rows.nbytes());  // without the dispatch of an operator
  else
    rows.zero_();
}

// Fetches values of rows [first, count) and zeroes their gradients.
void SparseEmbedding::fetch(int64_t first) {
  const TableRows fresh = rows_from(first);
  zero_gradients(first);
  if (source_ != nullptr) return source_->fetch(source_table_, fresh.numbers, fresh.values, true);
  if (count_ > first) optimizer_->look_up(index_, fresh.numbers, fresh.values);
}

void SparseEmbedding::add(const at::Tensor& positions, const at::Tensor& gradient, int64_t round) {
  CONVOY_CHECK(round == round_, "a gradient of ", name_, " arrives after its update");
  const at::Tensor rows = plain_view(
      (gradient.scalar_type() == value_.scalar_type() ? gradient : gradient.to(value_.scalar_type())).contiguous(),
      {positions.numel(), value_.size(1)});
  at::Tensor sums = gradients_.narrow(0, 0, count_);
  // Both sum in a fixed order. On a GPU index_add_ does not.
  if (value_.is_cpu())
    sums.index_add_(0, positions, rows);
  else
    sums.add_(at::embedding_dense_backward(rows, positions, count_, -1, false));
}

void SparseEmbedding::begin() {
  ++round_;
  positions_.clear();
  count_ = 0;
  lookups_.clear();
  prefetched_ids_ = prefetched_positions_ = at::Tensor();
}

TableRows SparseEmbedding::touched() {
  return {rows_between(numbers_, 0, count_), rows_between(gradients_, 0, count_)};
}

at::Tensor SparseEmbedding::dense(const at::Tensor& numbers, const at::Tensor& values) const {
  at::NoGradGuard no_grad;
  at::Tensor all = value_.is_cpu() ? untouched_zeros(value_.sizes(), value_.scalar_type(), Touched::little)
                                   : at::zeros_like(value_.detach());
  return all.index_copy_(0, numbers, values);
}

void SparseEmbedding::check_ids(const at::Tensor& ids) const {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const auto [least, most] = at::aminmax(ids);
  const int64_t low = least.item<int64_t>(), high = most.item<int64_t>();
  if (low < 0 || high >= rows())
    throw Error(Failure::training, name_, " has look-ups of rows ", low, " … ", high, " and has 0 … ", rows() - 1);
}

}  // namespace convoy
