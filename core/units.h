// Processing units as people write them: "0", "0-3", "0-3+8", ranges joined by '+' so that a list may hold several.
#pragma once
#include <string>
#include <vector>

namespace convoy {

// Ascending in each range, in the order written; empty for any other text.
std::vector<int> units_from_text(const std::string& text);

// Shortest, ascending, each once; "" for none.
std::string units_text(std::vector<int> units);

// Ranks, which ascend, in few characters and for messages only: "0-7", "0-1016 by 8", "0-3, 16-19, 32-35, … (256)".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace convoy
