// TouchedSums: of a table that all ranks share in one memory (host_rows.h), which of the rows that ranks have touched this one
// updates, and their sums.
//
// A row that one rank alone has touched that rank updates: its core has just read what the row and its moments hold, and its
// gradient need not be read from anybody's message. One that several have touched goes to one of them, by its number. So ranks
// that touch as much update as much. The sum of a row is that of the ranks' gradients in the order of ranks, whoever adds up.
// Memory stays from update to update. On the CPU; one thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "strategies/parts/rows/row_index.h"
#include "strategies/parts/rows/row_table.h"

namespace convoy {

class TouchedSums {
 public:
  // `own`: places of this rank's rows; outlives the adding up. Rows are of `value`'s width and dtype (fp32 or fp64).
  void begin(const RowIndex& own, int rank, int ranks, const at::Tensor& value);
  // First the numbers of every other rank, as messages hold them; then what each rank tells of them (values [n, width]), all in
  // the order of ranks.
  void tell(int rank, const int32_t* numbers, int64_t n);
  void tell(int rank, const int64_t* numbers, int64_t n);
  void add(int rank, const char* values, int64_t n);
  // Valid until the next begin.
  TableRows rows();

 private:
  template <class Number>
  void tell_any(int rank, const Number* numbers, int64_t n);
  template <class T>
  void add_rows(const int32_t* places, const T* from, int64_t n);
  void choose();

  const RowIndex* own_ = nullptr;
  int rank_ = 0;
  bool chosen_ = false;
  std::vector<std::vector<int32_t>> told_;  // by rank, of each of its rows: the place among own ones, or -1
  std::vector<int32_t> before_, all_;  // by place: how many ranks before this one have touched it, and how many at all
  std::vector<int32_t> sums_at_;       // by place: which sum it is; -1: another rank's
  std::vector<char> begun_;            // by sum
  at::Tensor numbers_, values_;        // [capacity], [capacity, width]
  int64_t count_ = 0;
};

}  // namespace convoy
