#include "strategies/plans/options/ensemble.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/describe.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/data/catalogue/declared_schema.h"
#include "strategies/plans/options/devices.h"

namespace convoy {
namespace {

// One value per member: one for all, a list with one each, or {from, to} with even distances, logarithmic with
// `scale: log`. `least`: smallest valid value.
std::vector<double> spread(const Options& options, const std::string& name, int64_t members, double least) {
  const Json& value = options.at(name);
  std::vector<double> values;
  if (value.is_number()) {
    values.assign(size_t(members), value.get<double>());
  } else if (value.is_array()) {
    for (const Json& one : value) {
      if (!one.is_number()) options.fail(name, "must hold numbers, one for each member");
      values.push_back(one.get<double>());
    }
    if (int64_t(values.size()) != members)
      options.fail(name, "has ", values.size(), " values for ", members, " members; give one for each");
  } else if (value.is_object() && value.contains("from") && value.contains("to") && value["from"].is_number() &&
             value["to"].is_number()) {
    const std::string scale = value.contains("scale") && value["scale"].is_string() ? value["scale"] : Json("linear");
    for (const auto& [key, unused] : value.items())
      if (key != "from" && key != "to" && key != "scale")
        options.fail(name, "has a key '", key, "'; a range has from, to and scale (linear or log)");
    if (scale != "linear" && scale != "log") options.fail(name, "has scale ", scale, "; it is linear or log");
    const double from = value["from"].get<double>(), to = value["to"].get<double>();
    if (scale == "log" && (from <= 0 || to <= 0)) options.fail(name, "has scale log, and a bound that is not above 0");
    for (int64_t member = 0; member < members; ++member) {
      const double share = members > 1 ? double(member) / double(members - 1) : 0;
      values.push_back(scale == "log" ? from * std::pow(to / from, share) : from + (to - from) * share);
    }
  } else {
    options.fail(name, "must be a number, a list with one for each member, or {from: 1.0e-4, to: 1.0e-2, scale: log}");
  }
  constexpr double most = std::numeric_limits<float>::max();  // more would become infinite in a tensor of fp32
  for (double one : values)
    if (!(one >= least && one <= most))
      options.fail(name, "holds ", one, "; it must be at least ", least, " and at most 3.4e38");
  return values;
}

uint64_t seed_from(const Options& options, const Json& value) {
  const bool whole = value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0);
  if (!whole) options.fail("seed", "must hold whole numbers from 0 to 9223372036854775807");
  return value.get<uint64_t>();
}

std::vector<uint64_t> seeds(const Options& options, int64_t members, uint64_t of_run) {
  const Json& value = options.at("seed");
  std::vector<uint64_t> all;
  if (value.is_array()) {
    for (const Json& one : value) all.push_back(seed_from(options, one));
    if (int64_t(all.size()) != members)
      options.fail("seed", "has ", all.size(), " values for ", members, " members; give one for each");
    return all;
  }
  if (!value.is_null() && !value.is_number())
    options.fail("seed", "must be the first member's, from which the others count on, or a list with one for each");
  const uint64_t first = value.is_null() ? of_run : seed_from(options, value);
  for (int64_t member = 0; member < members; ++member) all.push_back(first + uint64_t(member));
  return all;
}

MemberSample draw_of(const Options& options, int64_t members) {
  const Json& value = options.at("samples");
  MemberSample sample;
  if (value == "all") return sample;
  if (value == "bootstrap") {
    sample.rows = MemberSample::Rows::bootstrap;
    return sample;
  }
  const bool one_key = value.is_object() && value.size() == 1;
  if (one_key && value.contains("subset") && value["subset"].is_number()) {
    sample.rows = MemberSample::Rows::subset;
    sample.fraction = value["subset"].get<double>();
    if (!(sample.fraction > 0 && sample.fraction <= 1))
      options.fail("samples", "has a subset of ", sample.fraction, " of the rows; it is above 0 and at most 1");
    return sample;
  }
  if (one_key && value.contains("folds") && value["folds"].is_number_integer()) {
    sample.rows = MemberSample::Rows::fold;
    sample.folds = value["folds"].get<int64_t>();
    if (sample.folds < 2) options.fail("samples", "has ", sample.folds, " folds; there are at least 2");
    if (sample.folds > members)
      options.fail("samples", "has ", sample.folds, " folds for ", members,
                   " members, so that some rows would be left out by none; take at most as many folds "
                   "as members");
    return sample;
  }
  if (value.is_array())
    options.fail("samples",
                 "is a list; all members draw their rows in one way, since a step takes as many of each: all, "
                 "bootstrap, {subset: 0.8} or {folds: 5}");
  options.fail("samples", "must be all, bootstrap, {subset: 0.8} or {folds: 5}");
}

// In the order of EnsembleMode and of Convolutions.
const std::vector<std::string> mode_names = {"stacked", "threads", "processes", "auto"};
const std::vector<std::string> convolution_names = {"auto", "grouped", "each"};

std::vector<int64_t> patience(const Options& stop, int64_t members) {
  std::vector<int64_t> all;
  for (double one : spread(stop, "patience", members, 0)) {
    if (one != std::floor(one)) stop.fail("patience", "holds ", one, "; it counts evaluations");
    if (one > double(most_steps)) stop.fail("patience", "holds ", one, "; for never, write 0");
    all.push_back(int64_t(one));
  }
  return all;
}

}  // namespace

EnsembleOptions ensemble_options(const Options& strategy) {
  EnsembleOptions options{step_options(strategy)};
  options.members = strategy.integer("members");
  options.how = static_cast<EnsembleMode>(index_in(mode_names, strategy.text("how")));
  options.convolutions = static_cast<Convolutions>(index_in(convolution_names, strategy.text("convolutions")));
  options.vote = strategy.boolean("vote");
  options.early_stop = strategy.section("early_stop");
  options.stop_metric = options.early_stop.text("metric");
  return options;
}

std::vector<MemberSample> samples_of(const Options& strategy) {
  const int64_t members = ensemble_options(strategy).members;
  std::vector<MemberSample> all(size_t(members), draw_of(strategy, members));
  for (size_t member = 0; member < all.size(); ++member) all[member].member = int64_t(member);
  return all;
}

void check_members(const Options& strategy) {
  const EnsembleOptions options = ensemble_options(strategy);
  const int64_t members = options.members;
  samples_of(strategy);
  seeds(strategy, members, 0);
  for (const char* name : {"lr", "weight_decay"})
    if (strategy.has(name)) spread(strategy, name, members, 0);
  patience(options.early_stop, members);
}

std::vector<MemberSettings> members_of(const RunConfig& config) {
  const Options& options = config.strategy.options;
  const EnsembleOptions typed = ensemble_options(options);
  const Options& data = config.data.options;
  if (member_sample(data, config.seed).rows != MemberSample::Rows::all)
    data.fail("samples", "is for a single model; strategy.samples chooses the rows of each member");
  const Options& optimizer = config.optimizer.options;
  const int64_t count = typed.members;
  const auto value_of_each = [&](const char* name, double least) {
    if (options.has(name)) return spread(options, name, count, least);
    return std::vector<double>(size_t(count), optimizer.real(name));
  };
  const std::vector<MemberSample> samples = samples_of(options);
  const std::vector<uint64_t> seed = seeds(options, count, config.seed);
  const std::vector<double> rate = value_of_each("lr", 0), decay = value_of_each("weight_decay", 0);
  const std::vector<int64_t> patient = patience(typed.early_stop, count);
  if (config.train.evaluate_every.unit == Interval::Unit::never &&
      std::any_of(patient.begin(), patient.end(), [](int64_t one) { return one > 0; }))
    typed.early_stop.fail("patience",
                          "counts evaluations, but train.evaluate_every is never; give one, such as 1 epoch");
  std::vector<MemberSettings> members;
  for (size_t i = 0; i < samples.size(); ++i) {
    MemberSettings member{int64_t(i), seed[i], rate[i], decay[i], patient[i], samples[i]};
    member.sample.seed = seed[i];
    members.push_back(member);
  }
  return members;
}

namespace {

// Returns overrides in the form of --set with which `config` trains only this member, with a strategy for one model.
std::vector<std::string> overrides_of(const RunConfig& config, const MemberSettings& member) {
  std::vector<std::string> overrides = {str("seed=", member.seed),
                                        str("optimizer.lr=", Json(member.learning_rate).dump()),
                                        str("optimizer.weight_decay=", Json(member.weight_decay).dump())};
  // Random draws of a data set do not depend on the member.
  if (config.data.options.has("seed"))
    overrides.push_back(str("data.seed=", data_seed(config.data.options, config.seed)));
  if (member.sample.rows != MemberSample::Rows::all)
    overrides.push_back("data.samples=" + samples_json(member.sample).dump());
  return overrides;
}

}  // namespace

std::pair<int64_t, int64_t> members_of_rank(int64_t members, int rank, int ranks) {
  const int64_t base = members / ranks, larger = members % ranks;
  const int64_t first = rank * base + std::min<int64_t>(rank, larger);
  return {first, first + base + (rank < larger ? 1 : 0)};
}

Component optimizer_of(const Component& optimizer, const MemberSettings& member) {
  Json values = optimizer.options.json();
  values["lr"] = member.learning_rate;
  values["weight_decay"] = member.weight_decay;
  return {optimizer.name, Options(std::move(values), optimizer.options.locations(), optimizer.options.path())};
}

std::vector<Option> ensemble_section_options() {
  return {
      describe::integer("members", "number of models of the same kind, trained at once", EnsembleOptions().members)
          .between(1, 100000),
      describe::choice(
          "how",
          "execution mode. stacked: one batched product per layer for all members of a rank; threads: stacks divided "
          "over threads of one process, one per core or GPU; processes: over processes; auto: threads if ranks may be "
          "threads of one host, else processes; members with convolutions run concurrently on CPUs",
          mode_names, "auto"),
      describe::any("samples", "all, bootstrap or map",
                    "rows that a member trains on: all, bootstrap (equally many, with replacement), {subset: f} "
                    "(a fraction f, without replacement), or {folds: k} (all except one of k folds)",
                    "all"),
      describe::any(
          "seed", "integer, or list of integers",
          "seed of member 0, by default the run's; member k has this seed + k. Or a list with one per member"),
      describe::any("lr", "list of numbers, or map",
                    "replaces optimizer.lr: a list with one for each member, or {from, to, scale: linear or log}"),
      describe::any("weight_decay", "list of numbers, or map",
                    "replaces optimizer.weight_decay: a list or a map as for lr"),
      describe::section(
          "early_stop", "ends a member that does not improve, and leaves the device to the others",
          {describe::any(
               "patience", "integer, or list of integers",
               "evaluations without improvement, for all members or a list with one each; 0: no early stopping", 0),
           describe::text("metric", "metric of the evaluation split that must improve", "loss")}),
      describe::boolean("vote", "evaluate the members' majority and mean too", EnsembleOptions().vote),
      describe::choice("convolutions",
                       "convolutions of a stack: grouped (one for all members), each (one after another), auto "
                       "(grouped on GPUs)",
                       convolution_names, "auto"),
      graph_option(),
  };
}

namespace {

std::vector<std::vector<std::string>> overrides_of_all(const RunConfig& config) {
  std::vector<std::vector<std::string>> overrides;
  for (const MemberSettings& member : members_of(config)) overrides.push_back(overrides_of(config, member));
  return overrides;
}

std::vector<std::string> modes_of(const RunConfig& config) {
  if (ensemble_options(config.strategy.options).how != EnsembleMode::automatic) return {};
  return {"stacked", "threads", "processes"};
}

std::string mode_of(const JobPlan& job) {
  if (job.ranks.size() == 1) return "stacked";
  return job.processes.size() == 1 ? "threads" : "processes";
}

bool watches_metric(const RunConfig& config) {
  const std::vector<MemberSettings> members = members_of(config);
  return std::any_of(members.begin(), members.end(), [](const MemberSettings& one) { return one.patience > 0; });
}

std::vector<std::string> metrics_of_member(const Options& strategy, const EvaluationMetrics& metrics) {
  return metrics.names(samples_of(strategy).front().rows == MemberSample::Rows::fold);
}

void check_stop_metric(const RunConfig& config, const EvaluationMetrics& metrics) {
  const Options& strategy = config.strategy.options;
  check_reported(config, "strategy.early_stop.metric", ensemble_options(strategy).stop_metric,
                 metrics_of_member(strategy, metrics), " of a member");
}

// Returns `names` and the metrics of the members' mean and majority.
std::vector<std::string> with_votes(std::vector<std::string> names, const EvaluationMetrics& metrics) {
  for (const std::string& name : metrics.evaluated) {
    names.push_back("mean_" + name);
    if (name != "loss") names.push_back("vote_" + name);
  }
  return names;
}

std::vector<std::string> metrics_of_run(const RunConfig& config, const EvaluationMetrics& metrics) {
  std::vector<std::string> names = metrics_of_member(config.strategy.options, metrics);
  return ensemble_options(config.strategy.options).vote ? with_votes(std::move(names), metrics) : names;
}

std::vector<std::string> possible_metrics(const EvaluationMetrics& metrics) {
  return with_votes(metrics.names(true), metrics);
}

}  // namespace

MemberFunctions ensemble_member_functions() {
  MemberFunctions members;
  members.overrides = overrides_of_all;
  members.mode_key = "how";
  members.modes = modes_of;
  members.mode = mode_of;
  members.watches_metric = watches_metric;
  members.check_metric = check_stop_metric;
  members.metrics = metrics_of_run;
  members.possible_metrics = possible_metrics;
  return members;
}

}  // namespace convoy
