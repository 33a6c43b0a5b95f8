#include "core/base/text.h"

#include <gmock/gmock.h>

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Units, ReadBackTheirText) {
  EXPECT_THAT(hardware_threads_from_text("7"), ElementsAre(7));
  EXPECT_THAT(hardware_threads_from_text("4-6+0"), ElementsAre(4, 5, 6, 0));
  for (const char* text : {"", "-", "1-", "-1", "3-1", "1,2", "1++2", "a", "1-2-3", "0x1", "1234567"})
    EXPECT_THAT(hardware_threads_from_text(text), IsEmpty()) << text;
}

TEST(Units, PrintShortForms) {
  EXPECT_EQ(hardware_threads_text({}), "");
  EXPECT_EQ(hardware_threads_text({5}), "5");
  EXPECT_EQ(hardware_threads_text({9, 0, 2, 1, 8, 1}), "0-2+8-9");
  EXPECT_THAT(hardware_threads_from_text(hardware_threads_text({0, 1, 4})), ElementsAre(0, 1, 4));
}

TEST(Units, PrintRanksAsRanges) {
  EXPECT_EQ(ranks_text({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(ranks_text({4}), "4");
  EXPECT_EQ(ranks_text({0, 8}), "0, 8");
  EXPECT_EQ(ranks_text({0, 1, 2, 16, 17, 18, 32, 33, 34, 48, 49}), "0-2, 16-18, 32-34, … (11)");
}

}  // namespace
}  // namespace convoy
