// The warning names exactly the parameters on which no rank's loss depends.

#include <gtest/gtest.h>

#include <future>

#include "core/control/channel.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

// Later comparisons of ranks run on the channel's thread, in order: the second of these ends after both rounds.
void wait_for_rounds(const Context& context) {
  const auto done = std::make_shared<std::promise<void>>();
  SupervisedChannel* const channel = context.channel->supervised();
  const auto second = [channel, done, rank = context.rank, size = context.size](const std::vector<std::string>&) {
    channel->agree_later("after 2", rank, size, "", [done](const std::vector<std::string>&) { done->set_value(); });
  };
  channel->agree_later("after 1", context.rank, context.size, "", second);
  EXPECT_EQ(done->get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

// The warnings of two updates.
std::string warned(const Layout& layout, const Subject& subject) {
  ::testing::internal::CaptureStderr();
  const std::string error = run(layout, subject, [&](const Context& context, Strategy& strategy) {
    for (int64_t step = 0; step < 2; ++step) {
      StepInput input;
      input.batch = share(subject, strategy.sampling());
      input.step = step;
      input.flush = true;
      strategy.step(input);
    }
    wait_for_rounds(context);
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(error, "no error") << to_string(layout);
  const size_t at = text.find("no gradient for ");
  EXPECT_EQ(text.find("no gradient for ", at + 1), std::string::npos) << "warned twice:\n" << text;
  return at == std::string::npos ? "" : text.substr(at, text.find(". The loss", at) - at);
}

TEST(GradientCoverage, NamesParametersWithoutGradients) {
  const std::string unused =
      "no gradient for 2 parameters in the first update: blocks.0.unused.bias, blocks.0.unused.weight";
  for (const Layout& layout : {Layout{"single", "", 1}, Layout{"ddp", "", 2}, Layout{"ddp", ", sync: {every: 2}", 2},
                               Layout{"fsdp", "", 2}, Layout{"fsdp", ", shard: optimizer", 2},
                               Layout{"tensor_parallel", "", 2}, Layout{"hybrid", ", mesh: {data: 2, tensor: 2}", 4}})
    EXPECT_EQ(warned(layout, tied_subject()), unused) << to_string(layout);
}

TEST(GradientCoverage, ReportsNothingIfAllHaveGradients) {
  for (const Layout& layout :
       {Layout{"single", "", 1}, Layout{"ddp", "", 3}, Layout{"pipeline", "", 3},
        Layout{"hybrid", ", mesh: {data: 2, pipeline: 2}", 4}, Layout{"tensor_parallel", "", 2}}) {
    EXPECT_EQ(warned(layout, mlp_subject()), "") << to_string(layout);
    // One parameter is frozen.
    if (layout.strategy != "tensor_parallel") {
      EXPECT_EQ(warned(layout, foreign_subject()), "") << to_string(layout);
    }
  }
}

}  // namespace
}  // namespace convoy::testing
