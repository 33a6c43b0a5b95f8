// Text from elsewhere (what() of a library, a name out of a damaged file) made fit for JSON. Without LibTorch.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace convoy {

// Bytes of `text` to keep where at most `most` fit, so that no character is cut. Async-signal-safe.
inline size_t utf8_cut(const char* text, size_t length, size_t most) noexcept {
  if (length <= most) return length;
  size_t keep = most;
  while (keep > 0 && (static_cast<unsigned char>(text[keep]) & 0xc0) == 0x80) --keep;
  return keep;
}

// Every byte that belongs to no UTF-8 character becomes '?'.
std::string valid_utf8(std::string_view text);

// Text from elsewhere, fit for a terminal: a control character, newline and tab aside, and a byte of no UTF-8 character become
// "\\x1b" and the like. Other characters stay.
std::string terminal_safe(std::string_view text);

}  // namespace convoy
