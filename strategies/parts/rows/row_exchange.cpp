#include "strategies/parts/rows/row_exchange.h"

#include "core/error.h"
#include "strategies/parts/rows/device_row_gather.h"
#include "strategies/parts/rows/row_gather.h"
#include "strategies/parts/rows/row_shares.h"

namespace convoy {

bool dealt_out(const std::vector<ParameterPtr>& tables) {
  return !tables.empty() && tables.front()->table->blocks() != nullptr;
}

std::unique_ptr<RowExchange> make_row_exchange(const CommunicatorPtr& group, std::vector<ParameterPtr> tables,
                                               Compression numbers) {
  for (const ParameterPtr& table : tables)
    CONVOY_CHECK((table->table->blocks() != nullptr) == dealt_out(tables), table->name, " is not kept as other tables");
  if (dealt_out(tables)) return std::make_unique<RowShares>(group, std::move(tables), numbers);
  if (!tables.empty() && !tables.front()->value.is_cpu())
    return std::make_unique<DeviceRowGather>(group, std::move(tables), numbers);
  return std::make_unique<RowGather>(group, std::move(tables), numbers);
}

}  // namespace convoy
