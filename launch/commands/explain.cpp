#include "launch/commands/explain.h"

#include <optional>
#include <ostream>
#include <set>

#include "launch/candidate.h"
#include "launch/explain_report.h"
#include "launch/forecast.h"
#include "launch/hosts.h"
#include "launch/topology.h"
#include "strategies/catalogue.h"

namespace convoy {
namespace {

void check_names(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const StrategyEntry& entry : strategy_catalogue()) known.push_back(entry.name);
  const std::set<std::string> all(known.begin(), known.end());
  for (const std::string& name : names) {
    if (all.count(name) != 0) continue;
    const std::string near = nearest(name, known);
    throw Error(Failure::command_line,
                str("--compare: there is no strategy '", name, "'; ",
                    near.empty() ? "there are " + join(known, ", ") : "did you mean " + near + "?"));
  }
}

std::string source_of(const ExplainArguments& arguments) {
  const std::string kind = arguments.topology.empty() ? "this machine" : "the machine in " + arguments.topology;
  return arguments.hosts.empty() ? kind + (arguments.topology.empty() ? " is" : "")
                                 : str("if each of them were ", arguments.topology.empty() ? "like " : "", kind);
}

// Each that has row tables is followed by itself with tables that are kept in other ways.
std::vector<Candidate> with_other_tables(const std::vector<Candidate>& candidates, const Topology& topology) {
  std::vector<Candidate> all;
  for (const Candidate& candidate : candidates) {
    all.push_back(candidate);
    for (Candidate& other : table_variants(candidate, topology)) all.push_back(std::move(other));
  }
  return all;
}

// A comparison asks for times, but where nobody can tell what it would take to measure them it does without.
std::string measured_or_not(const ForecastRequest& request, const PreparedRun& run, const Topology& topology,
                            std::vector<Candidate>& candidates) {
  try {
    return forecast(request, run, topology, candidates);
  } catch (const Error& error) {
    if (error.kind() == Failure::stopped) throw;
    for (Candidate& candidate : candidates) candidate.prediction.reset();
    return str("\ntimes: none were measured: ", error.what(), "\n");
  }
}

}  // namespace

Topology hosts_to_explain(const ExplainArguments& arguments, const Host& each) {
  if (arguments.hosts.empty()) return {{each}};
  Topology topology;
  for (const HostShare& host : host_shares(arguments.hosts)) {
    topology.hosts.push_back(each);
    topology.hosts.back().name = host.name;
  }
  return topology;
}

void explain(const ExplainArguments& arguments, std::ostream& out) {
  check_names(arguments.compare);
  const std::optional<Link> link =
      arguments.link.empty() ? std::nullopt : std::optional<Link>(parse_link(arguments.link));
  const Host each = arguments.topology.empty() ? this_host({true, false}) : saved_host(arguments.topology);
  const Topology topology = hosts_to_explain(arguments, each);
  RunArguments wanted = arguments.run;
  wanted.hosts = arguments.hosts;
  const PreparedRun run = described_run(wanted);
  std::vector<Candidate> candidates;
  for (const std::string& name : arguments.compare) candidates.push_back(candidate_under(run, name, topology));
  if (candidates.empty()) candidates.push_back(configured_candidate(run, topology));
  if (!arguments.compare.empty()) candidates = with_other_tables(candidates, topology);
  const bool here = arguments.topology.empty() && arguments.hosts.empty();
  const ForecastRequest request{arguments.calibration, link, here, arguments.calibrate};
  std::string advice;
  if (arguments.calibrate || !arguments.calibration.empty())
    advice = forecast(request, run, topology, candidates);
  else if (!arguments.compare.empty() && here && !arguments.no_times)
    advice = measured_or_not(request, run, topology, candidates);
  else if (!arguments.compare.empty())
    advice = str("\ntimes: not asked for; --calibrate measures them", here ? "" : " on this host",
                 ", --calibration FILE takes those of before\n");
  out << (arguments.compare.empty() ? explained(candidates.front(), topology, source_of(arguments))
                                    : compared(candidates));
  out << advice;
}

}  // namespace convoy
