// TouchedRowSums: the touched rows that this rank updates in a table in shared memory (shared_rows.h), and their sums.
//
// A row touched by one rank is updated by that rank: its caches contain the row and its moments, and no message is read
// for its gradient. A row touched by several ranks is assigned to one of them by its number. So ranks that touch
// equally many rows update equally many. The sum of a row adds the ranks' gradients in rank order, on any rank. Memory
// is reused between updates. On the CPU; one thread.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>

#include "strategies/sparse/exchange/row_index.h"
#include "strategies/sparse/sparse_embedding.h"

namespace convoy {

// RowSums: sums rows of several ranks, each row once per rank, in the order of `add` calls.
//
// Memory is reused between updates. On the CPU; one thread.
class RowSums {
 public:
  // Clears the sums. At most `most` rows will be added, of `value`'s width and dtype (fp32 or fp64). `updaters`: skips
  // rows of other ranks; it outlives the sums.
  void begin(int64_t most, const at::Tensor& value, const SparseRowBlocks* updaters = nullptr);
  // Adds one rank's n rows in message format: unique numbers [n] of 4 or 8 bytes, and aligned values [n, width] of the
  // dtype.
  void add(const int32_t* numbers, const char* values, int64_t n);
  void add(const int64_t* numbers, const char* values, int64_t n);
  // Returns the sums; valid until the next begin.
  TableRows rows();

 private:
  template <class Number>
  void add_any(const Number* numbers, const char* values, int64_t n);

  RowIndex index_;
  const SparseRowBlocks* updaters_ = nullptr;  // null: all rows are summed
  at::Tensor numbers_, values_;                // [capacity], [capacity, width]
};

class TouchedRowSums {
 public:
  // `local`: positions of this rank's rows; outlives the sums. Rows have `value`'s width and dtype (fp32 or fp64).
  void begin(const RowIndex& local, int rank, int ranks, const at::Tensor& value);
  // First set the row numbers of every other rank, in message format. Then add each rank's values [n, width]. Make both
  // calls in rank order.
  void set_numbers(int rank, const int32_t* numbers, int64_t n);
  void set_numbers(int rank, const int64_t* numbers, int64_t n);
  void add(int rank, const char* values, int64_t n);
  // Returns the sums; valid until the next begin.
  TableRows rows();

 private:
  template <class Number>
  void set_any_numbers(int rank, const Number* numbers, int64_t n);
  template <class T>
  void add_rows(const int32_t* positions, const T* from, int64_t n);
  void choose_rows();

  const RowIndex* local_ = nullptr;
  int rank_ = 0;
  bool chosen_ = false;
  std::vector<std::vector<int32_t>>
      positions_;  // by rank, for each of its rows: position among this rank's rows, or −1
  // By position: number of lower ranks, and of all ranks, that touched the row.
  std::vector<int32_t> before_, all_;
  std::vector<int32_t> sums_at_;  // by position: index of the sum; −1: another rank updates it
  std::vector<char> begun_;       // by sum: it has a value
  at::Tensor numbers_, values_;   // [capacity], [capacity, width]
  int64_t count_ = 0;
};

}  // namespace convoy
