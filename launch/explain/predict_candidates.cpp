#include "launch/explain/explain.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>

#include "core/base/text.h"
#include "launch/machine/topology.h"
#include "launch/text/text_table.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

constexpr double largest_error = 0.5;  // relative; with a larger error only a clear slowdown counts

double relative(const StepPrediction& step) { return step.seconds > 0 ? step.error / step.seconds : 0; }

// Plans count the few bytes of a norm or a flag as none.
std::string size_text(double bytes) { return bytes < 1 ? "" : " of " + human_bytes(bytes); }

std::string exchange_text(Exchange kind, double messages) {
  static const char* const texts[] = {"the all-reduce", "gathering", "the reduce-scatter", "sending"};
  return str(texts[static_cast<size_t>(kind)], kind == Exchange::all_reduce && messages > 1.5 ? "s" : "");
}

// The largest term of the step that does not shrink with the number of ranks.
std::string reason(const PredictedCandidate& candidate, const PredictedCandidate& reference) {
  const StepPrediction& step = candidate.step;
  const std::string of = " of a " + human_seconds(reference.step.seconds) + " step";
  const ExchangeTime* largest = nullptr;
  for (const ExchangeTime& exchange : step.exchanges)
    if (largest == nullptr || exchange.exposed > largest->exposed) largest = &exchange;
  // Share of the reference's computation and updates that each rank would have if they were divided evenly.
  const double even = candidate.rows / std::max(1.0, reference.rows) / std::max(1, candidate.ranks);
  const double computes_more = step.compute - reference.step.compute * even;
  const double updates_more = step.update - reference.step.update * even;
  const double most = std::max({step.exchange, step.idle, computes_more, updates_more});
  if (largest != nullptr && most == step.exchange)
    return str(exchange_text(largest->kind, largest->messages), size_text(largest->bytes),
               largest->kind == Exchange::all_reduce && largest->messages > 1.5 ? " take " : " takes ",
               human_seconds(largest->exposed), of);
  if (most == step.idle) return str("its ranks wait for each other for ", human_seconds(step.idle), of);
  if (most == updates_more) return str("every rank's update takes ", human_seconds(step.update), of);
  return str("a rank's share still computes for ", human_seconds(step.compute), of);
}

bool too_rough(const Estimate& speed) { return speed.error > speed.value; }

// `doubt`: text after the speed.
std::string described(const PredictedCandidate& candidate, const PredictedCandidate& reference,
                      const std::string& doubt = "") {
  const Estimate speed = speed_over(candidate, reference);
  if (too_rough(speed)) return candidate.name + " cannot be estimated (error above 100 %)";
  std::string text = str(candidate.name, " would be ", speed_text(speed.value), doubt);
  if (speed.value < 0.9 * candidate.ranks && candidate.ranks > 1) text += " because " + reason(candidate, reference);
  if (candidate.lower_frequency) {
    const PredictedCandidate rare{candidate.name, candidate.ranks, candidate.lower_frequency->rows,
                                  candidate.lower_frequency->step};
    const Estimate then = speed_over(rare, reference);
    if (then.value > 1.1 * speed.value)
      text += str("; sync.every ", candidate.lower_frequency->every, " would be ", speed_text(then.value),
                  ", which may cost quality (docs/strategies/synchronisation.md)");
  }
  return text;
}

constexpr const char* file_name = "calibration.json";
constexpr double measured_seconds = 4.4;  // the documented 5 s, minus the time to make data and model
constexpr double most_measured = 2e9;     // bytes of a model that a comparison makes without --calibrate
constexpr int lower_frequency = 8;        // steps per update, tried in addition to the configuration

constexpr const char* dense_rows = "model.rows=false";
constexpr int never = 1 << 20;  // steps per update, more than are measured: the measurement itself decides on updates

// Overrides for steps of the reference strategy without micro-batches, and with an update every `every` steps. Leaves
// out keys that this strategy does not have.
std::vector<std::string> whole_passes(int every) {
  std::vector<std::string> overrides;
  for (const Option& option : reference_strategy().options) {
    if (option.name == "sync") overrides.push_back(str("strategy.sync.every=", every));
    if (option.name == "micro_batches") overrides.emplace_back("strategy.micro_batches=1");
  }
  return overrides;
}

class CandidatePredictor {
 public:
  CandidatePredictor(const PredictionRequest& request, const PreparedRun& run, const Topology& topology)
      : request_(request), run_(run), topology_(topology), reference_(reference_on(topology)) {}

  std::string predict(std::vector<Candidate>& candidates) {
    std::string text = obtain(candidates);
    predict(reference_);
    std::vector<PredictedCandidate> predicted;
    for (Candidate& candidate : candidates) {
      if (!candidate.refused.empty()) continue;
      predict(candidate);
      if (!misfit_text(candidate, topology_).empty()) continue;  // no advice to take it
      predicted.push_back(predicted_candidate(candidate));
      if (candidate.placed.job.ranks.size() > 1) predicted.back().lower_frequency = at_lower_frequency(candidate);
    }
    const std::string advice = advice_text(predicted_candidate(reference_), predicted, calibration_.load);
    return text + (advice.empty() ? "" : "\n" + advice);
  }

 private:
  Candidate reference_on(const Topology& topology, const std::vector<std::string>& overrides = {}) const {
    Candidate candidate = candidate_under(run_, reference_strategy().name, topology, overrides);
    if (!candidate.refused.empty())
      throw Error(Failure::config, "step times need a run of ", candidate.strategy,
                  ", which is refused: ", candidate.refused);
    return candidate;
  }

  // Measures or reads the calibration; returns a line with its source.
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
      calibration_.dense_embeddings = std::make_shared<Calibration>(measured_for(dense, {dense_rows}, seconds));
    if (request_.keep) write_calibration(file_name, calibration_);
    return str("\ntimes: measured now on ", where(), load_text(), request_.keep ? str("; kept in ", file_name) : "",
               "\n");
  }

  Calibration measured_for(const std::vector<const Candidate*>& candidates,
                           const std::vector<std::string>& embedding_overrides, double seconds) const {
    const Host here = this_host({true, false});
    std::vector<std::string> overrides = whole_passes(never);
    overrides.insert(overrides.end(), embedding_overrides.begin(), embedding_overrides.end());
    const Candidate measured = reference_on(request_.here ? topology_ : Topology{{here}}, overrides);
    MeasurementRequest request = measurement_for(measured, reference_, candidates, here, request_.here);
    request.seconds = seconds;
    fit_into_memory(memory_of_process(request, here), measured, request);
    if (embedding_overrides.empty()) {
      request.alone_updated = updated_shares(request.alone_rows);
      request.together_updated = updated_shares(request.together_rows);
    }
    Json resolved = run_.config.resolved;
    if (!embedding_overrides.empty()) resolved["model"] = measured.run.config.resolved.at("model");
    const std::vector<int> units = hardware_threads_of(here.cores);
    const double before = load_now(units).value_or(0);
    const LoadWatch watch(units);
    const std::vector<Measurement> measured_now = measure(request, run_.rank_program, current_variables());
    const double load = std::max(before, watch.share().value_or(0));
    Calibration calibration = calibration_of(request, measured_now, here, resolved);
    calibration.load = load;
    return calibration;
  }

  // Bytes that each process of the measurement may use.
  static double memory_of_process(const MeasurementRequest& request, const Host& here) {
    const double ranks = std::max<double>(1, static_cast<double>(request.together.size()));
    int64_t memory = here.memory;
    if (request.alone.gpu >= 0) {
      memory = 0;
      for (const Gpu& gpu : here.gpus) memory = memory == 0 ? gpu.memory : std::min(memory, gpu.memory);
    }
    if (memory == 0) return std::numeric_limits<double>::infinity();
    return 0.8 * static_cast<double>(memory) / (request.alone.gpu >= 0 ? 1 : ranks);
  }

  // A large model is measured as a whole only if it fits, and with --calibrate or on a GPU. Otherwise one block of each
  // kind is measured, with two rows.
  void fit_into_memory(double available, const Candidate& measured, MeasurementRequest& request) const {
    const RankCosts& whole = measured.costs.front();
    const double bytes = memory_of(whole).bytes;
    const bool large = whole.parameters.value + whole.gradients.value + whole.moments.value > most_measured;
    const bool asked = request_.keep || request.alone.gpu >= 0;
    if (large && !(asked && bytes <= available))
      return sample_blocks(asked ? available : std::min(available, most_measured), measured, request);
    if (bytes > available)
      throw Error(Failure::out_of_memory, "a step needs ", human_bytes(bytes), " per rank, but this host has only ",
                  human_bytes(available), "; use a smaller train.batch, or --calibration FILE from a larger host");
  }

  void sample_blocks(double available, const Candidate& measured, MeasurementRequest& request) const {
    const auto model = measured.run.described.at("model").get<ModelDescription>();
    double bytes = 0;
    for (size_t i = 0; i < model.blocks.size(); ++i) {
      const BlockDescription& block = model.blocks[i];
      const bool repeated = i > 0 && equal_sizes(block, model.blocks[i - 1]);
      if (!repeated) {
        request.sampled.push_back({static_cast<int64_t>(i), {}, block.parameters});
        // Parameters, gradients and two moments; activations of two rows.
        bytes += static_cast<double>(4 * model.element_bytes * block.parameters + 2 * block.row_saved_bytes);
      }
      request.sampled.back().names.push_back(block.name);
    }
    if (bytes > available)
      throw Error(
          Failure::out_of_memory,
          request_.keep
              ? str("one block of each kind needs ", human_bytes(bytes), " per rank, but this host has only ",
                    human_bytes(available), "; measure with --calibrate on a larger host, and give its ", file_name,
                    " to --calibration here")
              : str("the model is too large for a quick measurement: one block of each kind needs ", human_bytes(bytes),
                    " per rank, but without --calibrate explain uses at most ", human_bytes(available),
                    "; add --calibrate here, or on a host with more memory and give its ", file_name,
                    " to --calibration here. Bytes sent and memory are exact without it"));
    request.alone_rows = {2, 1};
    if (!request.together.empty()) request.together_rows = {2, 1};
  }

  static bool equal_sizes(const BlockDescription& a, const BlockDescription& b) {
    return a.parameters == b.parameters && a.tensors == b.tensors && a.products == b.products &&
           a.row_saved_bytes == b.row_saved_bytes && a.row_output_bytes == b.row_output_bytes && a.tables.empty() &&
           b.tables.empty() && a.ties.empty() && b.ties.empty();
  }

  // Shares of the parameters that updates of the reference touch, by rows of a batch. Empty if an update of three
  // batches touches all.
  std::vector<UpdatedShare> updated_shares(const std::vector<int64_t>& rows) const {
    const auto share = [&](int64_t count, int batches) {
      std::vector<std::string> overrides = whole_passes(batches);
      overrides.push_back(str("train.batch={global: ", count, "}"));
      return costs_of(reference_on(topology_, overrides)).front().work.updated;
    };
    std::vector<UpdatedShare> shares;
    for (const int64_t count : rows) {
      shares.push_back({share(count, 1), share(count, 3)});
      if (shares.back().three >= 1) return {};
    }
    return shares;
  }

  // The system itself causes less than half a percent.
  std::string load_text() const {
    return calibration_.load < 0.005
               ? ", which was idle"
               : str("; other load took ", std::lround(100 * calibration_.load), " % of its cores");
  }

  static bool has_dense(const Candidate& candidate) { return candidate.embeddings == Candidate::Embeddings::dense; }

  std::string where() const {
    return str(calibration_.host, " (", calibration_.processor.empty() ? "" : calibration_.processor + ", ",
               counted(calibration_.cores, "core"), ")");
  }

  void predict(Candidate& candidate) const {
    if (has_dense(candidate) && !calibration_.dense_embeddings) {
      candidate.prediction.emplace();
      candidate.prediction->reason =
          str(request_.calibration,
              " has only times of sparse embeddings; --compare with --calibrate measures dense ones too");
      return;
    }
    const Calibration& calibration = has_dense(candidate) ? *calibration_.dense_embeddings : calibration_;
    candidate.prediction = widened(
        convoy::predict(candidate.placed.job, costs_of(candidate, &calibration), topology_, calibration, request_.link),
        std::max(calibration.load, calibration_.load));
  }

  static PredictedCandidate predicted_candidate(const Candidate& candidate) {
    return {candidate.title, static_cast<int>(candidate.placed.job.ranks.size()), candidate.update_rows(),
            *candidate.prediction};
  }

  // Empty if the strategy has no `sync.every`, or the configuration sets it.
  std::optional<PredictedCandidate::LowerFrequency> at_lower_frequency(const Candidate& candidate) const {
    const Options& section = candidate.placed.job.config.strategy.options;
    if (!section.has("sync") || section.section("sync").integer("every") != 1) return std::nullopt;
    Candidate rare =
        candidate_under(candidate.run, candidate.strategy, topology_, {str("strategy.sync.every=", lower_frequency)});
    if (!rare.refused.empty()) return std::nullopt;
    rare.embeddings = candidate.embeddings;
    predict(rare);
    if (!rare.prediction->reason.empty()) return std::nullopt;
    return PredictedCandidate::LowerFrequency{lower_frequency, rare.update_rows(), *rare.prediction};
  }

  const PredictionRequest& request_;
  const PreparedRun& run_;
  const Topology& topology_;
  Candidate reference_;
  Calibration calibration_;
};

}  // namespace

Estimate speed_over(const PredictedCandidate& candidate, const PredictedCandidate& reference) {
  if (candidate.step.seconds <= 0 || reference.step.seconds <= 0 || reference.rows <= 0) return {};
  const double speed = candidate.rows / candidate.step.seconds * reference.step.seconds / reference.rows;
  return {speed, speed * std::hypot(relative(candidate.step), relative(reference.step))};
}

std::string speed_text(double speed) {
  return formatted(speed >= 9.95 ? "%.0f×" : speed >= 0.095 ? "%.1f×" : "%.2f×", speed);
}

StepPrediction widened(StepPrediction step, double load) {
  // If others use a share f of the cores, 1 - f seconds of work take at most one second.
  constexpr double nearly_all = 0.95;
  const double share = std::min(std::max(0.0, load), nearly_all);
  step.error = std::hypot(step.error, step.seconds * share / (1 - share));
  return step;
}

std::string advice_text(const PredictedCandidate& reference, const std::vector<PredictedCandidate>& others,
                        double load) {
  if (!reference.step.reason.empty()) return "";
  std::vector<PredictedCandidate> known;
  for (const PredictedCandidate& one : others)
    if (one.step.reason.empty() && one.step.seconds > 0 &&
        !(one.name == reference.name && one.ranks == reference.ranks))
      known.push_back(one);
  if (known.empty()) return "";
  std::stable_sort(known.begin(), known.end(), [&](const PredictedCandidate& a, const PredictedCandidate& b) {
    const Estimate one = speed_over(a, reference), other = speed_over(b, reference);
    return std::make_pair(!too_rough(one), one.value) > std::make_pair(!too_rough(other), other.value);
  });
  const PredictedCandidate& best = known.front();
  const Estimate gain = speed_over(best, reference);
  std::vector<std::string> rest;
  const bool busy = load >= busy_machine;
  const bool unsure = busy || (gain.error > largest_error * gain.value && gain.value + 3 * gain.error > 1);
  for (size_t i = gain.value > 1 && !unsure ? 1 : 0; i < known.size(); ++i)
    rest.push_back(described(known[i], reference));
  const std::string load_text = str("other load took ", std::lround(100 * load), " % of the cores");
  if (too_rough(gain))
    return str("too uncertain to recommend anything: no speed relative to ", reference.name,
               " is known with an error below 100 %", busy ? "; " + load_text : "",
               "; measure again on an idle machine\n");
  std::string text;
  if (busy) {
    text = str("too uncertain to recommend anything (", load_text,
               "): measure again on an idle machine; as measured now, ");
  } else if (unsure) {
    text = str("too uncertain to recommend anything (± ", std::lround(100 * gain.error / gain.value),
               " %), perhaps because other load takes the cores: measure again on an idle machine; as measured now, ");
  } else if (gain.value <= 1) {
    text = "stay on one device: ";
  } else if (gain.value - gain.error <= 1) {
    const std::string doubt =
        str(" (within the prediction's error, ± ", std::lround(100 * gain.error / gain.value), " %)");
    text = str("stay on one device, or try both: ", described(best, reference, doubt), rest.empty() ? "" : "; ");
  } else {
    text = str("take ", best.name, best.ranks > 1 ? str(" on ", best.ranks, " ranks") : "", ": ",
               speed_text(gain.value), " of ", reference.name, " (± ", std::lround(100 * gain.error / gain.value),
               " %)", rest.empty() ? "" : "; ");
  }
  return text + join(rest, "; ") + "\n";
}

std::string predict_candidates(const PredictionRequest& request, const PreparedRun& run, const Topology& topology,
                               std::vector<Candidate>& candidates) {
  return CandidatePredictor(request, run, topology).predict(candidates);
}

}  // namespace convoy
