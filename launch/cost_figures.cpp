#include "launch/cost_figures.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace convoy {
namespace {

// The description with a value in every field that it leaves open. What a step has measured as 0 is not open: nothing of an
// mlp is cut, say.
Description filled(Description description) {
  if (description.measured) return description;
  constexpr int64_t any = 1 << 20;
  const auto fill = [&](int64_t BlockDescription::*field, auto value) {
    const bool open = std::all_of(description.blocks.begin(), description.blocks.end(),
                                  [field](const BlockDescription& block) { return block.*field == 0; });
    if (!open) return;
    for (BlockDescription& block : description.blocks) block.*field = value(block);
  };
  const auto some = [](const BlockDescription&) { return any; };
  for (auto field :
       {&BlockDescription::row_output_bytes, &BlockDescription::row_saved_bytes, &BlockDescription::row_cut_input_bytes,
        &BlockDescription::row_cut_output_bytes, &BlockDescription::cut_exchanges})
    fill(field, some);
  fill(&BlockDescription::row_cut_saved_bytes, [](const BlockDescription& block) { return block.row_saved_bytes / 2; });
  fill(&BlockDescription::cut_parameters, [](const BlockDescription& block) { return block.parameters; });
  return description;
}

Figure figure(double known, double probed) {
  const bool at_most = probed < known;
  return {known == probed ? Figure::Known::exactly
          : at_most       ? Figure::Known::at_most
                          : Figure::Known::not_measured,
          known};
}

// Names of the mesh's axes along which there is anybody to send to.
std::vector<std::string> shared_axes(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const Axis& axis : mesh.axes())
    if (axis.degree > 1) names.push_back(axis.name);
  return names;
}

AxisCost along(const RankCost& cost, const std::string& axis, bool only) {
  if (only && cost.axes.empty()) return {axis, cost.bytes_sent_per_step, cost.messages_per_step};
  AxisCost all{axis};
  for (const AxisCost& one : cost.axes) {
    if (one.axis != axis) continue;
    all.bytes += one.bytes;
    all.messages += one.messages;
  }
  return all;
}

RankFigures compared(const RankCost& known, const RankCost& probed, const Mesh& mesh) {
  RankFigures figures;
  figures.sent = figure(known.bytes_sent_per_step, probed.bytes_sent_per_step);
  figures.messages = figure(known.messages_per_step, probed.messages_per_step);
  figures.parameters = figure(known.parameter_bytes, probed.parameter_bytes);
  figures.gradients = figure(known.gradient_bytes, probed.gradient_bytes);
  figures.moments = figure(known.moment_bytes, probed.moment_bytes);
  figures.activations = figure(known.activation_bytes, probed.activation_bytes);
  figures.buffers = figure(known.buffer_bytes, probed.buffer_bytes);
  const std::vector<std::string> axes = shared_axes(mesh);
  for (const std::string& axis : axes) {
    const AxisCost one = along(known, axis, axes.size() == 1), other = along(probed, axis, axes.size() == 1);
    figures.sent_on[axis] = figure(one.bytes, other.bytes);
    figures.messages_on[axis] = figure(one.messages, other.messages);
  }
  return figures;
}

Figure larger(const Figure& a, const Figure& b) { return {std::max(a.known, b.known), std::max(a.value, b.value)}; }

std::string text_of(const Figure& figure, const std::string& value) {
  if (figure.known == Figure::Known::not_measured) return "not measured";
  return (figure.exact() ? "" : "≤ ") + value;
}

std::string zero_or_bytes(double bytes) { return bytes == 0 ? "0" : human_bytes(bytes); }

}  // namespace

Memory memory_of(const RankFigures& rank) {
  Memory memory;
  for (const Figure* part : {&rank.parameters, &rank.gradients, &rank.moments, &rank.activations, &rank.buffers}) {
    if (part->exact()) memory.bytes += part->value;
    memory.complete = memory.complete && part->exact();
  }
  return memory;
}

Memory largest_memory(const std::vector<RankFigures>& ranks) {
  Memory most;
  for (const RankFigures& rank : ranks) {
    const Memory memory = memory_of(rank);
    most = {std::max(most.bytes, memory.bytes), most.complete && memory.complete};
  }
  return most;
}

std::vector<RankFigures> figures_of(const StrategyEntry& strategy, const Job& job, const Description& description) {
  const std::vector<RankCost> known = strategy.cost(job, description);
  const std::vector<RankCost> probed = strategy.cost(job, filled(description));
  CONVOY_CHECK(known.size() == job.ranks.size() && probed.size() == known.size(), "strategy ", strategy.name, " told ",
               known.size(), " costs of ", job.ranks.size(), " ranks");
  std::vector<RankFigures> figures;
  for (size_t rank = 0; rank < known.size(); ++rank) figures.push_back(compared(known[rank], probed[rank], job.mesh));
  return figures;
}

Figure largest(const std::vector<RankFigures>& ranks, Figure RankFigures::*figure) {
  Figure most;
  for (const RankFigures& rank : ranks) most = larger(most, rank.*figure);
  return most;
}

std::string bytes_text(const Figure& figure) { return text_of(figure, zero_or_bytes(figure.value)); }

std::string count_text(const Figure& figure) { return text_of(figure, str(std::round(figure.value * 10) / 10)); }

std::string memory_text(const Memory& memory) { return (memory.complete ? "" : "≥ ") + zero_or_bytes(memory.bytes); }

}  // namespace convoy
