#include "strategies/sparse/exchange/row_exchange.h"

#include "core/base/log.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/sparse/exchange/row_messages.h"

namespace convoy {

RowExchange::RowExchange(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers)
    : group_(std::move(group)), tables_(std::move(tables)) {
  if (group_->size() == 1 || numbers == Compression::none) return;
  for (const ParameterPtr& table : tables_) compressed_.emplace_back(table, numbers);
}

void RowExchange::visit(const StateVisitor& visit) const {
  for (size_t table = 0; table < compressed_.size(); ++table) {
    StateEntry entry = state_entry(tables_[table]->name, StateKind::moment, compressed_[table].compression_errors());
    entry.moment = "left_over";
    entry.replica = group_->rank();
    visit(entry);
  }
}

int64_t RowExchange::number_bytes(size_t table) const {
  return convoy::number_bytes(tables_[table]->table->embedding().rows());
}

int64_t RowExchange::gradient_bytes(size_t table, int64_t rows) const {
  const at::Tensor& value = tables_[table]->value;
  return compressed_.empty() ? padded(rows * value.size(1) * int64_t(value.element_size()))
                             : compressed_[table].bytes(rows);
}

void RowExchange::warn_if_more_than_dense(int64_t received) {
  if (warned_ || group_->rank() != 0 || group_->size() == 1) return;
  double dense = 0;
  for (const ParameterPtr& table : tables_) {
    const double row = double(table->value.size(1)) * double(table->value.element_size());
    dense += double(table->table->embedding().rows()) * row;
  }
  // Bytes that a rank receives in a ring all-reduce.
  dense *= 2.0 * (group_->size() - 1) / group_->size();
  if (double(received) <= dense) return;
  warned_ = true;
  log::warning(convoy::str("sparse embeddings: ranks receive ", received,
                           " bytes an update, and gradients of whole tables would take ", int64_t(dense),
                           "; set model.rows: false, or auto"));
}

bool sharded(const std::vector<ParameterPtr>& tables) { return !tables.empty() && tables.front()->table->is_sharded(); }

}  // namespace convoy
