#include <gtest/gtest.h>

#include "core/config/reader.h"
#include "launch/cli/commands.h"
#include "launch/diagnose/reports.h"
#include "launch/prepare/describe.h"

namespace convoy {
namespace {

TEST(BenchSizes, RangesDoubleAndHaveBothEnds) {
  EXPECT_EQ(bench_sizes("1K-4K"), (std::vector<int64_t>{1024, 2048, 4096}));
  EXPECT_EQ(bench_sizes("1K-5000"), (std::vector<int64_t>{1024, 2048, 4096, 5000}));
  EXPECT_EQ(bench_sizes("4K,450000,48M"), (std::vector<int64_t>{4096, 450000, 48 << 20}));
  EXPECT_EQ(bench_sizes("7-7"), (std::vector<int64_t>{7}));
  EXPECT_EQ(bench_sizes("1K-64M").size(), 17u);
}

TEST(BenchSizes, RefusesInvalidSizes) {
  for (const char* text :
       {"", "K", "4X", "4KB", "-4K", "4K-", "8K-4K", "0", "4K,,8K", "99999999999999", "1.5M", "2048G"}) {
    try {
      bench_sizes(text);
      FAIL() << "'" << text << "' was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::command_line) << text;
      EXPECT_NE(std::string(error.what()).find("1K-64M"), std::string::npos) << error.what();
    }
  }
}

Json row(int index, int64_t wrong) {
  return {{"operation", "all_reduce"},
          {"dtype", "fp32"},
          {"backend", "mpi"},
          {"device", "cpu"},
          {"ranks", 2},
          {"index", index},
          {"bytes", 4096},
          {"count", 1024},
          {"seconds", 2e-6},
          {"algorithm_bandwidth", 2.048e9},
          {"bus_bandwidth", 1e9},
          {"wrong", wrong}};
}

TEST(BenchReport, HeadingOnceThenRows) {
  const std::string first = bench_line(row(0, 0)), second = bench_line(row(1, 3));
  EXPECT_NE(first.find("all_reduce (sum), 2 ranks, mpi, tensors on cpu"), std::string::npos) << first;
  EXPECT_NE(first.find("#wrong"), std::string::npos);
  EXPECT_EQ(second, "          4096           1024     fp32         2.00      2.048      1.000        3\n");
}

TEST(BenchReport, ResultCountsWrongElements) {
  EXPECT_NE(bench_result({row(0, 0), row(1, 0)}).find("mean bus bandwidth 1.000 GB/s; every element was right"),
            std::string::npos);
  EXPECT_NE(bench_result({row(0, 2), row(1, 3)}).find("5 elements were wrong"), std::string::npos);
  EXPECT_EQ(wrong_elements({row(0, 2), row(1, 3)}), 5);
}

// A benchmark needs no file, and uses none of the training options of a file.
TEST(BenchConfiguration, NeedsNoFile) {
  std::vector<std::string> overrides{"backend=gloo", "launch.ranks=3"};
  for (const std::string& override : bench_overrides("send")) overrides.push_back(override);
  const RunConfig config = read_run_tree(read_yaml_file("", overrides), all_catalogues());
  EXPECT_EQ(config.name, "bench-send");
  EXPECT_EQ(config.backend, "gloo");
  EXPECT_EQ(config.launch.ranks, 3);
}

}  // namespace
}  // namespace convoy
