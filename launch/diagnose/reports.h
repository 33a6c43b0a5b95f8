// Output of `convoy bench` and `convoy verify`. Pure functions, without LibTorch.
//
// --- `convoy bench`, from the rows that rank 0 posts ---
//
// A row: {operation, dtype, backend, ranks, index, bytes, count, seconds, algorithm_bandwidth, bus_bandwidth (bytes a
// second), wrong (elements, over all ranks), …}. Sizes and bandwidths follow nccl-tests, so that you can compare
// tables. Bytes are the whole output of all_gather and the whole input of reduce_scatter. The bus bandwidth is the
// algorithm bandwidth times 2(n-1)/n for all_reduce, (n-1)/n for all_gather and reduce_scatter, and 1 for broadcast and
// send.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/difference.h"
#include "core/base/json.h"

namespace convoy {

inline constexpr char bench_topic[] = "bench";  // topic of Channel::post: a row, from rank 0

inline const std::vector<std::string> bench_operations{"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                                       "send"};
inline const std::vector<std::string> bench_dtypes{"fp32", "fp64", "fp16", "bf16", "int32", "int64", "uint8"};

// Parses "4K", "1K-64M" (both ends and the doubled sizes between), "4K,450000,48M"; K, M, G are powers of 1024. Throws
// Error(command_line).
std::vector<int64_t> bench_sizes(const std::string& text);

// One line of the table; the first row also gets the heading.
std::string bench_line(const Json& row);
// Last line: mean bandwidth, and the number of wrong elements.
std::string bench_result(const Json& rows);
int64_t wrong_elements(const Json& rows);

// --- `convoy verify`: the table of differences, and whether the two runs agree ---

struct VerifyResult {
  bool agree = false;
  std::string table;  // a row per tensor, a column per kind, the first step above the tolerance
  std::string text;   // one line or more: the result
};

// `steps` in order; the first has the initial values (step 0). The runs agree if the initial values are equal bit for
// bit and every parameter, gradient, moment and counter stays within the tolerance. Buffers are shown but not compared
// after step 0: running statistics of batch norm depend on the layout's shares.
VerifyResult verify_result(std::vector<StepDifferences> steps, double tolerance, const std::string& reference);

}  // namespace convoy
