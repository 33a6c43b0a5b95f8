// Joining, nearest words, sizes and times for messages.
#include "core/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>

namespace convoy {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours; upper and lower
// case alike.
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
  // Three digits say enough, and whole small numbers need no ".0".
  const bool whole = std::fabs(value - std::round(value)) < 1e-9 && std::fabs(value) < 1e6;
  const int digits = whole ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  std::snprintf(text.data(), text.size(), "%.*f %s", digits, value, unit);
  return text.data();
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

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t longest = 64;  // nobody mistypes a word of that length, and the cost is quadratic
  if (word.empty() || word.size() > longest) return "";
  const size_t near_enough = std::clamp<size_t>((word.size() + 1) / 3, 1, 3);
  size_t best_distance = near_enough + 1;
  std::string best;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > longest) continue;
    const size_t distance = edit_distance(word, candidate);
    // Words that share nothing are not near, however short they are.
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

}  // namespace convoy
