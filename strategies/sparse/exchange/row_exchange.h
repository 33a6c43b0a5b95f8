// Exchange of sparse embeddings' rows between ranks.
//
// Sections: HalfPrecisionRows, RowExchange, bytes of messages.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/batch.h"
#include "core/communicator.h"
#include "core/state.h"
#include "strategies/common/layers/parameter.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "strategies/plans/options/step_options.h"
#include "strategies/sparse/sparse_embedding.h"

namespace convoy {

// --- HalfPrecisionRows: compressed gradients ---

// HalfPrecisionRows: gradients of a table's rows in half precision, for a message.
//
// The sender keeps the rounding error of a row and adds it to the next gradient of that row (error feedback, as for
// dense gradients in strategies/replicas/bucket_reducer.h). So the sum over many updates is off by one rounding per
// row. For tables on the CPU, loops over fp32 or fp64 write and read the bytes of a message. For other tables, tensor
// operations do this; messages and decoded rows are on the table's device. Threads: the rank's thread.
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

// --- RowExchange: equal updates on all ranks ---

// RowExchange: makes equal updates of sparse embeddings on all ranks of a group from the rows that each rank touched.
//
// Two kinds: each rank holds all rows and gathers the touched rows of all ranks (row_gather.h); or each row has one
// owner, which serves its value and receives its gradients (sharded_rows.h).
// Call order: begin at the start of each accumulation; look-ups of tables and their backwards; run.
// Threads: the rank's thread. Failure: CommError.
class RowExchange {
 public:
  // Takes the same tables in the same order on every rank. `numbers`: compression of the rows' gradients.
  RowExchange(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers);
  virtual ~RowExchange() = default;
  virtual void begin() {}
  // Collective. Announces the batch of the next forwards. Rows that it names may be fetched for all tables at once.
  virtual void expect(const Batch&) {}
  // Collective. Sums `dense` (contiguous, equal shapes on all ranks) in place, and sets the update of each table.
  virtual void run(const std::vector<at::Tensor>& dense) = 0;
  // True if all sums of `run` are surely finite, also of the rows that other ranks update; equal on all ranks.
  virtual bool finite_sums() const { return false; }
  // Collective. Announces that values or moments of tables were written. Others see them after their next `read` or
  // begin.
  virtual void written() {}
  virtual void read() {}
  // True if all ranks of the group share one copy of each table.
  virtual bool updates_together() const { return false; }
  // Collective. Returns true if all ranks pass true. Only if updates_together().
  virtual bool agree(bool yes) { return yes; }
  // Collective. Extends the update to all rows, also to those that other ranks update, until the next begin.
  virtual void complete() {}
  // Visits compression errors, which are local to this rank.
  void visit(const StateVisitor& visit) const;

 protected:
  int64_t number_bytes(size_t table) const;                  // bytes of one row number in a message
  int64_t gradient_bytes(size_t table, int64_t rows) const;  // bytes of their gradients in a message
  int64_t section_bytes(size_t table, int64_t rows) const;   // bytes of both
  // Rank 0 warns once if ranks received more bytes of rows than the tables' dense gradients would take.
  void warn_if_more_than_dense(int64_t received);

  CommunicatorPtr group_;
  std::vector<ParameterPtr> tables_;
  std::vector<HalfPrecisionRows> compressed_;  // by table; empty without compression

 private:
  bool warned_ = false;
};

// Collective. All tables are sharded, or none. Implemented in strategies/sparse/sharded_rows.cpp.
std::unique_ptr<RowExchange> make_row_exchange(const CommunicatorPtr& group, std::vector<ParameterPtr> tables,
                                               Compression numbers = Compression::none);
// Returns true if these tables are sharded.
bool sharded(const std::vector<ParameterPtr>& tables);

// --- Bytes of messages ---
//
// A message contains tensors in sequence, each at a multiple of 8 bytes.

inline int64_t bytes_of(const at::Tensor& tensor) { return int64_t(tensor.nbytes()); }
inline char* data_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

// Views part of a byte buffer as `elements` of another dtype.
inline at::Tensor bytes_as(const at::Tensor& bytes, int64_t begin, int64_t elements, at::ScalarType dtype) {
  const auto size = int64_t(c10::elementSize(dtype));
  return bytes.narrow(0, begin, elements * size).view(dtype);
}

// Returns memory of at least `bytes`. If `buffer` is smaller, replaces it by a new tensor of 1.5 · `bytes`; its content
// is lost.
inline at::Tensor& ensure_bytes(at::Tensor& buffer, int64_t bytes, at::Device device) {
  if (!buffer.defined() || buffer.numel() < bytes)
    buffer = at::empty({bytes + bytes / 2}, at::TensorOptions(at::kByte).device(device));
  return buffer;
}

}  // namespace convoy
