// RowGather: every rank of the group has all rows of all tables and makes the same update, of what all of them touched.
//
// Each rank tells how many rows of each table it has, then one all-gather brings everybody every rank's rows, numbers and
// gradients in one message of bytes; all ranks add them up in the order of ranks, so that replicas stay equal bit by bit.
// Where the dense gradients are small they travel in front of that message and are summed the same way: one exchange for all
// instead of an all-reduce beside it. A rank without rows takes part with none.
// Sent by each of N ranks: (N−1)·(8·tables + dense bytes + Σ rows·(4 or 8 + width·element)), each part padded to 8.
// Threads: the rank's own. Failure: CommError.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "strategies/parts/row_exchange.h"
#include "strategies/parts/row_sums.h"
#include "strategies/parts/row_table.h"

namespace convoy {

class RowGather : public RowExchange {
 public:
  // The same tables in the same order on every rank.
  RowGather(CommunicatorPtr group, std::vector<ParameterPtr> tables);

  void run(const std::vector<at::Tensor>& dense) override;

 private:
  void share_counts(const std::vector<TableRows>& own);
  void pack(const std::vector<at::Tensor>& dense, const std::vector<TableRows>& own);
  void merge(size_t table, const std::vector<int64_t>& begins);
  void merge_on_device(size_t table, const std::vector<int64_t>& begins);
  at::Tensor numbers_in(const at::Tensor& bytes, size_t table, int64_t begin, int64_t rows) const;
  at::Tensor values_at(size_t table, int64_t begin, int64_t rows) const;
  int64_t section(size_t table, int64_t rows) const;
  int64_t number_bytes(size_t table) const;
  void warn_if_more(int64_t bytes);

  CommunicatorPtr group_;
  std::vector<ParameterPtr> tables_;
  std::vector<RowSums> sums_;     // by table
  at::Tensor counts_;             // int64 [ranks, tables] on the CPU
  at::Tensor packed_, gathered_;  // bytes
  int64_t own_bytes_ = 0;
  std::vector<int64_t> bytes_;  // by rank
  bool warned_ = false;
};

}  // namespace convoy
