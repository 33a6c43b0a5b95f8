#include "launch/diagnose/bench_report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/base/error.h"
#include "launch/cli/text_table.h"

namespace convoy {
namespace {

constexpr int64_t largest_size = int64_t{1} << 40;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(Failure::command_line, str("--sizes: '", text, "' is no list of sizes; write 1K-64M, or 4K,450000,48M"));
}

// Bytes in "4K"; K, M and G are powers of 1024.
int64_t size_of(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  const std::string unit = text.substr(digits);
  const std::string units = "KMG";
  const bool known = unit.empty() || (unit.size() == 1 && units.find(unit) != std::string::npos);
  if (digits == 0 || digits > 13 || !known) refuse(text);
  int64_t size = std::atoll(text.c_str());
  if (!unit.empty()) size <<= 10 * (units.find(unit) + 1);
  if (size < 1 || size > largest_size) refuse(text);
  return size;
}

void add_range(const std::string& text, std::vector<int64_t>& sizes) {
  const size_t dash = text.find('-');
  if (dash == std::string::npos) return sizes.push_back(size_of(text));
  const int64_t first = size_of(text.substr(0, dash)), last = size_of(text.substr(dash + 1));
  if (first > last) refuse(text);
  for (int64_t size = first; size < last; size *= 2) sizes.push_back(size);
  sizes.push_back(last);
}

std::string heading(const Json& row) {
  const int ranks = row.at("ranks").get<int>();
  const std::string operation = row.at("operation").get<std::string>();
  char columns[256];
  std::snprintf(columns, sizeof columns, "%14s %14s %8s %12s %10s %10s %8s\n%14s %14s %8s %12s %10s %10s\n", "size",
                "count", "dtype", "time", "algbw", "busbw", "#wrong", "(B)", "(elements)", "", "(us)", "(GB/s)",
                "(GB/s)");
  return str(operation, operation == "all_reduce" || operation == "reduce_scatter" ? " (sum)" : "", ", ", ranks,
             ranks == 1 ? " rank, " : " ranks, ", row.at("backend").get<std::string>(), ", tensors on ",
             row.at("device").get<std::string>(), "; medians\n", columns);
}

}  // namespace

std::vector<int64_t> bench_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    add_range(text.substr(begin, end - begin), sizes);
    begin = end + 1;
  }
  return sizes;
}

std::string bench_line(const Json& row) {
  char line[256];
  std::snprintf(line, sizeof line, "%14lld %14lld %8s %12.2f %10.3f %10.3f %8lld\n",
                static_cast<long long>(row.at("bytes").get<int64_t>()),
                static_cast<long long>(row.at("count").get<int64_t>()), row.at("dtype").get<std::string>().c_str(),
                row.at("seconds").get<double>() * 1e6, row.at("algorithm_bandwidth").get<double>() / 1e9,
                row.at("bus_bandwidth").get<double>() / 1e9, static_cast<long long>(row.at("wrong").get<int64_t>()));
  return (row.at("index").get<int>() == 0 ? heading(row) : "") + line;
}

int64_t wrong_elements(const Json& rows) {
  int64_t wrong = 0;
  for (const Json& row : rows) wrong += row.at("wrong").get<int64_t>();
  return wrong;
}

std::string bench_result(const Json& rows) {
  const int64_t wrong = wrong_elements(rows);
  double sum = 0;
  for (const Json& row : rows) sum += row.at("bus_bandwidth").get<double>();
  const double mean = rows.empty() ? 0 : sum / static_cast<double>(rows.size()) / 1e9;
  return str("mean bus bandwidth ", formatted("%.3f", mean), " GB/s; ",
             wrong == 0 ? "every element was right" : str(wrong, " elements were wrong"), "\n");
}

}  // namespace convoy
