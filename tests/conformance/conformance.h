// Common code of the conformance cases. Every case runs on local and gloo with 1 to 4 ranks as threads, and on mpi with
// the ranks of the mpirun that started this program.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "backends/registry.h"
#include "core/base/error.h"
#include "tests/support/torch/ranks.h"

namespace convoy {

inline const std::string sockets = "gloo over sockets", messages = "mpi over messages", hosts = "gloo over hosts";

class Conformance : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    if (group().size == 0) GTEST_SKIP() << "not under mpirun";
  }
  static RankGroup group() {
    auto [backend, size] = GetParam();
    // Ranks of one host would use shared memory, so gloo's sockets and mpi's messages would not be tested.
    allow_shared_memory(backend != sockets && backend != messages);
    RankGroup ranks{backend == sockets || backend == hosts ? "gloo"
                    : backend == messages                  ? "mpi"
                                                           : backend,
                    size == 0 ? mpi_ranks() : size};
    if (backend == hosts) ranks.per_host = 2;
    return ranks;
  }
  static void on_ranks(const std::function<void(Communicator&)>& body) { run_ranks(group(), body); }
};

// Returns the failure of `action`; fails the test if there was none.
inline CommError failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const CommError& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return CommError(Failure::internal, -1, "");
}

inline std::string conformance_name(const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  auto [backend, size] = info.param;
  if (backend == sockets) return "gloo_sockets" + std::to_string(size);
  if (backend == messages) return "mpi_messages";
  if (backend == hosts) return "gloo_hosts" + std::to_string(size);
  return size == 0 ? backend : backend + std::to_string(size);
}

// NOLINTNEXTLINE: gtest's macros cannot be functions.
#define CONVOY_CONFORMANCE(Suite)                                                                                     \
  INSTANTIATE_TEST_SUITE_P(Local, Suite, ::testing::Combine(::testing::Values("local"), ::testing::Range(1, 5)),      \
                           conformance_name);                                                                         \
  INSTANTIATE_TEST_SUITE_P(Gloo, Suite, ::testing::Combine(::testing::Values("gloo"), ::testing::Range(1, 5)),        \
                           conformance_name);                                                                         \
  INSTANTIATE_TEST_SUITE_P(Sockets, Suite, ::testing::Combine(::testing::Values(sockets), ::testing::Values(2, 3)),   \
                           conformance_name);                                                                         \
  INSTANTIATE_TEST_SUITE_P(Hosts, Suite, ::testing::Combine(::testing::Values(hosts), ::testing::Values(3, 4)),       \
                           conformance_name);                                                                         \
  INSTANTIATE_TEST_SUITE_P(Mpi, Suite,                                                                                \
                           ::testing::Combine(::testing::Values(std::string("mpi"), messages), ::testing::Values(0)), \
                           conformance_name)

inline const std::vector<at::ScalarType>& all_dtypes() {
  static const std::vector<at::ScalarType> all = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble,
                                                  at::kInt,  at::kLong,     at::kByte,  at::kBool};
  return all;
}

// Returns rank r's numbers: small ones, so that every dtype represents any sum or product of four of them exactly.
inline at::Tensor numbers(int rank, at::IntArrayRef shape, at::ScalarType dtype) {
  int64_t count = 1;
  for (int64_t n : shape) count *= n;
  auto counting = at::arange(count, at::kLong);
  return ((counting * (rank + 1) + rank) % 3).to(dtype).view(shape);
}

// Returns the expected reduction of the ranks' numbers.
inline at::Tensor reduced(int size, at::IntArrayRef shape, at::ScalarType dtype, ReduceOp op) {
  at::Tensor all = numbers(0, shape, dtype).to(at::kLong);
  for (int r = 1; r < size; ++r) {
    at::Tensor next = numbers(r, shape, dtype).to(at::kLong);
    if (op == ReduceOp::sum) all = all + next;
    if (op == ReduceOp::product) all = all * next;
    if (op == ReduceOp::min) all = at::minimum(all, next);
    if (op == ReduceOp::max) all = at::maximum(all, next);
  }
  return all.to(dtype);
}

inline ::testing::AssertionResult same(const at::Tensor& got, const at::Tensor& wanted) {
  if (got.sizes() == wanted.sizes() && got.scalar_type() == wanted.scalar_type() && at::equal(got, wanted)) {
    return ::testing::AssertionSuccess();
  }
  std::ostringstream text;
  text << "got " << got.sizes() << " " << got.scalar_type();
  if (got.numel() <= 32) text << "\n" << got << "\nwanted\n" << wanted;
  return ::testing::AssertionFailure() << text.str();
}

}  // namespace convoy
