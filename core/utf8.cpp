// Well-formed sequences as in Unicode 15, table 3-7.
#include "core/utf8.h"

#include <algorithm>

namespace convoy {
namespace {

// Bytes of the character at the start of `text`; 0 when there is none.
size_t character(std::string_view text) {
  const auto byte = [text](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  const unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t at = 2; at < length; ++at)
    if ((byte(at) & 0xc0) != 0x80) return 0;
  return length;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t length = character(text);
    if (length == 0) {
      valid += '?';
    } else {
      valid.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return valid;
}

std::string terminal_safe(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  const auto escape = [&safe](char c) {
    const auto byte = static_cast<unsigned char>(c);
    safe += "\\x";
    safe += "0123456789abcdef"[byte >> 4];
    safe += "0123456789abcdef"[byte & 15];
  };
  while (!text.empty()) {
    const size_t length = character(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    const bool ascii_control = (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7f;
    // U+0080 to U+009F: 8-bit terminals read U+009B as the beginning of a command.
    const bool other_control = length == 2 && lead == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    const size_t bytes = std::max<size_t>(length, 1);
    if (length == 0 || ascii_control || other_control)
      for (size_t i = 0; i < bytes; ++i) escape(text[i]);
    else
      safe.append(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return safe;
}

}  // namespace convoy
