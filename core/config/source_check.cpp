// What can be refused before YAML is parsed: bytes that are no text, and tabs that look like spaces.
#include <cstdint>
#include <string_view>

#include "core/config/reader.h"

namespace convoy {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `text` (Unicode 15, table 3-7), or 0.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, beyond U+10FFFF.
  const unsigned char second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
  if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
  return length;
}

void check_encoding(const std::string& text, const Mark& place) {
  const auto refuse = [&](const char* reason) { throw ConfigError(place, "", reason); };
  const std::string_view view = text;
  const auto starts_with = [&](std::string_view mark) { return view.substr(0, mark.size()) == mark; };
  if (starts_with("\xef\xbb\xbf")) refuse("starts with a byte order mark; save it as UTF-8 without one");
  if (starts_with("\xff\xfe") || starts_with("\xfe\xff")) refuse("is UTF-16; save it as UTF-8");
  // UTF-16 without a mark: every other byte of its first characters is NUL.
  if (text.size() >= 4 && ((text[0] == 0 && text[2] == 0) || (text[1] == 0 && text[3] == 0))) {
    refuse("is UTF-16; save it as UTF-8");
  }
}

}  // namespace

void check_source(const std::string& text, const Mark& place, bool fixed) {
  check_encoding(text, place);
  int line = 1;
  int column = 1;
  const auto refuse = [&](const char* reason) {
    throw ConfigError(fixed ? place : Mark{place.file, line, column}, "", reason);
  };
  bool indenting = true;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') {
      ++line;
      column = 1;
      indenting = true;
      ++i;
      continue;
    }
    if (byte == 0) refuse("holds a NUL byte; a configuration is plain text");
    if (byte == '\t' && indenting) refuse("indents with a tab; use spaces");
    const bool return_before_newline = byte == '\r' && i + 1 < text.size() && text[i + 1] == '\n';
    if ((byte < 0x20 && byte != '\t' && !return_before_newline) || byte == 0x7f) {
      refuse("holds a control character; write it as an escape in double quotes");
    }
    if (byte != ' ' && byte != '\r') indenting = false;
    const size_t length = utf8_length(std::string_view(text).substr(i));
    if (length == 0) refuse("is not valid UTF-8; save it as UTF-8");
    i += length;
    ++column;
  }
}

}  // namespace convoy
