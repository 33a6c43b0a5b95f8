#include "launch/explain/explain.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "core/base/text.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

using Cell = std::function<std::string(const Candidate&)>;

constexpr size_t most_placement_lines = 16;  // lines of placement
constexpr size_t most_rows = 8;              // lines of a table of numbers
constexpr size_t most_lines = 12;            // lines of a schedule on many ranks
constexpr size_t most_lines_of_few = 200;    // lines of a schedule on at most many_ranks ranks
constexpr size_t many_ranks = 64;
constexpr size_t line_width = 118;  // columns of a schedule
constexpr size_t warning_width = 150;

// "1 socket, 1 NUMA node, 2 cores, 23.5 GiB, 0 GPUs".
std::string host_text(const Host& host) {
  std::set<int> sockets, nodes;
  size_t threads = 0;
  for (const Core& core : host.cores) {
    sockets.insert(core.socket);
    nodes.insert(core.numa);
    threads += core.siblings.size();
  }
  std::string text = str(counted(sockets.size(), "socket"), ", ", counted(nodes.size(), "NUMA node"), ", ",
                         counted(host.cores.size(), "core"));
  if (threads != host.cores.size()) text += str(" with ", threads, " hardware threads");
  text += str(", ", human_bytes(host.memory), ", ", counted(host.gpus.size(), "GPU"));
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
  return text +
         (kinds.size() > most_rows ? str("… and ", counted(kinds.size() - most_rows, "more kind"), " of hosts\n") : "");
}

std::string mesh_text(const JobPlan& job) {
  std::vector<std::string> axes;
  for (const Axis& axis : job.mesh.axes()) axes.push_back(str(axis.name, " ", axis.degree));
  return axes.empty() ? "one rank" : join(axes, " × ");
}

// Scope of batch norm's statistics, if the layout affects the result.
std::string batch_norm_text(const Candidate& candidate) {
  const Options& strategy = candidate.run.config.strategy.options;
  const bool buffers = std::any_of(candidate.costs.begin(), candidate.costs.end(),
                                   [](const RankCosts& rank) { return rank.buffers.value > 0; });
  if (!buffers || candidate.placed.job.mesh.degree("data") < 2 || !strategy.has("batch_norm")) return "";
  return step_options(strategy).synchronises_norms
             ? "batch norm: over the rows of all ranks (strategy.batch_norm: sync)\n"
             : "batch norm: over each rank's share (strategy.batch_norm: local; sync: over the rows of all ranks)\n";
}

std::string heading(const Candidate& candidate) {
  const JobPlan& job = candidate.placed.job;
  return str(job.name, ": ", candidate.strategy, " on ", counted(job.ranks.size(), "rank"), " in ",
             counted(job.processes.size(), "process", "processes"), ", backend ", job.backend,
             "\nmesh: ", mesh_text(job), "\n", batch_norm_text(candidate));
}

// Table in which ranks with equal cells share a line. The first cell of a line is its rank.
std::string merged_table(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::vector<std::string>> merged{lines.front()};
  std::vector<std::vector<int>> ranks{{}};
  std::map<std::vector<std::string>, size_t> known;
  for (size_t line = 1; line < lines.size(); ++line) {
    const auto [found, fresh] = known.emplace(std::vector(lines[line].begin() + 1, lines[line].end()), merged.size());
    if (fresh) {
      merged.push_back(lines[line]);
      ranks.emplace_back();
    }
    ranks[found->second].push_back(static_cast<int>(line) - 1);
  }
  for (size_t line = 1; line < merged.size(); ++line) merged[line][0] = ranks_text(ranks[line]);
  const bool many = lines.size() > many_ranks && merged.size() > most_rows;
  const size_t left_out = many ? merged.size() - most_rows : 0;
  merged.resize(merged.size() - left_out);
  std::vector<size_t> numbers;
  for (size_t i = 1; i < merged.front().size(); ++i) numbers.push_back(i);
  return text_table(merged, numbers) + (left_out > 0 ? str("… and ", counted(left_out, "line"), " more\n") : "");
}

std::string traffic_text(const std::vector<RankCosts>& ranks) {
  std::vector<std::string> axes;
  for (const auto& [axis, sent] : ranks.front().sent_on) axes.push_back(axis);
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
  return "sent by each rank a step:\n" + merged_table(lines);
}

std::string memory_table(const std::vector<RankCosts>& ranks) {
  std::vector<std::vector<std::string>> lines{
      {"rank", "parameters", "gradients", "moments", "activations", "buffers", "together"}};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankCosts& costs = ranks[rank];
    lines.push_back({std::to_string(rank), bytes_text(costs.parameters), bytes_text(costs.gradients),
                     bytes_text(costs.moments), bytes_text(costs.activations), bytes_text(costs.buffers),
                     memory_text(memory_of(costs))});
  }
  return "memory of each rank:\n" + merged_table(lines);
}

// Host memory of saves in the background, which the table does not contain.
std::string checkpoint_copy_text(const std::vector<RankCosts>& ranks, const TrainConfig& train) {
  if (train.checkpoint_async == false || train.checkpoint_every.unit == Interval::Unit::never) return "";
  std::map<double, std::vector<int>, std::greater<>> by_size;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].owned > 0) by_size[ranks[rank].owned].push_back(int(rank));
  constexpr size_t most_sizes = 4;
  const bool many = by_size.size() > most_sizes;
  std::string text = many ? str("up to ", human_bytes(by_size.begin()->first), " on a rank") : "";
  for (const auto& [size, holders] : by_size)
    if (!many) text += str(text.empty() ? "" : "; ", human_bytes(size), " on ", named_ranks(holders));
  return text.empty() ? "" : str("a checkpoint also takes host memory (train.checkpoint_async): ", text, "\n");
}

bool all_measured(const std::vector<RankCosts>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankCosts& costs) {
    return memory_of(costs).complete && costs.sent.exact() && costs.messages.exact();
  });
}

// Breaks a line at blanks if it has more than `width` characters, and indents its continuations.
std::vector<std::string> wrapped(const std::string& line, size_t width) {
  std::vector<std::string> lines;
  const size_t margin = std::min(line.find_first_not_of(' '), line.size());
  std::string current = line.substr(0, margin);
  size_t used = margin;
  bool empty = true;  // `current` has no word
  for (const std::string& word : split(std::string_view(line).substr(margin), ' ')) {
    const size_t more = width_of(word) + (empty ? 0 : 1);
    if (!empty && used + more > width) {
      lines.push_back(std::move(current));
      current = std::string(margin + 4, ' ') + word;
      used = margin + 3 + more;
    } else {
      current += (empty ? "" : " ") + word;
      used += more;
    }
    empty = false;
  }
  lines.push_back(std::move(current));
  return lines;
}

// The first lines of a schedule, and its line about idle ranks. Lines that are not shown are counted and not wrapped.
std::string schedule_text(const std::string& schedule, size_t ranks) {
  const size_t idle_at = schedule.rfind("\nidle: ");
  const std::string idle = idle_at == std::string::npos ? "" : schedule.substr(idle_at + 1);
  const size_t most = (ranks > many_ranks ? most_lines : most_lines_of_few) - (idle.empty() ? 0 : 1);
  std::string text;
  size_t shown = 0, left_out = 0;
  std::istringstream lines(schedule.substr(0, schedule.size() - idle.size()));
  for (std::string line; std::getline(lines, line);) {
    if (shown >= most) {
      ++left_out;
      continue;
    }
    for (const std::string& piece : wrapped(line, line_width)) {
      if (shown < most) text += piece + "\n";
      ++(shown < most ? shown : left_out);
    }
  }
  return text + (left_out > 0 ? "… and " + counted(left_out, "line") + " more\n" : "") + idle;
}

std::string error_text(const StepPrediction& step) {
  return too_rough(step) ? "above 100 %" : str("± ", std::lround(100 * step.error / step.seconds), " %");
}

// Cell for a prediction; "—" without one.
Cell predicted(std::function<std::string(const Candidate&, const StepPrediction&)> cell) {
  return [cell = std::move(cell)](const Candidate& candidate) -> std::string {
    if (!candidate.prediction || !candidate.prediction->reason.empty()) return "—";
    return cell(candidate, *candidate.prediction);
  };
}

std::vector<std::pair<std::string, Cell>> prediction_rows() {
  const auto term = [](double StepPrediction::*of) {
    return predicted(
        [of](const Candidate&, const StepPrediction& step) { return human_seconds(std::max(0.0, step.*of)); });
  };
  return {{"predicted step", term(&StepPrediction::seconds)},
          {"its error", predicted([](const Candidate&, const StepPrediction& step) { return error_text(step); })},
          {"  forward, backward", term(&StepPrediction::compute)},
          {"  waits for stages", term(&StepPrediction::idle)},
          {"  update", term(&StepPrediction::update)},
          {"  exchanges", term(&StepPrediction::exchange)},
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

// Returns the choice that the run probably makes for `overlap: auto`; "" if it measures nothing.
std::string choice_text(const std::vector<ExchangeTime>& exchanges) {
  double hidden = 0;
  bool chooses = false;
  for (const ExchangeTime& exchange : exchanges) {
    if (!exchange.run_chooses_overlap) continue;
    chooses = true;
    hidden += exchange.seconds - exchange.exposed;
  }
  if (!chooses) return "";
  return hidden > 0 ? str("  overlap: auto probably chooses on, which hides ", human_seconds(hidden), "\n")
                    : "  overlap: auto probably chooses off, because it would hide nothing\n";
}

std::string prediction_text(const Candidate& candidate) {
  if (!candidate.prediction) return "";
  const StepPrediction& step = *candidate.prediction;
  if (!step.reason.empty()) return "\n" + notes_of(candidate);
  std::string text =
      str("\npredicted step: ", human_seconds(step.seconds), too_rough(step) ? ", error " : " ", error_text(step),
          too_rough(step) ? ", too rough to rely on" : "", ": forward and backward ", human_seconds(step.compute));
  if (step.idle > 0) text += str(", waits for stages ", human_seconds(step.idle));
  text += str(", update ", human_seconds(step.update));
  if (!step.exchanges.empty()) text += str(", exchanges ", human_seconds(step.exchange));
  text += "\n";
  for (const ExchangeTime& exchange : step.exchanges)
    text += str("  ", name_of(exchange.kind), " along ", exchange.axis, ": ",
                exchange.bytes < 1 ? "" : human_bytes(exchange.bytes) + " in ", std::round(exchange.messages * 10) / 10,
                exchange.messages == 1 ? " message takes " : " messages take ", human_seconds(exchange.seconds), ", ",
                human_seconds(exchange.exposed), " of it not overlapped\n");
  return text + choice_text(step.exchanges) + notes_of(candidate);
}

// Compares communication with sparse and with dense embeddings.
std::string sparse_gain_text(const Candidate& rows, const Candidate& dense) {
  const double sent = largest(rows.costs, &RankCosts::sent).value, all = largest(dense.costs, &RankCosts::sent).value;
  if (sent >= all)
    return str(rows.title, ": sparse embeddings send more than dense ones, ", human_bytes(sent), " instead of ",
               human_bytes(all), "; set model.rows=false, or auto\n");
  return str(rows.title, ": sparse embeddings send 1/", std::lround(all / std::max(sent, 1.0)),
             " of what dense ones send, and update only touched rows\n");
}

// Compares each group of candidates that differ only in their embeddings with its last one, which is dense.
std::string sparse_gains_text(const std::vector<Candidate>& candidates) {
  std::string text;
  for (size_t dense = 0; dense < candidates.size(); ++dense) {
    if (candidates[dense].embeddings != Candidate::Embeddings::dense || candidates[dense].placed.job.ranks.size() == 1)
      continue;
    size_t first = dense;
    while (first > 0 && candidates[first].embeddings != Candidate::Embeddings::as_configured) --first;
    for (; first < dense; ++first) text += sparse_gain_text(candidates[first], candidates[dense]);
  }
  return text;
}

std::string warnings_text(const Candidate& candidate) {
  std::vector<std::string> warnings = candidate.run.warnings;
  warnings.insert(warnings.end(), candidate.placed.warnings.begin(), candidate.placed.warnings.end());
  std::string text;
  for (size_t i = 0; i < warnings.size() && i < most_rows; ++i)
    text += join(wrapped("warning: " + warnings[i], warning_width), "\n") + "\n";
  return text +
         (warnings.size() > most_rows ? str("… and ", counted(warnings.size() - most_rows, "more warning"), "\n") : "");
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
  const std::string placement = placement_text(candidate.placed.table, most_placement_lines);
  if (!placement.empty()) text += "\n" + placement;
  text += "\n" + traffic_text(candidate.costs);
  text += "\n" + memory_table(candidate.costs) + misfit_text(candidate, topology);
  text += checkpoint_copy_text(candidate.costs, candidate.run.config.train);
  if (!all_measured(candidate.costs)) text += "not measured, ≤, ≥: only a run of the model shows the exact number\n";
  if (candidate.run.described.is_object())
    if (const std::string advice = candidate.run.described.value("advice", ""); !advice.empty())
      text += join(wrapped("advice: " + advice, warning_width), "\n") + "\n";
  text += "\nschedule:\n" + schedule_text(candidate.schedule, candidate.placed.job.ranks.size());
  return text + prediction_text(candidate);
}

std::string compared(const std::vector<Candidate>& candidates, const Topology& topology) {
  std::vector<std::pair<std::string, Cell>> rows{
      {"ranks", [](const Candidate& c) { return std::to_string(c.placed.job.ranks.size()); }},
      {"mesh", [](const Candidate& c) { return mesh_text(c.placed.job); }},
      {"backend", [](const Candidate& c) { return c.placed.job.backend; }},
      {"rows a step, all ranks", [](const Candidate& c) { return str(c.update_rows()); }},
      {"sent a step", [](const Candidate& c) { return bytes_text(largest(c.costs, &RankCosts::sent)); }},
      {"messages a step", [](const Candidate& c) { return count_text(largest(c.costs, &RankCosts::messages)); }},
      {"parameters", [](const Candidate& c) { return bytes_text(largest(c.costs, &RankCosts::parameters)); }},
      {"gradients", [](const Candidate& c) { return bytes_text(largest(c.costs, &RankCosts::gradients)); }},
      {"moments", [](const Candidate& c) { return bytes_text(largest(c.costs, &RankCosts::moments)); }},
      {"activations", [](const Candidate& c) { return bytes_text(largest(c.costs, &RankCosts::activations)); }},
      {"buffers", [](const Candidate& c) { return bytes_text(largest(c.costs, &RankCosts::buffers)); }},
      {"memory", [](const Candidate& c) { return memory_text(largest_memory(c.costs)); }},
  };
  const auto misfit = [&](const Candidate& c) { return c.refused.empty() ? misfit_text(c, topology) : ""; };
  if (std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& c) { return !misfit(c).empty(); }))
    rows.emplace_back("fits", [&](const Candidate& c) {
      return !misfit(c).empty() ? "no" : largest_memory(c.costs).complete ? "yes" : "not measured";
    });
  if (std::any_of(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.prediction.has_value(); }))
    for (auto& row : prediction_rows()) rows.push_back(std::move(row));
  std::vector<std::vector<std::string>> lines{{"largest of all ranks"}};
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
  text += sparse_gains_text(candidates);
  for (const Candidate& candidate : candidates) {
    if (!candidate.refused.empty()) text += str(candidate.title, " is refused: ", candidate.refused, "\n");
    std::istringstream misfits(misfit(candidate));
    for (std::string line; std::getline(misfits, line);) text += str(candidate.title, " ", line, "\n");
    if (!candidate.note.empty()) text += str(candidate.title, " ", candidate.note, "\n");
    for (const std::string& warning : candidate.placed.warnings) text += str(candidate.title, ": ", warning, "\n");
    text += notes_of(candidate);
  }
  return text;
}

}  // namespace convoy
