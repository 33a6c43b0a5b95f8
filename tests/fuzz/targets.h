// Fuzz targets: one for each parser of bytes from outside. A target reads the bytes as convoy would.
//
// Contract: a parser returns, or throws Error with a kind that the user can act on. Any other exception, a crash, a
// sanitizer's report or Error(internal) is a defect.
// Threads: one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace convoy::fuzz {

struct Target {
  std::string name;  // also the folder of its corpus
  // `folder`: where it may write files.
  std::function<void(const std::string& bytes, const std::string& folder)> read;
};

const std::vector<Target>& targets();

// Reads; throws std::logic_error with the reason if the contract is broken.
void check(const Target& target, const std::string& bytes, const std::string& folder);

}  // namespace convoy::fuzz
