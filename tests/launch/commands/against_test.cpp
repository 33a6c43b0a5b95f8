// Report of `convoy verify --against` about the first tensor that differs.
#include <gtest/gtest.h>

#include "launch/cli/commands.h"

namespace convoy {
namespace {

Json tensor(const std::string& what, const std::string& name, const Json& relative, const std::string& fault = "") {
  return {{"what", what}, {"name", name},         {"theirs", "h." + name},
          {"shape", {2}}, {"relative", relative}, {"fault", fault}};
}

AgainstResult result_of(const std::vector<Json>& tensors, const Json& skipped = Json::array()) {
  return against_result({{"tensors", tensors}, {"skipped", skipped}}, 1e-5);
}

bool contains(const AgainstResult& result, const std::string& part) {
  return result.text.find(part) != std::string::npos;
}

TEST(VerifyAgainst, AgreesWithTheLargestDifference) {
  const AgainstResult result = result_of({tensor("output", "a", 1e-7), tensor("loss", "mean", 3e-6)}, {"b"});
  EXPECT_TRUE(result.agree);
  EXPECT_TRUE(contains(result, "agree: 2 tensors")) << result.text;
  EXPECT_TRUE(contains(result, "3e-06 (the loss)")) << result.text;
  EXPECT_TRUE(contains(result, "not compared, since Python called no such module: b")) << result.text;
}

TEST(VerifyAgainst, NamesTheFirstTensorAndWhereToLook) {
  const std::vector<Json> layers{tensor("output", "qkv", 1e-7), tensor("input", "projection", 0.2),
                                 tensor("output", "projection", 0.9)};
  const AgainstResult input = result_of(layers);
  EXPECT_FALSE(input.agree);
  EXPECT_TRUE(contains(input, "first the input of projection (h.projection), relative difference 0.2")) << input.text;
  EXPECT_TRUE(contains(input, "output of qkv (h.qkv) still agrees")) << input.text;
  const AgainstResult output = result_of({tensor("input", "norm", 0), tensor("output", "norm", nullptr)});
  EXPECT_TRUE(contains(output, "first the output of norm")) << output.text;
  EXPECT_TRUE(contains(output, "its input agrees")) << output.text;
  EXPECT_TRUE(contains(result_of({tensor("output", "a", nullptr, "has shape [2], the reference's has [3]")}),
                       "has shape [2], the reference's has [3]"));
  EXPECT_TRUE(contains(result_of({tensor("output", "a", 0), tensor("loss", "mean", 1)}), "all layers agree"));
  EXPECT_TRUE(contains(result_of({tensor("loss", "mean", 0), tensor("gradient", "a", 1)}), "the forward pass agrees"));
  EXPECT_FALSE(result_of({}).agree);
}

}  // namespace
}  // namespace convoy
