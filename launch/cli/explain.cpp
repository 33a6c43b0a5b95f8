#include "launch/cli/commands.h"

#include <ostream>
#include <set>

#include "core/files/output_file.h"
#include "launch/explain/candidate.h"
#include "launch/explain/explain.h"
#include "launch/machine/host_lists.h"
#include "launch/machine/topology.h"
#include "launch/prepare/describe.h"

namespace convoy {
namespace {

void check_names(const std::vector<std::string>& names) {
  const std::vector<std::string> known = all_catalogues().names("strategy");
  const std::set<std::string> all(known.begin(), known.end());
  for (const std::string& name : names) {
    if (all.count(name) != 0) continue;
    const std::string near = nearest(name, known);
    throw Error(Failure::command_line, "--compare: unknown strategy '", name, "'; ",
                near.empty() ? "valid are " + join(known, ", ") : "did you mean " + near + "?");
  }
}

std::string source_of(const ExplainArguments& arguments) {
  const std::string kind = arguments.topology.empty() ? "this machine" : "the machine in " + arguments.topology;
  return arguments.hosts.empty() ? kind + (arguments.topology.empty() ? " is" : "")
                                 : str("if each of them were ", arguments.topology.empty() ? "like " : "", kind);
}

// Adds variants of each candidate with sparse embeddings, in which the tables are stored differently.
std::vector<Candidate> with_other_embeddings(const std::vector<Candidate>& candidates, const Topology& topology) {
  std::vector<Candidate> all;
  for (const Candidate& candidate : candidates) {
    all.push_back(candidate);
    for (Candidate& other : embedding_variants(candidate, topology)) all.push_back(std::move(other));
  }
  return all;
}

// Predicts step times for a comparison; continues without them if they cannot be measured.
std::string measured_or_not(const PredictionRequest& request, const PreparedRun& run, const Topology& topology,
                            std::vector<Candidate>& candidates) {
  try {
    return predict_candidates(request, run, topology, candidates);
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
  if (!arguments.topology.empty())
    check_input_path(arguments.topology, "--topology",
                     "make the file with `lstopo --of xml machine.xml` on the machine that it describes");
  if (!arguments.calibration.empty())
    check_input_path(arguments.calibration, "--calibration", "make the file with --calibrate");
  const std::optional<HostLink> link =
      arguments.link.empty() ? std::nullopt : std::optional<HostLink>(parse_link(arguments.link));
  const Host each = arguments.topology.empty() ? this_host({true, false}) : saved_host(arguments.topology);
  const Topology topology = hosts_to_explain(arguments, each);
  RunArguments wanted = arguments.run;
  wanted.hosts = arguments.hosts;
  const PreparedRun run = described_run(wanted);
  std::vector<Candidate> candidates;
  for (const std::string& name : arguments.compare) candidates.push_back(candidate_under(run, name, topology));
  if (candidates.empty()) candidates.push_back(configured_candidate(run, topology));
  if (!arguments.compare.empty()) candidates = with_other_embeddings(candidates, topology);
  const bool here = arguments.topology.empty() && arguments.hosts.empty();
  const PredictionRequest request{arguments.calibration, link, here, arguments.calibrate};
  std::string advice;
  if (arguments.calibrate || !arguments.calibration.empty())
    advice = predict_candidates(request, run, topology, candidates);
  else if (!arguments.compare.empty() && here && !arguments.no_times)
    advice = measured_or_not(request, run, topology, candidates);
  else if (!arguments.compare.empty())
    advice = str("\ntimes: not measured; --calibrate measures them", here ? "" : " on this host",
                 ", --calibration FILE reads an earlier measurement\n");
  out << (arguments.compare.empty() ? explained(candidates.front(), topology, source_of(arguments))
                                    : compared(candidates, topology));
  out << advice;
}

}  // namespace convoy
