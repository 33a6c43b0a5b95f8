// NarrowRows: gradients of a table's rows in 16-bit numbers, for a message. What rounding leaves over of a row is kept by
// the rank that sends it, and added to its gradient the next time that this rank sends that row (error feedback, as of dense
// gradients: compressed_sum.h), so that the sum over many updates is off by one rounding of each row, not by one of each.
// On the CPU by bytes, of fp32 or fp64; tables elsewhere by tensor operations, messages and what is decoded beside them.
// Threads: the rank's own.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "strategies/parts/parameter.h"
#include "strategies/parts/replicas/sync_entry.h"
#include "strategies/parts/rows/row_table.h"

namespace convoy {

class NarrowRows {
 public:
  // Keeps a number beside each of the whole table's, also where rows are dealt out to ranks, any of which this one may send.
  // `numbers`: not none.
  NarrowRows(const ParameterPtr& table, Compression numbers);

  int64_t bytes(int64_t rows) const;  // of so many rows in a message; 0 of none

  // On the CPU; behind what was written. `picked`: of which of the rows, in this order; null: of all.
  char* encode(char* to, const TableRows& rows, const std::vector<int64_t>* picked = nullptr);
  // As the table's own numbers, which stay until the next call.
  const char* decode(const char* from, int64_t rows);

  // On any device: into and from bytes(rows) of a message.
  void encode(const at::Tensor& to, const TableRows& rows);
  at::Tensor decode(const at::Tensor& from, int64_t rows) const;  // [rows, width]

  const at::Tensor& left_over() const { return left_; }

 private:
  template <class Real, class Narrow>
  void encode_as(char* to, const TableRows& rows, const std::vector<int64_t>* picked);
  template <class Real, class Narrow>
  void decode_as(const char* from, int64_t rows);
  template <class Call>
  void typed(const Call& call) const;

  Compression numbers_;
  int64_t width_;
  at::Tensor left_;     // of the whole table's shape
  at::Tensor decoded_;  // bytes
};

// Of each table, for ranks of a group of several; none where rows are sent as they are.
std::vector<NarrowRows> narrow_rows(const std::vector<ParameterPtr>& tables, int ranks, Compression numbers);
// What they keep, each rank its own.
void visit_left_over(const std::vector<NarrowRows>& narrow, const std::vector<ParameterPtr>& tables, int rank,
                     const StateVisitor& visit);

}  // namespace convoy
