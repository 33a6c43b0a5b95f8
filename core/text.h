// Small text helpers without any formatting library (LibTorch and spdlog ship clashing copies of fmt).
#pragma once
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

// Concatenates anything that has operator<<.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

std::string join(const std::vector<std::string>& parts, std::string_view separator);

// The candidate with the smallest edit distance to `word`, or "" when none is near enough to be a slip of the pen.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "12.5 MiB", "1.2 s": for messages only.
std::string human_bytes(double bytes);
std::string human_seconds(double seconds);

}  // namespace convoy
