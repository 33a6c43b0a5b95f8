#include "launch/rank/rank.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/components.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/checkpoint/initial_weights.h"
#include "core/config/run_config.h"
#include "core/context.h"
#include "core/control/assignment.h"
#include "core/control/channel.h"
#include "core/control/exit_codes.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/dataset.h"
#include "core/data/loader.h"
#include "core/data/readers/column_cache.h"
#include "core/data/sampler.h"
#include "core/data/sets/interactions.h"
#include "core/files/limits.h"
#include "core/inject/injector.h"
#include "core/rank_state/position.h"
#include "core/strategy.h"
#include "core/trainer.h"
#include "launch/rank/measure/bench.h"
#include "launch/rank/use/use.h"
#include "models/registry.h"
#include "strategies/registry.h"

namespace convoy {
namespace {

// The training, or the measurement, of one rank.
class RankTraining {
 public:
  // `kept`: state for the training that continues if a peer is lost; null: it ends.
  RankTraining(Rank& rank, const ProcessAssignment& assignment, const Registry& registry, const Components& trained,
               KeptTraining* kept)
      : rank_(rank), assignment_(assignment), registry_(registry), trained_(trained), kept_(kept) {}

  // Returns 0 or an exit code. Failures have been reported, except lost_peer().
  int run() {
    try {
      Context context = rank_.start(registry_);
      if (!assignment_.bench.is_null())
        rank_.end(context, run_bench(context, assignment_.bench));
      else if (!assignment_.use.is_null())
        rank_.end(context, use_run(context));
      else
        return train_rank(context);
      return 0;
    } catch (...) {
      const TranslatedException failure = translate_exception(Failure::training);
      if (kept_ == nullptr || failure.kind != Failure::peer_lost) return rank_.fail(failure);
      lost_peer_ = failure;
      return exit_code_of(failure.kind);
    }
  }

  const std::optional<TranslatedException>& lost_peer() const { return lost_peer_; }

 private:
  TrainingResult use_run(const Context& context) {
    UseContext use(context, assignment_.use, registry_, trained_, rank_.injector());
    const Json result = make_use(assignment_.use.at("command"))->run(use);
    return {false, {{"use", result}}, Json::object()};
  }

  int train_rank(Context& context) {
    const RunConfig& config = context.config;
    const std::shared_ptr<Injector> injector = rank_.injector();
    context.state->phase(building_phase);
    std::unique_ptr<Strategy> strategy = registry_.strategies.make(config.strategy.name, config.strategy.options);
    TrainingComponents components{trained_.data, trained_.transforms, strategy.get()};
    components.shares_device = rank_.shares_gpu();
    components.kept = kept_;
    const std::optional<int64_t> uneven = uneven_rows_here(strategy->sampling(), context);
    if (uneven) components.train_rows = *uneven;
    const int64_t rows = rows_per_epoch(strategy->sampling(), config, rows_to_train_on(components));
    const TrainingLength length = training_length(config.train, rows, context.mesh.degree("data"));
    context.steps_per_epoch = length.steps_per_epoch;
    context.total_steps = length.total_steps;

    const std::string loss_fault = loss_fault_here(context, length);
    strategy->setup(context, injector->decorate(trained_.model), trained_.loss);
    components.initial_values = [&] {
      load_initial_weights(context, *strategy, weight_names(config.model.name, config.model.options));
    };
    if (!injector->idle()) {
      components.reached = [&injector](InjectPoint point, int64_t number) { injector->reached(point, number); };
      components.files = &injector->decorate(uncached_files());
    }
    std::optional<Snapshots> snapshots;
    if (!assignment_.snapshots.is_null()) {
      snapshots.emplace(context, *strategy, assignment_.snapshots);
      snapshots->note_loss_fault(loss_fault);
      const int64_t shares = assignment_.snapshots.at("shares").get<int64_t>();
      if (!uneven && !has_uneven_batch(rows, length.global_rows, length.total_steps, shares))
        snapshots->note_no_uneven_batch();
      components.after_update = [&](int64_t steps_done) { snapshots->take(steps_done); };
    }
    const TrainingResult result = train(context, components);
    rank_.end(context, result);
    return result.stopped ? exit_code_of(Failure::stopped) : 0;
  }

  // `convoy verify` limits the rows so that one global batch has uneven shares, if possible.
  std::optional<int64_t> uneven_rows_here(const Sampling& sampling, const Context& context) const {
    if (assignment_.snapshots.is_null()) return std::nullopt;
    const RunConfig& config = assignment_.job.config;
    const int64_t rows = trained_.data->size(Split::train);
    const MemberSample sample = row_sample_of(sampling, config);
    const int64_t global_rows = training_length(config.train, rows, context.mesh.degree("data")).global_rows;
    return uneven_rows(sample, rows, global_rows, config.train.max_steps, assignment_.snapshots.at("shares"));
  }

  // Returns why the loss of `convoy verify` is no sum over rows; "" if it is. The reference run checks this for every
  // strategy, because a mean is wrong with uneven batches of one rank too.
  std::string loss_fault_here(const Context& context, const TrainingLength& length) const {
    const Json& request = assignment_.snapshots;
    if (request.is_null() || request.at("reference") != "") return "";
    const RunConfig& config = context.config;
    const Sampler sampler(trained_.data->size(Split::train), length.global_rows,
                          member_sample(config.data.options, config.seed));
    LoaderOptions options = LoaderOptions::from(config.data.options, config.seed);
    options.device = context.devices.front();
    Loader loader(trained_.data, trained_.transforms, sampler, 0, 1, options);
    return loss_fault(context, trained_.model, trained_.loss, *loader.next(), request.at("splits").get<bool>());
  }

  Rank& rank_;
  const ProcessAssignment& assignment_;
  const Registry& registry_;
  const Components& trained_;  // empty in a job that does not train
  KeptTraining* const kept_;
  std::optional<TranslatedException> lost_peer_;
};

// Creates the components, with one check of the data for all processes of the job.
Components make_checked_components(const ProcessAssignment& assignment, const Registry& registry, Channel& channel) {
  const RunConfig& config = assignment.job.config;
  const bool first = assignment.job.processes[static_cast<size_t>(assignment.process)].ranks.front() == 0;
  const DataCheck check{config,
                        assignment.folder,
                        assignment.process,
                        static_cast<int>(assignment.job.processes.size()),
                        first,
                        host_name(),
                        &channel,
                        assignment.data,
                        assignment.use.is_null()};
  return make_components(config, registry, [&](const DatasetPtr& data) { return check_data(data, check); });
}

// Returns the first exit code of a failure in this process that is not a lost peer, else the first code that is not 0.
int worst_of(const std::vector<int>& codes) {
  int worst = 0;
  for (int code : codes)
    if (code != 0 && (worst == 0 || worst == protocol::peer_lost_exit)) worst = code;
  return worst;
}

// Largest number of parameters for a real measurement, if fake tensors are not supported.
constexpr int64_t most_real_parameters = 1 << 26;

void measure(const Components& components, const RunConfig& config, MeasuredTensors tensors,
             ModelDescription& description) {
  constexpr int64_t rows = 2;
  Batch batch = components.data->gather_once(Split::train, at::arange(rows), 0);
  batch.global_rows = batch.nominal_rows = rows;
  measure_activations(config, components.model, components.loss, batch, description, tensors);
  const bool tables = std::any_of(description.blocks.begin(), description.blocks.end(),
                                  [](const BlockDescription& block) { return !block.tables.empty(); });
  if (tables) measure_lookups(config, components.model, components.loss, *components.data, description, tensors);
}

// Recommends a full ranking where its scores cost at most three epochs of training. A training instance counts as three
// scores: forward, and twice that backward.
std::string ranking_advice(const Dataset& data, const RunConfig& config) {
  constexpr double cheap = 3, scores_per_instance = 3;
  const Interactions* all = data.interactions();
  const Options& options = config.data.options;
  if (all == nullptr || !options.has("candidates") || options.text("ranking") != "sampled" ||
      data.size(Split::evaluate) == 0)
    return "";
  // `data` may have fewer rows: synthetic data is described with few.
  const int64_t trained = options.has("rows") ? options.integer("rows") : data.size(Split::train);
  const double epochs = double(all->users) * double(all->items) /
                        (scores_per_instance * double(trained) * double(data.instances_per_row()));
  if (epochs > cheap) return "";
  const double most = std::max(0.1, std::round(epochs * 10) / 10);
  return str("evaluation ranks ", options.integer("candidates"), " drawn candidates. Ranking all ", all->items,
             " items costs at most as much as ", most, most == 1 ? " epoch" : " epochs",
             " of training, and its metrics order models correctly: data.ranking=full");
}

}  // namespace

DescribedBlocks describe_blocks(const RunConfig& config, const Registry& registry, bool activations) {
  const Components components = make_components(config, registry);
  const ModelDescription counted = describe_model(*components.model, config.precision);
  const std::string advice = ranking_advice(*components.data, config);
  if (!activations) return {counted, "", advice};
  at::set_num_threads(1);
  DescribedBlocks described{counted, "", advice};
  try {
    measure(components, config, MeasuredTensors::fake, described.model);
    return described;
  } catch (const std::exception& error) {
    described = {counted, error.what(), advice};
  }
  int64_t parameters = 0;
  for (const BlockDescription& block : counted.blocks) parameters += block.parameters;
  if (parameters > most_real_parameters) return described;
  measure(components, config, MeasuredTensors::real, described.model);
  return {described.model, "", advice};
}

namespace {

// Continues with the ranks that are left each time that a peer is lost.
int run_rank_without_lost_peers(RankProcess& process, const Registry& registry, const Components& trained) {
  KeptTraining kept;
  while (true) {
    std::optional<TranslatedException> lost;
    {
      const FileProgress progress(process.opened());
      RankTraining training(*process.ranks().front(), process.assignment(), registry, trained, &kept);
      const int code = training.run();
      if (!training.lost_peer()) return code;
      lost = training.lost_peer();
    }
    if (!process.join_next())
      return process.ranks().empty() ? exit_code_of(lost->kind) : process.ranks().front()->fail(*lost);
    if (!process.assignment().in_memory) kept.clear();
  }
}

}  // namespace

int run_ranks(RankProcess& process, const Registry& registry) {
  const ProcessAssignment& assignment = process.assignment();
  process.open(reading_phase);
  std::optional<FileProgress> progress(process.opened());
  const CacheLockLimit limit(assignment.job.config.launch.rendezvous / 2);
  Components trained;
  const bool reads_data = assignment.use.is_null() || assignment.use.at("reads_data").get<bool>();
  if (assignment.bench.is_null() && reads_data)
    trained = make_checked_components(assignment, registry, process.channel());

  if (continues_without_lost_ranks(assignment)) {
    progress.reset();  // its files belong to ranks of one membership
    return run_rank_without_lost_peers(process, registry, trained);
  }
  const std::vector<std::unique_ptr<Rank>>& ranks = process.ranks();
  std::vector<int> codes(ranks.size(), 0);
  auto run = [&](size_t i) { codes[i] = RankTraining(*ranks[i], assignment, registry, trained, nullptr).run(); };
  // The first rank runs in the main thread, which MPI and debuggers prefer.
  std::vector<std::thread> threads;
  for (size_t i = 1; i < ranks.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return worst_of(codes);
}

}  // namespace convoy
