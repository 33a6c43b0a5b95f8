// Is this program built with a sanitizer that takes memory and time of its own (./check --asan, --ubsan, --tsan)?
//
// Tests of sizes of memory, and of how little time something costs, skip themselves then. Tests with many rounds make
// fewer.
#pragma once

namespace convoy {

#ifdef CONVOY_SANITIZED
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
constexpr const char* measures_the_sanitizer = "would measure the sanitizer";

// Fewer rounds of a loop under a sanitizer.
constexpr int rounds_of(int usual) { return sanitized ? (usual + 9) / 10 : usual; }

}  // namespace convoy
