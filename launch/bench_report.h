// What `convoy bench` prints, from the rows that rank 0 tells. Pure functions, without LibTorch.
//
// A row: {operation, dtype, backend, ranks, index, bytes, count, seconds, algorithm_bandwidth, bus_bandwidth (bytes a
// second), wrong (elements, over all ranks), …}. Sizes and bandwidths are those of nccl-tests, so that tables compare:
// bytes are the whole output of all_gather and the whole input of reduce_scatter; the bus bandwidth is the algorithm's times
// 2(n-1)/n for all_reduce, (n-1)/n for these two, and 1 for broadcast and send.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

inline constexpr char bench_topic[] = "bench";  // Channel::post: a row, from rank 0

const std::vector<std::string>& bench_operations();
const std::vector<std::string>& bench_dtypes();

// "4K", "1K-64M" (every power of two between, and both ends), "4K,450000,48M"; K, M, G are powers of 1024. Throws
// Error(command_line).
std::vector<int64_t> bench_sizes(const std::string& text);

// One line; above the first row the heading.
std::string bench_line(const Json& row);
// Below the last one: whether all was right.
std::string bench_verdict(const Json& rows);
int64_t wrong_elements(const Json& rows);

}  // namespace convoy
