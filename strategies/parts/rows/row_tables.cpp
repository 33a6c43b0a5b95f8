#include "strategies/parts/rows/row_tables.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>

#include "core/log.h"
#include "core/model.h"
#include "strategies/parts/rows/row_table.h"

namespace convoy {
namespace {

struct TableEmbedding : LayerModule {
  // A layer that is tied to the table later makes a dense one of it.
  TableEmbedding(ParameterPtr weight, std::shared_ptr<const ForwardState> state)
      : weight_(std::move(weight)), state_(std::move(state)) {
    register_parameter("weight", weight_->value);
  }
  at::Tensor forward(const at::Tensor& ids) override {
    return weight_->table ? weight_->table->embed(ids, *state_) : at::embedding(weight_->value, ids);
  }

 private:
  ParameterPtr weight_;
  std::shared_ptr<const ForwardState> state_;
};

}  // namespace

Layer table_embedding(const ParameterPtr& weight, const LayerStore& store, std::shared_ptr<const RowBlocks> blocks,
                      std::shared_ptr<HostRows> host) {
  weight->table = std::make_shared<RowTable>(weight->name, weight->value, std::move(blocks), std::move(host));
  return std::make_shared<TableEmbedding>(weight, store.state);
}

std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts) {
  std::vector<ParameterPtr> all;
  for (const ModelPart* part : parts) all.insert(all.end(), part->tables().begin(), part->tables().end());
  return all;
}

void tell_lazy(const Context& context, const std::vector<ParameterPtr>& tables) {
  const Options& optimizer = context.config.optimizer.options;
  if (context.rank != 0 || !tables.empty() || !optimizer.has("lazy") || !optimizer.boolean("lazy")) return;
  log::warning(
      "optimizer.lazy: true changes nothing: it is of row tables, and this run has none; take model.rows: true, or "
      "leave it "
      "out");
}

void begin_rows(const std::vector<ParameterPtr>& tables) {
  for (const ParameterPtr& table : tables) table->table->begin();
}

void take_rows(const std::vector<ParameterPtr>& tables) {
  for (const ParameterPtr& table : tables) table->table->set_update(table->table->touched());
}

}  // namespace convoy
