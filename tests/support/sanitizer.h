// `sanitized`: true if this program is built with a sanitizer (./check --asan, --ubsan, --tsan), which costs memory and
// time.
//
// Tests that measure memory or time are skipped then. Tests with many rounds run fewer.
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
