#include "launch/text_table.h"

#include <algorithm>

#include "core/text.h"

namespace convoy {
namespace {

// Characters of UTF-8, none of which is wide here.
size_t width_of(const std::string& cell) {
  return static_cast<size_t>(
      std::count_if(cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string text_table(const std::vector<std::vector<std::string>>& lines, const std::vector<size_t>& right) {
  std::vector<size_t> widths(lines.empty() ? 0 : lines.front().size(), 0);
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths.at(i) = std::max(widths.at(i), width_of(line[i]));
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string blank(widths[i] - width_of(line[i]), ' ');
      const bool to_right = std::find(right.begin(), right.end(), i) != right.end();
      text += (i == 0 ? "" : "  ") + (to_right ? blank + line[i] : line[i] + blank);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

std::string names_text(const std::vector<std::string>& names) {
  if (names.size() <= 2) return join(names, ", ");
  return str(names.front(), " … ", names.back(), " (", names.size(), ")");
}

}  // namespace convoy
