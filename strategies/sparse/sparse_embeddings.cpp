#include "strategies/sparse/sparse_embeddings.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>

#include <set>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/config/init_from.h"
#include "core/model.h"
#include "core/tensors/init.h"
#include "core/tensors/tensor_memory.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "strategies/sparse/sparse_embedding.h"

namespace convoy {

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
      log::warning(convoy::str(name, " of ", rows, " rows stays dense, and each update sweeps over all of them: ",
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

}  // namespace convoy
