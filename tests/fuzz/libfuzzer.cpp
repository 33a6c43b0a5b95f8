// One fuzz target as a program of libFuzzer; CONVOY_FUZZ_TARGET is its name. The CMake preset `fuzz` builds it.
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "core/base/log.h"
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = [] {
    std::string made = (std::filesystem::temp_directory_path() / "convoy-fuzz-XXXXXX").string();
    if (mkdtemp(made.data()) == nullptr) std::abort();
    convoy::log::set_level(convoy::log::level_named("error"));
    return made;
  }();
  for (const convoy::fuzz::Target& target : convoy::fuzz::targets()) {
    if (target.name != CONVOY_FUZZ_TARGET) continue;
    try {
      convoy::fuzz::check(target, {reinterpret_cast<const char*>(data), size}, folder);
    } catch (const std::exception& error) {
      std::cerr << error.what() << '\n';
      std::abort();
    }
  }
  return 0;
}
