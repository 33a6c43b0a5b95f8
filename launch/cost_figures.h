// What a strategy's formulas say of a plan, and which of these figures rest on what nobody has measured of the model. Pure.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "strategies/catalogue.h"

namespace convoy {

// Of one rank.
struct Figure {
  enum class Known { exactly, at_most, not_measured } known = Known::exactly;
  double value = 0;
  bool exact() const { return known == Known::exactly; }
};

struct RankFigures {
  Figure sent, messages;                  // a step
  std::map<std::string, Figure> sent_on;  // by axis of the mesh with several ranks
  std::map<std::string, Figure> messages_on;
  Figure parameters, gradients, moments, activations, buffers;  // bytes
};
// Bytes of a rank, or of the one that has most: the sum of what is known, which is all of it where `complete`.
struct Memory {
  double bytes = 0;
  bool complete = true;
};
Memory memory_of(const RankFigures& rank);
Memory largest_memory(const std::vector<RankFigures>& ranks);

// Of every rank of `job`. A figure is not known exactly when the formulas would give another one, had the description told
// what it leaves at 0 for every block: a smaller one, so that it is at most what it is, or else it is not measured.
std::vector<RankFigures> figures_of(const StrategyEntry& strategy, const Job& job, const Description& description);

// Of any rank the largest; known as badly as the worst known of them.
Figure largest(const std::vector<RankFigures>& ranks, Figure RankFigures::*figure);

// "12 MiB", "≤ 12 MiB", "not measured", "0"; "3.5"; "≥ 12 MiB" of what is known in part: for tables.
std::string bytes_text(const Figure& figure);
std::string count_text(const Figure& figure);
std::string memory_text(const Memory& memory);

}  // namespace convoy
