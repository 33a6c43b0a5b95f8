// Joining, nearest words, sizes and times for messages.

#include "core/base/text.h"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/base/error.h"

namespace convoy {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours, case-insensitive.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1])) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::string with_digits(double value, const char* unit) {
  std::array<char, 64> text{};
  // Three digits are enough; small integers need no ".0".
  const bool whole = std::fabs(value - std::round(value)) < 1e-9 && std::fabs(value) < 1e6;
  const int digits = whole ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  std::snprintf(text.data(), text.size(), "%.*f %s", digits, value, unit);
  return text.data();
}

// Reads digits only, such as "12"; -1 for any other text.
int number_of(const std::string& text) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::atoi(text.c_str());
}

}  // namespace

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string all;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) all += separator;
    all += parts[i];
  }
  return all;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts{""};
  for (char c : text) {
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::string hex_text(const unsigned char* bytes, size_t count) {
  std::string hex;
  for (size_t i = 0; i < count; ++i) {
    hex += "0123456789abcdef"[bytes[i] >> 4];
    hex += "0123456789abcdef"[bytes[i] & 15];
  }
  return hex;
}

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (getentropy(bytes.data(), bytes.size()) != 0) throw Error(Failure::io, "getentropy: ", std::strerror(errno));
  return hex_text(bytes.data(), bytes.size());
}

std::string counted(int64_t count, const std::string& noun, const std::string& several) {
  return str(count, " ", count == 1 ? noun : several.empty() ? noun + "s" : several);
}

bool ends_in(std::string_view text, std::string_view end) {
  return text.size() > end.size() && text.substr(text.size() - end.size()) == end;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t longest = 64;  // the cost is quadratic
  if (word.empty() || word.size() > longest) return "";
  const size_t near_enough = std::clamp<size_t>((word.size() + 1) / 3, 1, 3);
  size_t best_distance = near_enough + 1;
  std::string best;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > longest) continue;
    const size_t distance = edit_distance(word, candidate);
    // Words without a common part are not near, even if they are short.
    if (distance < best_distance && distance < std::max(word.size(), candidate.size())) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string human_bytes(double bytes) {
  const std::array<const char*, 6> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::fabs(bytes) >= 1024 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  return with_digits(bytes, units[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 0) return "-" + human_seconds(-seconds);
  if (seconds < 1e-3) return with_digits(seconds * 1e6, "µs");
  if (seconds < 1) return with_digits(seconds * 1e3, "ms");
  if (seconds < 120) return with_digits(seconds, "s");
  const auto minutes = static_cast<long long>(seconds / 60);
  if (minutes < 120) return str(minutes, " min ", static_cast<long long>(seconds) % 60, " s");
  return str(minutes / 60, " h ", minutes % 60, " min");
}

std::vector<int> hardware_threads_from_text(const std::string& text) {
  std::vector<int> numbers;
  for (const std::string& part : split(text, '+')) {
    const std::vector<std::string> ends = split(part, '-');
    const int first = number_of(ends.front());
    const int last = number_of(ends.back());
    if (ends.size() > 2 || first < 0 || last < first) return {};
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

std::string hardware_threads_text(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::vector<std::string> ranges;
  for (size_t first = 0; first < numbers.size();) {
    size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    ranges.push_back(first == last ? std::to_string(numbers[first]) : str(numbers[first], "-", numbers[last]));
    first = last + 1;
  }
  return join(ranges, "+");
}

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr size_t most = 3;  // pieces
  std::vector<std::string> pieces;
  for (size_t first = 0; first < ranks.size();) {
    if (pieces.size() == most) {
      pieces.push_back(str("… (", ranks.size(), ")"));
      break;
    }
    size_t last = first + 1;
    const int step = last < ranks.size() ? ranks[last] - ranks[first] : 1;
    while (last + 1 < ranks.size() && ranks[last + 1] - ranks[last] == step) ++last;
    const bool run = last < ranks.size() && (step == 1 || last - first >= 2);
    pieces.push_back(run ? str(ranks[first], "-", ranks[last], step == 1 ? "" : str(" by ", step)) : str(ranks[first]));
    first = run ? last + 1 : first + 1;
  }
  return join(pieces, ", ");
}

std::string named_ranks(const std::vector<int>& ranks) {
  return str(ranks.size() == 1 ? "rank " : "ranks ", ranks_text(ranks));
}

// Well-formed UTF-8 as in Unicode 15, table 3-7.
size_t utf8_character(std::string_view text) {
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

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t length = utf8_character(text);
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
    safe += "\\x" + hex_text(&byte, 1);
  };
  while (!text.empty()) {
    const size_t length = utf8_character(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    const bool ascii_control = (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7f;
    // U+0080 to U+009F: 8-bit terminals read U+009B as the start of a command.
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

std::string shortened(const std::string& text) {
  const size_t kept = utf8_prefix(text.data(), text.size(), 160);
  return kept < text.size() ? text.substr(0, kept) + "…" : text;
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_=./:,+%@").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string printable(const std::string& text) {
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
      continue;
    }
    std::array<char, 8> escaped{};
    std::snprintf(escaped.data(), escaped.size(), "\\x%02x", byte);
    out += escaped.data();
  }
  return out;
}

std::string shown(const std::string& text) {
  constexpr size_t longest = 60;
  if (text.size() <= longest) return "'" + printable(text) + "'";
  // Do not split a UTF-8 sequence.
  size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return "'" + printable(text.substr(0, end)) + "…'";
}

}  // namespace convoy
