// Readable names for addresses.
#include "launch/diagnose/stall_report.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <stdlib.h>

#include <cstdio>
#include <fstream>

#include "core/base/text.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

__attribute__((noinline)) void private_function() { asm volatile(""); }

std::string place_of(const void* address) {
  Dl_info info{};
  EXPECT_NE(dladdr(address, &info), 0);
  char path[4096];
  EXPECT_NE(realpath(info.dli_fname, path), nullptr);
  char offset[32];
  snprintf(offset, sizeof offset, "+0x%zx",
           reinterpret_cast<size_t>(address) - reinterpret_cast<size_t>(info.dli_fbase));
  return std::string(path) + offset;
}

TEST(Stacks, NamePrivateFunctions) {
  const std::string place = place_of(reinterpret_cast<const void*>(&private_function));
  const std::vector<std::string> lines = readable_stack({place}, 10);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], StartsWith("private_function (launch_tests"));
}

TEST(Stacks, NameTheFileOfAnUnknownAddress) {
  EXPECT_THAT(readable_stack({"/no/such/libx.so+0x1234", "+0x10"}, 10), ElementsAre("? (libx.so)", "?"));
  EXPECT_THAT(readable_stack({"nonsense"}, 10), ElementsAre());
}

TEST(Stacks, FoldFramesOfLibTorch) {
  const std::string torch = "/no/such/libtorch_cpu.so+0x10", model = "/no/such/libmodel.so+0x10";
  EXPECT_THAT(readable_stack({torch, torch, torch, model, torch, model}, 10),
              ElementsAre("? (libtorch_cpu.so)", "… 2 more in LibTorch", "? (libmodel.so)", "? (libtorch_cpu.so)",
                          "? (libmodel.so)"));
  EXPECT_EQ(readable_stack({model, model, model, model}, 2).size(), 2u);
}

TEST(Stacks, MergeALambdaWithItsWrapper) {
  const std::string place = place_of(reinterpret_cast<const void*>(&private_function));
  const size_t plus = place.rfind("+0x");
  char next[32];  // a return address: the call is before it
  snprintf(next, sizeof next, "+0x%llx", strtoull(place.c_str() + plus + 3, nullptr, 16) + 1);
  EXPECT_EQ(readable_stack({place, place.substr(0, plus) + next}, 10).size(), 1u);
}

TEST(Stacks, ShortenNames) {
  EXPECT_EQ(plain_function("_ZN6convoy12_GLOBAL__N_111FaultyBlock7forwardERKSt6vectorIN2at6TensorESaIS3_EE"),
            "FaultyBlock::forward");
  EXPECT_EQ(plain_function("_ZN6convoy4joinERKSt6vectorINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESaIS6_"
                           "EESt17basic_string_viewIcS4_E"),
            "join");
  EXPECT_EQ(plain_function("main"), "main");
  EXPECT_EQ(plain_function(""), "");
}

TEST(Stacks, PrintReadableCrashLines) {
  EXPECT_EQ(readable_line("/lib/libconvoy_faulty.so(_ZN6convoy12_GLOBAL__N_111FaultyBlock4failEv+0x1c)[0x7f0123]"),
            "  FaultyBlock::fail (libconvoy_faulty.so+0x1c)");
  const std::string place = place_of(reinterpret_cast<const void*>(&private_function));
  const size_t plus = place.rfind("+0x");
  const uint64_t offset = strtoull(place.c_str() + plus + 3, nullptr, 16) + 1;
  char text[32];
  snprintf(text, sizeof text, "(+0x%zx)[0x1]", static_cast<size_t>(offset));
  EXPECT_THAT(readable_line(place.substr(0, plus) + text), StartsWith("  private_function (launch_tests+0x"));
  for (const char* other : {"", "info: (a) [b]", "/x.so(+0x10)[0x7f]", "step 3 (+0x1)", "()[0x]", "(+0x1)[0x2]"})
    EXPECT_EQ(readable_line(other), other);
}

TEST(ElfSymbols, IgnoreOtherFiles) {
  const std::string path = ::testing::TempDir() + "convoy-no-elf";
  std::ofstream(path) << "\x7f"
                         "ELF";
  EXPECT_THAT(elf_symbols(path, {1, 2}), ElementsAre("", ""));
  EXPECT_THAT(elf_symbols("/proc/self/status", {1}), ElementsAre(""));
  // A header with tables beyond the end of the file.
  std::ifstream program("/proc/self/exe", std::ios::binary);
  std::string head(64, '\0');
  program.read(head.data(), 64);
  std::ofstream(path, std::ios::binary) << head;
  EXPECT_THAT(elf_symbols(path, {1}), ElementsAre(""));
  remove(path.c_str());
}

}  // namespace
}  // namespace convoy
