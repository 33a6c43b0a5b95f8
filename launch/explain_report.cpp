#include "launch/explain_report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "core/units.h"
#include "launch/text_table.h"

namespace convoy {
namespace {

using Cell = std::function<std::string(const Candidate&)>;

constexpr size_t most_placed = 16;  // lines of placement
constexpr size_t most_rows = 8;     // lines of a table of figures
constexpr size_t most_lines = 12;   // of a schedule on many ranks
constexpr size_t many_ranks = 64;
constexpr size_t line_width = 118;  // of a schedule
constexpr size_t warning_width = 150;

std::string plural(size_t count, const std::string& what) { return str(count, " ", what, count == 1 ? "" : "s"); }

// Without its name.
std::string host_text(const Host& host) {
  std::set<int> sockets, nodes;
  size_t units = 0;
  for (const Core& core : host.cores) {
    sockets.insert(core.socket);
    nodes.insert(core.numa);
    units += core.siblings.size();
  }
  std::string text = str(plural(sockets.size(), "socket"), ", ", plural(nodes.size(), "NUMA node"), ", ",
                         plural(host.cores.size(), "core"));
  if (units != host.cores.size()) text += str(" with ", units, " hyper-threads");
  text += str(", ", human_bytes(static_cast<double>(host.memory)), ", ", plural(host.gpus.size(), "GPU"));
  return text + "\n";
}

// Equal hosts share a line.
std::string hosts_text(const std::vector<Host>& hosts) {
  std::vector<std::pair<std::string, std::vector<std::string>>> kinds;
  for (const Host& host : hosts) {
    const std::string kind = host_text(host);
    if (kinds.empty() || kinds.back().first != kind) kinds.push_back({kind, {}});
    kinds.back().second.push_back(host.name);
  }
  std::string text;
  for (size_t i = 0; i < kinds.size() && i < most_rows; ++i)
    text += names_text(kinds[i].second) + ": " + (kinds[i].second.size() > 1 ? "each " : "") + kinds[i].first;
  return text + (kinds.size() > most_rows ? str("… and ", kinds.size() - most_rows, " more kinds of hosts\n") : "");
}

std::string mesh_text(const Job& job) {
  std::vector<std::string> axes;
  for (const Axis& axis : job.mesh.axes()) axes.push_back(str(axis.name, " ", axis.degree));
  return axes.empty() ? "one rank" : join(axes, " × ");
}

// Where it makes a difference to what is trained.
std::string batch_norm_text(const Candidate& candidate) {
  const Options& strategy = candidate.run.config.strategy.options;
  const bool buffers = std::any_of(candidate.figures.begin(), candidate.figures.end(),
                                   [](const RankFigures& rank) { return rank.buffers.value > 0; });
  if (!buffers || candidate.placed.job.mesh.degree("data") < 2 || !strategy.json().contains("batch_norm")) return "";
  return strategy.text("batch_norm") == "sync"
             ? "batch norm: over the rows of all ranks (strategy.batch_norm: sync)\n"
             : "batch norm: over each rank's own rows (strategy.batch_norm: local; sync: over those of all)\n";
}

std::string heading(const Candidate& candidate) {
  const Job& job = candidate.placed.job;
  return str(job.name, ": ", candidate.strategy, " on ", plural(job.ranks.size(), "rank"), " in ",
             job.processes.size() == 1 ? "1 process" : str(job.processes.size(), " processes"), ", backend ",
             job.backend, "\nmesh: ", mesh_text(job), "\n", batch_norm_text(candidate));
}

// Ranks whose cells are all the same share a line. The first cell of a line is its rank.
std::string folded(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::vector<std::string>> kept{lines.front()};
  std::vector<std::vector<int>> ranks{{}};
  std::map<std::vector<std::string>, size_t> known;
  for (size_t line = 1; line < lines.size(); ++line) {
    const auto [found, fresh] = known.emplace(std::vector(lines[line].begin() + 1, lines[line].end()), kept.size());
    if (fresh) {
      kept.push_back(lines[line]);
      ranks.emplace_back();
    }
    ranks[found->second].push_back(static_cast<int>(line) - 1);
  }
  for (size_t line = 1; line < kept.size(); ++line) kept[line][0] = ranks_text(ranks[line]);
  const bool many = lines.size() > many_ranks && kept.size() > most_rows;
  const size_t left_out = many ? kept.size() - most_rows : 0;
  kept.resize(kept.size() - left_out);
  std::vector<size_t> figures;
  for (size_t i = 1; i < kept.front().size(); ++i) figures.push_back(i);
  return text_table(kept, figures) + (left_out > 0 ? str("… and ", plural(left_out, "line"), " more\n") : "");
}

std::string traffic_text(const std::vector<RankFigures>& ranks) {
  std::vector<std::string> axes;
  for (const auto& [axis, figure] : ranks.front().sent_on) axes.push_back(axis);
  if (axes.empty()) return "sent a step: nothing, there is one rank\n";
  std::vector<std::vector<std::string>> lines{{"rank"}};
  for (const std::string& axis : axes) {
    lines.front().push_back("sent along " + axis);
    lines.front().push_back("messages");
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    lines.push_back({std::to_string(rank)});
    for (const std::string& axis : axes) {
      lines.back().push_back(bytes_text(ranks[rank].sent_on.at(axis)));
      lines.back().push_back(count_text(ranks[rank].messages_on.at(axis)));
    }
  }
  return "sent by each rank a step:\n" + folded(lines);
}

std::string memory_table(const std::vector<RankFigures>& ranks) {
  std::vector<std::vector<std::string>> lines{
      {"rank", "parameters", "gradients", "moments", "activations", "buffers", "together"}};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankFigures& figures = ranks[rank];
    lines.push_back({std::to_string(rank), bytes_text(figures.parameters), bytes_text(figures.gradients),
                     bytes_text(figures.moments), bytes_text(figures.activations), bytes_text(figures.buffers),
                     memory_text(memory_of(figures))});
  }
  return "memory of each rank:\n" + folded(lines);
}

bool all_measured(const std::vector<RankFigures>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankFigures& figures) {
    return memory_of(figures).complete && figures.sent.exact() && figures.messages.exact();
  });
}

// Ranks on GPUs against their GPU, those on cores against what their host has for all.
std::string fit_text(const Candidate& candidate, const Topology& topology) {
  const Job& job = candidate.placed.job;
  std::string text;
  std::vector<double> of_host(topology.hosts.size(), 0);
  for (size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const RankPlan& plan = job.ranks[rank];
    const double bytes = memory_of(candidate.figures[rank]).bytes;
    const Host& host = topology.hosts[static_cast<size_t>(plan.host)];
    int64_t gpus = 0;
    for (const DevicePlan& device : plan.devices)
      if (const Gpu* gpu = gpu_of(device, host)) gpus += gpu->memory;
    const bool on_gpu = plan.devices.front().kind == DevicePlan::Kind::gpu;
    if (!on_gpu) of_host[static_cast<size_t>(plan.host)] += bytes;
    if (on_gpu && gpus > 0 && bytes > static_cast<double>(gpus) && text.empty())
      text = str("does not fit: rank ", rank, " needs ", human_bytes(bytes), " and its GPU has ",
                 human_bytes(static_cast<double>(gpus)), "\n");
  }
  size_t full = 0;
  for (size_t host = 0; host < of_host.size(); ++host)
    if (topology.hosts[host].memory > 0 && of_host[host] > static_cast<double>(topology.hosts[host].memory) &&
        ++full <= most_rows)
      text += str("does not fit: the ranks of ", topology.hosts[host].name, " need ", human_bytes(of_host[host]),
                  " and it has ", human_bytes(static_cast<double>(topology.hosts[host].memory)), "\n");
  if (full > most_rows) text += str("does not fit: ", full - most_rows, " more hosts neither\n");
  return text;
}

// Characters of it, of which some are several bytes.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// Continues lines of more than `width` characters in the next one, further in.
std::string wrapped(const std::string& text, size_t width = line_width) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string margin(line.find_first_not_of(' ') == std::string::npos ? 0 : line.find_first_not_of(' '), ' ');
    while (width_of(line) > width) {
      // The last blank within the width, else the first one behind it.
      size_t cut = std::string::npos, at = margin.size() + 4;
      while ((at = line.find(' ', at + 1)) != std::string::npos) {
        if (cut != std::string::npos && width_of(line.substr(0, at)) > width) break;
        cut = at;
        if (width_of(line.substr(0, at)) > width) break;
      }
      if (cut == std::string::npos) break;
      result += line.substr(0, cut) + "\n";
      line = margin + "    " + line.substr(cut + 1);
    }
    result += line + "\n";
  }
  return result;
}

// The first lines of a schedule on many ranks.
std::string shortened(const std::string& text, size_t ranks) {
  if (ranks <= many_ranks) return text;
  size_t end = 0;
  for (size_t line = 0; line < most_lines && end != std::string::npos; ++line) {
    const size_t next = text.find('\n', end);
    end = next == std::string::npos ? next : next + 1;
  }
  if (end >= text.size()) return text;
  const auto rest = static_cast<size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(end), text.end(), '\n'));
  return text.substr(0, end) + "… and " + plural(rest, "line") + " more\n";
}

std::string share_text(double seconds) { return human_seconds(std::max(0.0, seconds)); }

std::string error_text(const StepPrediction& step) {
  return str("± ", std::lround(100 * step.error / step.seconds), " %");
}

// A cell of a candidate that has a prediction, else "—".
Cell predicted(std::function<std::string(const Candidate&, const StepPrediction&)> cell) {
  return [cell = std::move(cell)](const Candidate& candidate) -> std::string {
    if (!candidate.prediction || !candidate.prediction->reason.empty()) return "—";
    return cell(candidate, *candidate.prediction);
  };
}

std::vector<std::pair<std::string, Cell>> prediction_rows() {
  const auto part = [](double StepPrediction::*of) {
    return predicted([of](const Candidate&, const StepPrediction& step) { return share_text(step.*of); });
  };
  return {{"predicted step", part(&StepPrediction::seconds)},
          {"its error", predicted([](const Candidate&, const StepPrediction& step) { return error_text(step); })},
          {"  forward, backward", part(&StepPrediction::compute)},
          {"  waits for stages", part(&StepPrediction::idle)},
          {"  update", part(&StepPrediction::update)},
          {"  exchanges", part(&StepPrediction::exchange)},
          {"rows a second", predicted([](const Candidate& candidate, const StepPrediction& step) {
             return str(std::lround(candidate.update_rows() / step.seconds));
           })}};
}

std::string notes_of(const Candidate& candidate) {
  if (!candidate.prediction) return "";
  if (!candidate.prediction->reason.empty())
    return str(candidate.title, ": no time is predicted: ", candidate.prediction->reason, "\n");
  std::string text;
  for (const std::string& note : candidate.prediction->notes) text += str(candidate.title, ": ", note, "\n");
  return text;
}

std::string prediction_text(const Candidate& candidate) {
  if (!candidate.prediction) return "";
  const StepPrediction& step = *candidate.prediction;
  if (!step.reason.empty()) return "\n" + notes_of(candidate);
  std::string text = str("\npredicted step: ", human_seconds(step.seconds), " ", error_text(step),
                         ": forward and backward ", human_seconds(step.compute));
  if (step.idle > 0) text += str(", waits for stages ", human_seconds(step.idle));
  text += str(", update ", human_seconds(step.update));
  if (!step.exchanges.empty()) text += str(", exchanges ", human_seconds(step.exchange));
  text += "\n";
  for (const ExchangePart& part : step.exchanges)
    text += str("  ", name_of(part.kind), " along ", part.axis, ": ", human_bytes(part.bytes), " in ",
                std::round(part.messages * 10) / 10, part.messages == 1 ? " message takes " : " messages take ",
                human_seconds(part.seconds), ", of which ", human_seconds(part.shown), " show\n");
  return text + notes_of(candidate);
}

// What row tables are good for; `dense`: the same with dense ones.
std::string tables_text(const Candidate& rows, const Candidate& dense) {
  const double sent = largest(rows.figures, &RankFigures::sent).value,
               all = largest(dense.figures, &RankFigures::sent).value;
  if (sent >= all)
    return str(rows.title, ": row tables send more than dense ones, ", human_bytes(sent), " instead of ",
               human_bytes(all), "; take model.rows=false, or auto\n");
  return str(rows.title, ": row tables send 1/", std::lround(all / std::max(sent, 1.0)),
             " of what dense ones would, and update only rows that a step touches\n");
}

// Of candidates that differ in how their tables are kept alone, each against the dense one, which is their last.
std::string all_tables_text(const std::vector<Candidate>& candidates) {
  std::string text;
  for (size_t dense = 0; dense < candidates.size(); ++dense) {
    if (candidates[dense].tables != Candidate::Tables::dense || candidates[dense].placed.job.ranks.size() == 1)
      continue;
    size_t first = dense;
    while (first > 0 && candidates[first].tables != Candidate::Tables::as_configured) --first;
    for (; first < dense; ++first) text += tables_text(candidates[first], candidates[dense]);
  }
  return text;
}

std::string warnings_text(const Candidate& candidate) {
  std::vector<std::string> warnings = candidate.run.warnings;
  warnings.insert(warnings.end(), candidate.placed.warnings.begin(), candidate.placed.warnings.end());
  std::string text;
  for (size_t i = 0; i < warnings.size() && i < most_rows; ++i)
    text += wrapped("warning: " + warnings[i], warning_width);
  return text + (warnings.size() > most_rows ? str("… and ", warnings.size() - most_rows, " more warnings\n") : "");
}

std::string idle_gpus(const Candidate& candidate, const Topology& topology) {
  for (const Host& host : topology.hosts)
    if (!host.gpus.empty() && candidate.run.config.device == "cpu")
      return str("device is cpu, so the GPUs of ", host.name, " stay idle; --set device=auto takes them\n");
  return "";
}

}  // namespace

std::string explained(const Candidate& candidate, const Topology& topology, const std::string& source) {
  std::string text = heading(candidate);
  text += hosts_text(topology.hosts);
  text += "as " + source + "\n" + idle_gpus(candidate, topology);
  text += warnings_text(candidate);
  text += "\n" + placement_text(candidate.placed.table, most_placed);
  text += "\n" + traffic_text(candidate.figures);
  text += "\n" + memory_table(candidate.figures) + fit_text(candidate, topology);
  if (!all_measured(candidate.figures)) text += "not measured, ≤, ≥: the rest of it only running the model tells\n";
  const std::string schedule = shortened(wrapped(candidate.schedule), candidate.placed.job.ranks.size());
  return text + "\nschedule:\n" + schedule + prediction_text(candidate);
}

std::string compared(const std::vector<Candidate>& candidates) {
  std::vector<std::pair<std::string, Cell>> rows{
      {"ranks", [](const Candidate& c) { return std::to_string(c.placed.job.ranks.size()); }},
      {"mesh", [](const Candidate& c) { return mesh_text(c.placed.job); }},
      {"backend", [](const Candidate& c) { return c.placed.job.backend; }},
      {"rows a step, all ranks", [](const Candidate& c) { return str(c.update_rows()); }},
      {"sent a step", [](const Candidate& c) { return bytes_text(largest(c.figures, &RankFigures::sent)); }},
      {"messages a step", [](const Candidate& c) { return count_text(largest(c.figures, &RankFigures::messages)); }},
      {"parameters", [](const Candidate& c) { return bytes_text(largest(c.figures, &RankFigures::parameters)); }},
      {"gradients", [](const Candidate& c) { return bytes_text(largest(c.figures, &RankFigures::gradients)); }},
      {"moments", [](const Candidate& c) { return bytes_text(largest(c.figures, &RankFigures::moments)); }},
      {"activations", [](const Candidate& c) { return bytes_text(largest(c.figures, &RankFigures::activations)); }},
      {"buffers", [](const Candidate& c) { return bytes_text(largest(c.figures, &RankFigures::buffers)); }},
      {"memory", [](const Candidate& c) { return memory_text(largest_memory(c.figures)); }},
  };
  if (std::any_of(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.prediction.has_value(); }))
    for (auto& row : prediction_rows()) rows.push_back(std::move(row));
  std::vector<std::vector<std::string>> lines{{"of the rank that has most"}};
  std::vector<size_t> columns;
  for (const Candidate& candidate : candidates) {
    lines.front().push_back(candidate.title);
    columns.push_back(columns.size() + 1);
  }
  for (const auto& [name, cell] : rows) {
    lines.push_back({name});
    for (const Candidate& candidate : candidates)
      lines.back().push_back(candidate.refused.empty() ? cell(candidate) : "refused");
  }
  std::string text = text_table(lines, columns);
  text += all_tables_text(candidates);
  for (const Candidate& candidate : candidates) {
    if (!candidate.refused.empty()) text += str(candidate.title, " is refused: ", candidate.refused, "\n");
    if (!candidate.note.empty()) text += str(candidate.title, " ", candidate.note, "\n");
    for (const std::string& warning : candidate.placed.warnings) text += str(candidate.title, ": ", warning, "\n");
    text += notes_of(candidate);
  }
  return text;
}

}  // namespace convoy
