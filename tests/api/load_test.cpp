// convoy::load refuses a missing device or run before it reads anything. tests/multi/use/use.py loads trained runs and
// serves them.
#include "convoy/load.h"

#include <gmock/gmock.h>

#include "core/base/error.h"
#include "tests/support/errors.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Load, RefusesADeviceThatIsNotThereInOneLine) {
  for (const c10::Device device : {c10::Device(c10::kCUDA, 99), c10::Device(c10::kMPS)}) {
    const std::string message = message_of([&] { load("nowhere", {device}); }, Failure::device_missing);
    EXPECT_THAT(message, HasSubstr("convoy::load: device " + device.str()));
    EXPECT_THAT(message, Not(HasSubstr("\n"))) << "no trace of LibTorch";
  }
}

TEST(Load, RefusesAPathThatIsNoRun) {
  EXPECT_THAT(message_of([] { load("nowhere@best"); }, Failure::command_line),
              HasSubstr("convoy::load: nowhere does not exist"));
}

}  // namespace
}  // namespace convoy
