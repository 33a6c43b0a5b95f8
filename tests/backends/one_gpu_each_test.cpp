#include "backends/cuda/module/registry.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace convoy {
namespace {

TEST(OneGpuEach, NamesRanksThatShareAGpu) {
  EXPECT_NO_THROW(check_one_gpu_each({"a GPU-1", "a GPU-2", "b GPU-1"}));
  try {
    check_one_gpu_each({"a GPU-1", "a GPU-2", "a GPU-1"});
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_NE(what.find("ranks 0, 2 all have a GPU-1"), std::string::npos) << what;
    EXPECT_NE(what.find("backend=gloo"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace convoy
