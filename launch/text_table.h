// Tables for people: columns as wide as their widest cell, two blanks between.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace convoy {

// `lines`: cells by line, the heading first, all lines of the same length. `right`: columns whose cells end at the
// right, as figures do. Every line ends with a newline and in no blank.
std::string text_table(const std::vector<std::vector<std::string>>& lines, const std::vector<size_t>& right = {});

// The first and the last of many names, and how many there are: "node0 … node127 (128)".
std::string names_text(const std::vector<std::string>& names);

}  // namespace convoy
