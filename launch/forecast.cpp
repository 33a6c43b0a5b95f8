#include "launch/forecast.h"

#include <algorithm>

#include "launch/calibration_run.h"
#include "launch/explain_advice.h"
#include "launch/topology.h"
#include "strategies/catalogue.h"

namespace convoy {
namespace {

constexpr const char* file_name = "calibration.json";
constexpr int rarely = 8;  // steps an update, as what is tried beside the configured

// For measuring, an update happens when it is asked for, and a pass is a whole one.
const std::vector<std::string> measured_overrides{"strategy.sync.every=1000000000", "strategy.micro_batches=1"};

class Forecast {
 public:
  Forecast(const ForecastRequest& request, const PreparedRun& run, const Topology& topology)
      : request_(request), run_(run), topology_(topology), reference_(reference_on(topology)) {}

  std::string predict(std::vector<Candidate>& candidates) {
    std::string text = obtain(candidates);
    predict(reference_);
    std::vector<Contender> contenders;
    for (Candidate& candidate : candidates) {
      if (!candidate.refused.empty()) continue;
      predict(candidate);
      contenders.push_back(contender(candidate));
      if (candidate.placed.job.ranks.size() > 1) contenders.back().rarely = less_often(candidate);
    }
    const std::string advice = advice_text(contender(reference_), contenders);
    return text + (advice.empty() ? "" : "\n" + advice);
  }

 private:
  Candidate reference_on(const Topology& topology, const std::vector<std::string>& overrides = {}) const {
    Candidate candidate = candidate_under(run_, reference_strategy().name, topology, overrides);
    if (!candidate.refused.empty())
      throw Error(Failure::config,
                  str("nothing to hold times against: ", candidate.strategy, " is refused: ", candidate.refused));
    return candidate;
  }

  // Measures or reads; returns a line that says which.
  std::string obtain(const std::vector<Candidate>& candidates) {
    if (!request_.calibrate) {
      calibration_ = read_calibration(request_.calibration);
      check_calibration(calibration_, run_.config.resolved, request_.calibration);
      return str("\ntimes: from ", request_.calibration, ", measured on ", where(), ", ", calibration_.made, "\n");
    }
    const Host here = this_host({true, false});
    const Candidate measured = reference_on(request_.here ? topology_ : Topology{{here}}, measured_overrides);
    std::vector<const Candidate*> planned;
    for (const Candidate& candidate : candidates)
      if (candidate.refused.empty()) planned.push_back(&candidate);
    const MeasurementRequest request = measurement_for(measured, reference_, planned, here, request_.here);
    calibration_ =
        calibration_of(request, measure(request, run_.rank_program, current_variables()), here, run_.config.resolved);
    write_calibration(file_name, calibration_);
    return str("\ntimes: measured now on ", where(), "; kept in ", file_name, "\n");
  }

  std::string where() const {
    return str(calibration_.host, " (", calibration_.processor.empty() ? "" : calibration_.processor + ", ",
               calibration_.cores, calibration_.cores == 1 ? " core)" : " cores)");
  }

  void predict(Candidate& candidate) const {
    candidate.prediction = convoy::predict(candidate.placed.job, costs_of(candidate, &calibration_), topology_,
                                           calibration_, request_.link);
  }

  static Contender contender(const Candidate& candidate) {
    return {candidate.strategy, static_cast<int>(candidate.placed.job.ranks.size()), candidate.update_rows(),
            *candidate.prediction};
  }

  // The same with rarer updates, where its section knows them and none were asked for.
  std::optional<Contender::Rarely> less_often(const Candidate& candidate) const {
    const Json& section = candidate.placed.job.config.at("strategy");
    if (!section.contains("sync") || section["sync"].value("every", 1) != 1) return std::nullopt;
    Candidate rare = candidate_under(run_, candidate.strategy, topology_, {str("strategy.sync.every=", rarely)});
    if (!rare.refused.empty()) return std::nullopt;
    predict(rare);
    if (!rare.prediction->reason.empty()) return std::nullopt;
    return Contender::Rarely{rarely, rare.update_rows(), *rare.prediction};
  }

  const ForecastRequest& request_;
  const PreparedRun& run_;
  const Topology& topology_;
  Candidate reference_;
  Calibration calibration_;
};

}  // namespace

std::string forecast(const ForecastRequest& request, const PreparedRun& run, const Topology& topology,
                     std::vector<Candidate>& candidates) {
  return Forecast(request, run, topology).predict(candidates);
}

}  // namespace convoy
