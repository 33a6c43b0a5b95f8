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
  // `local`: positions of this rank's rows; outlives the sums. `gradients` [rows, width]: their gradients by position
  // (fp32 or fp64), which the sums replace.
  void begin(const RowIndex& local, int rank, int ranks, at::Tensor gradients);
  // First set the row numbers of every other rank, in message format. Then add the values of every rank [n, width];
  // those of this rank are null, because `begin` got them. Make both calls in rank order.
  void set_numbers(int rank, const int32_t* numbers, int64_t n);
  void set_numbers(int rank, const int64_t* numbers, int64_t n);
  void add(int rank, const char* values);
  // Returns the sums, in the memory of the gradients; valid until the next begin. Call it once.
  TableRows rows();

 private:
  // A row of another rank that this rank touched too.
  struct Found {
    int64_t index = 0;     // in the message
    int64_t position = 0;  // among this rank's rows
  };
  template <class Number>
  void set_any_numbers(int rank, const Number* numbers, int64_t n);
  void choose_rows();

  const RowIndex* local_ = nullptr;
  int rank_ = 0;
  bool chosen_ = false;
  at::Tensor gradients_;                   // by position; sums after `add`
  std::vector<uint64_t> filter_;           // a bit for each row of this rank, by the number's hash
  int shift_ = 0;                          // bits by which the hash is shifted
  std::vector<std::vector<Found>> found_;  // by rank
  std::vector<int32_t> before_, all_;      // by position: lower ranks, and all ranks, that touched the row
  std::vector<int64_t> shared_;            // positions of rows that several ranks touched
  std::vector<int64_t> summed_, others_;   // shared rows that this rank updates, and that others update; ascending
  std::vector<int32_t> summed_at_;         // by position: index in summed_; −1: not in it
  std::vector<char> local_gradients_;      // this rank's gradients of the rows in summed_
  std::vector<char> begun_;                // by index in summed_: the sum has a value
  at::Tensor numbers_;                     // [capacity]
};

}  // namespace convoy
