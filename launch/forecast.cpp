#include "launch/forecast.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>

#include "core/text.h"
#include "launch/calibration_run.h"
#include "launch/core_pool.h"
#include "launch/explain_advice.h"
#include "launch/machine_load.h"
#include "launch/topology.h"
#include "strategies/catalogue.h"

namespace convoy {
namespace {

constexpr const char* file_name = "calibration.json";
constexpr double measured_seconds = 4.4;  // of the five that are promised; making data and model comes before
constexpr double most_measured = 2e9;     // bytes of a model that a comparison makes without being asked to
constexpr int rarely = 8;                 // steps an update, as what is tried beside the configured

// For measuring, an update happens when it is asked for, and a pass is a whole one.
const char* const dense_rows = "model.rows=false";
const std::vector<std::string> measured_overrides{"strategy.sync.every=1048576", "strategy.micro_batches=1"};

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
    const std::string advice = advice_text(contender(reference_), contenders, calibration_.load);
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
    if (!request_.calibration.empty()) {
      calibration_ = read_calibration(request_.calibration);
      check_calibration(calibration_, run_.config.resolved, request_.calibration);
      return str("\ntimes: from ", request_.calibration, ", measured on ", where(), ", ", calibration_.made,
                 load_text(), "\n");
    }
    std::vector<const Candidate*> planned, dense;
    for (const Candidate& candidate : candidates)
      if (candidate.refused.empty()) (has_dense(candidate) ? dense : planned).push_back(&candidate);
    const double seconds = dense.empty() ? measured_seconds : measured_seconds / 2;
    std::cerr << "convoy: measuring one rank's step and the backend, for some seconds\n";
    calibration_ = measured_for(planned, {}, seconds);
    if (!dense.empty())
      calibration_.dense_tables = std::make_shared<Calibration>(measured_for(dense, {dense_rows}, seconds));
    if (request_.keep) write_calibration(file_name, calibration_);
    return str("\ntimes: measured now on ", where(), load_text(), request_.keep ? str("; kept in ", file_name) : "",
               "\n");
  }

  Calibration measured_for(const std::vector<const Candidate*>& candidates, const std::vector<std::string>& tables,
                           double seconds) const {
    const Host here = this_host({true, false});
    std::vector<std::string> overrides = measured_overrides;
    overrides.insert(overrides.end(), tables.begin(), tables.end());
    const Candidate measured = reference_on(request_.here ? topology_ : Topology{{here}}, overrides);
    MeasurementRequest request = measurement_for(measured, reference_, candidates, here, request_.here);
    request.seconds = seconds;
    fit_into(room_for_each(request, here), measured, request);
    if (tables.empty()) {
      request.alone_updated = updated_shares(request.alone_rows);
      request.together_updated = updated_shares(request.together_rows);
    }
    Json resolved = run_.config.resolved;
    if (!tables.empty()) resolved["model"] = measured.run.config.resolved.at("model");
    const std::vector<int> units = units_of(here.cores);
    const double before = load_now(units).value_or(0);
    const LoadWatch watch(units);
    const std::vector<Measurement> measured_now = measure(request, run_.rank_program, current_variables());
    const double load = std::max(before, watch.share().value_or(0));
    Calibration calibration = calibration_of(request, measured_now, here, resolved);
    calibration.load = load;
    return calibration;
  }

  // Bytes that each process of the measurement has.
  static double room_for_each(const MeasurementRequest& request, const Host& here) {
    const double ranks = std::max<double>(1, static_cast<double>(request.together.size()));
    int64_t memory = here.memory;
    if (request.alone.gpu >= 0) {
      memory = 0;
      for (const Gpu& gpu : here.gpus) memory = memory == 0 ? gpu.memory : std::min(memory, gpu.memory);
    }
    if (memory == 0) return std::numeric_limits<double>::infinity();
    return 0.8 * static_cast<double>(memory) / (request.alone.gpu >= 0 ? 1 : ranks);
  }

  // A large model is measured whole only where that was asked for and fits. Else one of several equal blocks is, with
  // two rows.
  void fit_into(double room, const Candidate& measured, MeasurementRequest& request) const {
    const RankFigures& whole = measured.figures.front();
    const double bytes = memory_of(whole).bytes;
    const bool large = whole.parameters.value + whole.gradients.value + whole.moments.value > most_measured;
    const bool asked = request_.keep || request.alone.gpu >= 0;
    if (large && !(asked && bytes <= room))
      return sample(asked ? room : std::min(room, most_measured), measured, request);
    if (bytes > room)
      throw Error(Failure::out_of_memory,
                  str("a step takes ", human_bytes(bytes), " a rank, and there are ", human_bytes(room),
                      " for it; take fewer rows a batch, or read --calibration FILE of a larger host"));
  }

  void sample(double room, const Candidate& measured, MeasurementRequest& request) const {
    const Description model = description_from_json(measured.run.described.at("model"));
    double bytes = 0;
    for (size_t i = 0; i < model.blocks.size(); ++i) {
      const BlockDescription& block = model.blocks[i];
      const bool again = i > 0 && equal_sizes(block, model.blocks[i - 1]);
      if (!again) {
        request.sampled.push_back({static_cast<int64_t>(i), {}, block.parameters});
        // Parameters, gradients and two moments; activations of two rows.
        bytes += static_cast<double>(4 * model.element_bytes * block.parameters + 2 * block.row_saved_bytes);
      }
      request.sampled.back().names.push_back(block.name);
    }
    if (bytes > room)
      throw Error(Failure::out_of_memory,
                  str("one of each of its unlike blocks takes ", human_bytes(bytes), " a rank, and there are ",
                      human_bytes(room), " for it; ",
                      request_.keep ? "type --calibrate on a larger host and read that file by --calibration, or "
                                      "explain a narrower model of as many blocks"
                                    : "--calibrate measures with all memory of this host; elsewhere it writes a file "
                                      "that --calibration reads here. What is sent and kept is exact without"));
    request.alone_rows = {2, 1};
    if (!request.together.empty()) request.together_rows = {2, 1};
  }

  static bool equal_sizes(const BlockDescription& a, const BlockDescription& b) {
    return a.parameters == b.parameters && a.tensors == b.tensors && a.products == b.products &&
           a.row_saved_bytes == b.row_saved_bytes && a.row_output_bytes == b.row_output_bytes && a.tables.empty() &&
           b.tables.empty() && a.ties.empty() && b.ties.empty();
  }

  // Of the reference, by rows of a batch; empty where it updates all parameters whatever they are.
  std::vector<UpdatedShare> updated_shares(const std::vector<int64_t>& rows) const {
    const auto share = [&](int64_t count, int batches) {
      const Candidate one =
          reference_on(topology_, {str("train.batch={global: ", count, "}"), str("strategy.sync.every=", batches)});
      return costs_of(one).front().work.updated;
    };
    std::vector<UpdatedShare> shares;
    for (const int64_t count : rows) {
      shares.push_back({share(count, 1), share(count, 3)});
      if (shares.back().three >= 1) return {};
    }
    return shares;
  }

  // Under half a percent it is what the system itself does.
  std::string load_text() const {
    return calibration_.load < 0.005
               ? ", which was idle"
               : str("; other work took ", std::lround(100 * calibration_.load), " % of its cores");
  }

  static bool has_dense(const Candidate& candidate) { return candidate.tables == Candidate::Tables::dense; }

  std::string where() const {
    return str(calibration_.host, " (", calibration_.processor.empty() ? "" : calibration_.processor + ", ",
               calibration_.cores, calibration_.cores == 1 ? " core)" : " cores)");
  }

  void predict(Candidate& candidate) const {
    if (has_dense(candidate) && !calibration_.dense_tables) {
      candidate.prediction.emplace();
      candidate.prediction->reason = str(
          request_.calibration, " has times of row tables alone; --compare with --calibrate measures dense ones too");
      return;
    }
    const Calibration& calibration = has_dense(candidate) ? *calibration_.dense_tables : calibration_;
    candidate.prediction = widened(
        convoy::predict(candidate.placed.job, costs_of(candidate, &calibration), topology_, calibration, request_.link),
        std::max(calibration.load, calibration_.load));
  }

  static Contender contender(const Candidate& candidate) {
    return {candidate.title, static_cast<int>(candidate.placed.job.ranks.size()), candidate.update_rows(),
            *candidate.prediction};
  }

  // The same with rarer updates, where its section knows them and none were asked for.
  std::optional<Contender::Rarely> less_often(const Candidate& candidate) const {
    const Json& section = candidate.placed.job.config.at("strategy");
    if (!section.contains("sync") || section["sync"].value("every", 1) != 1) return std::nullopt;
    Candidate rare =
        candidate_under(candidate.run, candidate.strategy, topology_, {str("strategy.sync.every=", rarely)});
    if (!rare.refused.empty()) return std::nullopt;
    rare.tables = candidate.tables;
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
