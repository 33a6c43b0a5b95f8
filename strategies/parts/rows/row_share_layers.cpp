#include "strategies/parts/rows/row_share_layers.h"

#include <ATen/core/Tensor.h>

#include "core/error.h"
#include "core/large_tensor.h"
#include "strategies/parts/init.h"
#include "strategies/parts/rows/row_blocks.h"
#include "strategies/parts/rows/row_shares_entry.h"
#include "strategies/parts/rows/row_tables.h"

namespace convoy {
namespace {

ParameterPtr make_share(LayerStore& store, const std::string& name, int64_t dim, const Init& init,
                        const std::shared_ptr<const RowBlocks>& blocks) {
  if (!store.device.is_cpu())
    throw Error(Failure::config,
                convoy::str(name, ": rows: sharded is kept in the memory of CPU ranks, and this one is on ",
                            store.device.str(), "; take rows: true"));
  const std::vector<int64_t> whole{blocks->rows(), dim};
  check_sizes(name, whole);
  auto parameter = std::make_shared<Parameter>();
  parameter->name = name;
  parameter->counted = store.counts;
  parameter->value = untouched_zeros({blocks->held(), dim}, store.dtype);
  for (const RowBlocks::Stretch& own : blocks->own()) {
    const int64_t end = own.place + own.rows;
    fill_initial(parameter->value.slice(0, own.place, end), init, fans_of(whole), store.seed, name,
                 static_cast<uint64_t>(own.first * dim));
    parameter->held.push_back({own.place, end, {whole, {own.first, 0}, {own.rows, dim}, std::nullopt}});
  }
  // Nothing of it, where there are fewer rows than ranks; no piece would be all of it.
  if (parameter->held.empty()) parameter->held.push_back({0, 0, {whole, {0, 0}, {0, dim}, std::nullopt}});
  parameter->value.set_requires_grad(true);
  record_parameter(store, parameter);
  return parameter;
}

class RowShareLayers : public PlainLayers {
 public:
  RowShareLayers(std::shared_ptr<LayerStore> store, int rank, int ranks, const std::string& prefix = "")
      : PlainLayers(store, prefix), store_(std::move(store)), rank_(rank), ranks_(ranks) {}

  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<RowShareLayers>(store_, rank_, ranks_, this->name(name) + ".");
  }

  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override {
    const std::string weight = this->name(name) + ".weight";
    if (!store_->rows->applies(weight, rows, options)) return PlainLayers::embedding(name, rows, dim, options);
    const auto blocks = std::make_shared<RowBlocks>(rows, rank_, ranks_);
    return table_embedding(make_share(*store_, weight, dim, options.weight, blocks), *store_, blocks);
  }

 private:
  std::shared_ptr<LayerStore> store_;
  int rank_, ranks_;
};

}  // namespace

std::function<std::shared_ptr<Layers>(std::shared_ptr<LayerStore>)> row_share_layers(const Context& context) {
  const CommunicatorPtr data = context.axis("data");
  if (data->size() == 1 || !asks_for_shares(context.config.model.options)) return {};
  return [rank = data->rank(), ranks = data->size()](std::shared_ptr<LayerStore> store) {
    return std::make_shared<RowShareLayers>(std::move(store), rank, ranks);
  };
}

}  // namespace convoy
