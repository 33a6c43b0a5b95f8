// DeviceRowGather: what RowGather does (row_gather.h), of tables on an accelerator, by tensor operations alone.
//
// Each rank tells how many rows of each table it has, for the host must know what to expect, then one all-gather brings
// everybody every rank's message, without counts; all ranks add them up in the order of ranks.
// Sent by each of N ranks: as RowGather, compressed ones too. Threads: the rank's own. Failure: CommError.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "strategies/parts/rows/narrow_rows.h"
#include "strategies/parts/rows/row_exchange.h"
#include "strategies/parts/rows/row_table.h"

namespace convoy {

class DeviceRowGather : public RowExchange {
 public:
  // The same tables in the same order on every rank. `numbers`: that gradients of rows are sent in (narrow_rows.h).
  DeviceRowGather(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers = Compression::none);

  void run(const std::vector<at::Tensor>& dense) override;
  void visit(const StateVisitor& visit) const override;

 private:
  void share_counts(const std::vector<TableRows>& own);
  void pack(const std::vector<at::Tensor>& dense, const std::vector<TableRows>& own);
  void merge(size_t table, const std::vector<int64_t>& begins);
  at::Tensor numbers_in(const at::Tensor& bytes, size_t table, int64_t begin, int64_t rows) const;
  at::Tensor values_at(size_t table, int64_t begin, int64_t rows) const;
  int64_t section(size_t table, int64_t rows) const;
  int64_t number_bytes(size_t table) const;

  CommunicatorPtr group_;
  std::vector<ParameterPtr> tables_;
  std::vector<NarrowRows> narrow_;  // by table; empty where rows are sent as they are
  at::Tensor counts_;               // int64 [ranks, tables] on the CPU
  at::Tensor packed_, gathered_;    // bytes
  int64_t own_bytes_ = 0;
  std::vector<int64_t> bytes_;  // by rank
  bool warned_ = false;
};

}  // namespace convoy
