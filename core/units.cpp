#include "core/units.h"

#include <algorithm>
#include <cstdlib>

#include "core/text.h"

namespace convoy {
namespace {

// "12", nothing else; -1 for any other text.
int number_of(const std::string& text) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::atoi(text.c_str());
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (char c : text) {
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

}  // namespace

std::vector<int> units_from_text(const std::string& text) {
  std::vector<int> units;
  for (const std::string& part : split(text, '+')) {
    const std::vector<std::string> ends = split(part, '-');
    const int first = number_of(ends.front());
    const int last = number_of(ends.back());
    if (ends.size() > 2 || first < 0 || last < first) return {};
    for (int unit = first; unit <= last; ++unit) units.push_back(unit);
  }
  return units;
}

std::string units_text(std::vector<int> units) {
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  std::vector<std::string> ranges;
  for (size_t first = 0; first < units.size();) {
    size_t last = first;
    while (last + 1 < units.size() && units[last + 1] == units[last] + 1) ++last;
    ranges.push_back(first == last ? std::to_string(units[first]) : str(units[first], "-", units[last]));
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

}  // namespace convoy
