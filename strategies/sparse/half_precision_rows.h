// HalfPrecisionRows: gradients of a table's rows in half precision, for a message.
//
// The sender keeps the rounding error of a row and adds it to the next gradient of that row (error feedback, as for
// dense gradients in compressed_sum.h). So the sum over many updates is off by one rounding per row. CPU tables are
// encoded by bytes, from fp32 or fp64. Other tables use tensor operations; messages and decoded rows are on their
// device. Threads: the rank's thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "strategies/common/layers/parameter.h"
#include "strategies/plans/options/step_options.h"
#include "strategies/sparse/sparse_embedding.h"

namespace convoy {

class HalfPrecisionRows {
 public:
  // Keeps one error per element of the whole table, also if its rows are sharded, because this rank may send any row.
  // `numbers` must not be none.
  HalfPrecisionRows(const ParameterPtr& table, Compression numbers);

  int64_t bytes(int64_t rows) const;  // size in a message; 0 for no rows

  // CPU only. Writes a message; returns the end of the written bytes. `picked`: row indices to encode, in order; null:
  // all.
  char* encode(char* to, const TableRows& rows, const std::vector<int64_t>* picked = nullptr);
  // CPU only. Returns decoded values in the table's dtype; valid until the next call.
  const char* decode(const char* from, int64_t rows);

  // Writes bytes(rows) of a message, on any device.
  void encode(const at::Tensor& to, const TableRows& rows);
  at::Tensor decode(const at::Tensor& from, int64_t rows) const;  // [rows, width]

  const at::Tensor& compression_errors() const { return errors_; }

 private:
  template <class Real, class Half>
  void encode_as(char* to, const TableRows& rows, const std::vector<int64_t>* picked);
  template <class Real, class Half>
  void decode_as(const char* from, int64_t rows);
  template <class Call>
  void typed(const Call& call) const;

  Compression numbers_;
  int64_t width_;
  at::Tensor errors_;   // [rows, width] of the whole table
  at::Tensor decoded_;  // bytes
};

}  // namespace convoy
