#include "core/config/without_effect.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "core/config/reader.h"

namespace convoy {
namespace {

bool typed(const SourceLocation& mark) { return mark.file.rfind("--set", 0) == 0; }

// Returns the first written key below a section, or the key itself; "" if nothing is written.
std::string written_key(const Options& section, const std::string& key) {
  const auto& marks = section.marks();
  const auto value = section.json().find(key);
  const bool parts = value != section.json().end() && value->is_object();
  const std::string prefix = key + ".";
  auto first = marks.end();
  for (auto at = marks.lower_bound(prefix);
       parts && at != marks.end() && at->first.compare(0, prefix.size(), prefix) == 0; ++at)
    if (first == marks.end() ||
        std::tie(at->second.line, at->second.column) < std::tie(first->second.line, first->second.column))
      first = at;
  if (first != marks.end()) return first->first;
  return marks.count(key) != 0 ? key : "";
}

// True for a resolved file: it has every key, and its run folder must be runnable again.
bool every_key_written(const Options& section) {
  const Json& values = section.json();
  for (auto value = values.begin(); value != values.end(); ++value)
    if (!value->is_null() && section.marks().count(value.key()) == 0) return false;
  return true;
}

// --- Text checks before YAML is parsed: invalid bytes, tabs as indentation ---

void check_encoding(const std::string& text, const SourceLocation& place) {
  const auto refuse = [&](const char* reason) { throw ConfigError(place, "", reason); };
  const std::string_view view = text;
  const auto starts_with = [&](std::string_view mark) { return view.substr(0, mark.size()) == mark; };
  if (starts_with("\xef\xbb\xbf")) refuse("starts with a byte order mark; save it as UTF-8 without one");
  if (starts_with("\xff\xfe") || starts_with("\xfe\xff")) refuse("is UTF-16; save it as UTF-8");
  // UTF-16 without a byte order mark: every other byte of the first characters is NUL.
  if (text.size() >= 4 && ((text[0] == 0 && text[2] == 0) || (text[1] == 0 && text[3] == 0))) {
    refuse("is UTF-16; save it as UTF-8");
  }
}

}  // namespace

void refuse_without_effect(const Options& section, const std::string& key, const std::string& reason,
                           const std::vector<SourceLocation>& because, std::vector<std::string>* ignored) {
  const std::string written = written_key(section, key);
  if (written.empty() || every_key_written(section)) return;
  const SourceLocation mark = section.mark(written);
  if (typed(mark) || std::none_of(because.begin(), because.end(), typed)) section.fail(written, reason);
  if (ignored)
    ignored->push_back(str(to_string(mark), ": ", section.path().empty() ? "" : section.path() + ".", written,
                           ": ignored, because it has no effect with the value from --set"));
}

void check_source(const std::string& text, const SourceLocation& place, bool fixed) {
  check_encoding(text, place);
  int line = 1;
  int column = 1;
  const auto refuse = [&](const char* reason) {
    throw ConfigError(fixed ? place : SourceLocation{place.file, line, column}, "", reason);
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
    const size_t length = utf8_character(std::string_view(text).substr(i));
    if (length == 0) refuse("is not valid UTF-8; save it as UTF-8");
    i += length;
    ++column;
  }
}

}  // namespace convoy
