// NarrowRows: gradients of a table's rows in 16-bit numbers, for a message. What rounding leaves over of a row is kept, and
// added to its gradient the next time that this rank touches it (error feedback, as of dense gradients: compressed_sum.h), so
// that the sum over many updates is off by one rounding of each row, not by one of each update.
// fp16 numbers travel with a power of two that brings the largest of the message to 2¹³.
// On the CPU, of fp32 or fp64. Threads: the rank's own.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "strategies/parts/parameter.h"
#include "strategies/parts/row_table.h"
#include "strategies/parts/sync_entry.h"

namespace convoy {

class NarrowRows {
 public:
  // Keeps a number beside each of the table's. `numbers`: not none.
  NarrowRows(const ParameterPtr& table, Compression numbers);

  int64_t bytes(int64_t rows) const;  // of so many rows in a message; 0 of none
  char* encode(char* to, const TableRows& rows);
  // As the table's own numbers, which stay until the next call.
  const char* decode(const char* from, int64_t rows);
  const at::Tensor& left_over() const { return left_; }

 private:
  template <class Real, class Narrow>
  void encode_as(char* to, const TableRows& rows);
  template <class Real, class Narrow>
  void decode_as(const char* from, int64_t rows);
  template <class Call>
  void typed(const Call& call) const;

  Compression numbers_;
  int64_t width_;
  at::Tensor left_;     // of the table's shape
  at::Tensor decoded_;  // bytes
};

}  // namespace convoy
