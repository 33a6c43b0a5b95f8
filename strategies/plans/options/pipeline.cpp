#include "strategies/plans/options/pipeline.h"

#include <cmath>
#include <map>
#include <set>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/options/data_axis.h"

namespace convoy {
namespace {

const std::vector<std::string> schedule_names = {"gpipe", "1f1b", "interleaved"};  // in the order of ScheduleKind

constexpr double loss_bytes = 16;  // sum and weight, as doubles
constexpr double norm_bytes = 24;  // squared norm of the gradient; number of slots and of losses that are not finite

// Bytes of one row at the boundary before a stage.
double boundary_bytes(const ModelDescription& model, const BlockRange& stage) {
  return stage.begin == 0 ? 0 : double(model.blocks[size_t(stage.begin - 1)].row_output_bytes);
}

// Ranks that hold a tied tensor, with their number of stages: a second stage of a rank has another gradient.
struct TieRanks {
  double elements = 0;
  std::map<int, int> stages;  // by rank
};
std::map<std::string, TieRanks> tie_ranks(const std::vector<int>& rank_of, const std::vector<BlockRange>& stages,
                                          const ModelDescription& model) {
  std::map<std::string, std::set<size_t>> held;
  std::map<std::string, TieRanks> holders;
  for (size_t block = 0; block < model.blocks.size(); ++block) {
    for (const TiedTensor& tie : model.blocks[block].ties) {
      held[tie.name].insert({stage_of(stages, tie.block), stage_of(stages, int64_t(block))});
      holders[tie.name].elements = double(tie.elements);
    }
  }
  for (const auto& [name, in] : held)
    for (const size_t stage : in) ++holders[name].stages[rank_of[stage]];
  return holders;
}

// Adds memory and messages of tied tensors that another stage owns.
void add_ties(const std::map<std::string, TieRanks>& ties, const std::map<std::string, int>& makers, double element,
              const PipelineShape& shape, int rank, RankCost& cost) {
  const auto every = double(shape.step.sync.every);
  for (const auto& [name, tie] : ties) {
    const auto here = tie.stages.find(rank);
    if (here == tie.stages.end()) continue;
    const double bytes = tie.elements * element;
    if (makers.at(name) != rank) {
      cost.parameter_bytes += bytes;
      cost.moment_bytes += bytes * shape.moments;
      cost.gradient_bytes += bytes;
    }
    cost.gradient_bytes += bytes * (here->second - 1);
    const auto holders = double(tie.stages.size());
    if (holders < 2) continue;
    cost.bytes_sent_per_step += 2 * (holders - 1) / holders * bytes / shape.tie_shares / every;
    cost.messages_per_step += 1 / every;
  }
}

}  // namespace

std::vector<Option> pipeline_section_options() {
  Option virtual_stages =
      describe::integer("virtual",
                        "virtual stages per rank, round robin; auto: two for schedule interleaved, one for "
                        "the others",
                        "auto")
          .between(1, 10000)  // limits the number of stages, also with the most ranks
          .in("stages")
          .or_auto();
  return {
      describe::choice("schedule",
                       "order in which stages work on micro-batches. gpipe: all forwards first; 1f1b: each backward as "
                       "early as possible; interleaved: 1f1b with several stages per rank",
                       schedule_names, "1f1b"),
      stages_option(), virtual_stages};
}

Option pipeline_micro_batches_option() {
  return micro_batches_option("flow through the stages and make one update; more of them reduce the bubble", 4);
}

PipelineOptions pipeline_options(const Options& strategy) {
  PipelineOptions options;
  options.section = strategy;
  options.schedule = static_cast<ScheduleKind>(index_in(schedule_names, strategy.text("schedule")));
  options.auto_virtual = strategy.is_auto("virtual");
  if (!options.auto_virtual)
    options.virtual_stages = int(strategy.integer("virtual"));
  else if (options.schedule == ScheduleKind::interleaved)
    options.virtual_stages = 2;
  if (!strategy.is_auto("stages")) options.stages = strategy.texts("stages");
  return options;
}

std::vector<BlockRange> job_stages(const JobPlan& job, const ModelDescription& model) {
  const PipelineOptions options = pipeline_options(job.config.strategy.options);
  return stage_ranges(options, job.mesh.degree("pipeline") * options.virtual_stages, model);
}

int listed_ranks(const PipelineOptions& options) {
  const auto stages = int64_t(listed_stages(options).size());
  const int virtual_stages = options.virtual_stages;
  if (stages % virtual_stages != 0)
    options.section.fail("stages", "has ", stages, " items, which ", virtual_stages, " stages a rank do not divide");
  return int(stages / virtual_stages);
}

void check_pipeline(const PipelineOptions& options, int ranks) {
  const int virtual_stages = options.virtual_stages;
  if (virtual_stages > 1 && options.schedule != ScheduleKind::interleaved)
    options.section.fail("virtual", "is ", virtual_stages, ", and schedule ", schedule_names[size_t(options.schedule)],
                         " has one stage a rank; set schedule: interleaved");
  const int listed = listed_ranks(options);
  if (listed > 0 && listed != ranks)
    options.section.fail("stages", "has ", listed * virtual_stages, " items, but there are ", ranks * virtual_stages,
                         " stages: ", ranks, ranks == 1 ? " rank" : " ranks", " of ", virtual_stages);
}

PipelineShape pipeline_shape(const JobPlan& job) {
  const Options& options = job.config.strategy.options;
  PipelineShape shape;
  shape.options = pipeline_options(options);
  shape.ranks = job.mesh.degree("pipeline");
  shape.step = step_options(options);
  shape.rows = rows_per_rank(job.config, job.mesh.degree("data"));
  shape.moments = moments_of(job.config);
  return shape;
}

namespace {

// Costs of one pipeline. Values that all ranks share are computed once: the schedule of 1,024 stages has 100,000
// actions.
class PipelineCosts {
 public:
  PipelineCosts(const PipelineShape& shape, const std::vector<BlockRange>& stages, const ModelDescription& model)
      : shape_(shape),
        stages_(stages),
        model_(model),
        element_(double(model.element_bytes)),
        elements_(parameters_of(model)),
        micro_batches_(int(shape.step.micro_batches)),
        schedule_(schedule_of(shape.options.schedule, shape.ranks, shape.options.virtual_stages, micro_batches_)),
        ties_(tie_ranks(schedule_.rank_of, stages, model)) {
    durations_.of_stage = shape.stage_time;
    if (durations_.of_stage.empty()) durations_.of_stage = stage_times(model, stages, 1);
    span_ = examine(schedule_, micro_batches_, durations_).span / (durations_.forward + durations_.backward);
    for (const BlockDescription& block : model.blocks)
      for (const TiedTensor& tie : block.ties) makers_[tie.name] = schedule_.rank_of[stage_of(stages, tie.block)];
  }

  RankCost of(int rank) const {
    const double micro_rows = std::ceil(shape_.rows / micro_batches_);
    const auto every = double(shape_.step.sync.every);
    RankCost cost;
    cost.work.passes = micro_batches_;
    cost.work.rows = micro_rows;
    cost.work.updates = 1 / every;
    cost.work.span = span_;
    cost.work.cut = shape_.tensor > 1;
    const double received = add_stages(rank, cost);
    cost.work.updated = elements_ > 0 ? cost.parameter_bytes / element_ / elements_ : 1;
    if (cost.messages_per_step > 0)
      cost.axes.push_back(
          {"pipeline", cost.bytes_sent_per_step, cost.messages_per_step, Exchange::send, 1 - 1.0 / micro_batches_});
    cost.gradient_bytes = cost.parameter_bytes;
    cost.moment_bytes = cost.parameter_bytes * shape_.moments;
    cost.owned_bytes = cost.parameter_bytes + cost.moment_bytes + cost.buffer_bytes;
    // Activations between forward and backward, and the inputs of two more micro-batches that are being received.
    constexpr double ahead = 2;
    cost.activation_bytes = kept_activations(rank) + micro_rows * ahead * received;
    const double bytes_before = cost.bytes_sent_per_step, messages_before = cost.messages_per_step;
    add_ties(ties_, makers_, element_, shape_, rank, cost);
    const double others = shape_.ranks - 1;
    if (others > 0) {
      cost.bytes_sent_per_step += 2 * others / shape_.ranks * norm_bytes / every;
      if (rank == shape_.ranks - 1) cost.bytes_sent_per_step += others * loss_bytes / every;
      cost.messages_per_step += 2 / every;
      cost.axes.push_back(
          {"pipeline", cost.bytes_sent_per_step - bytes_before, cost.messages_per_step - messages_before});
    }
    return cost;
  }

 private:
  // Adds the rank's stages and what they send; returns bytes of one row at the boundaries before them.
  double add_stages(int rank, RankCost& cost) const {
    const std::vector<int>& rank_of = schedule_.rank_of;
    double received = 0;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (rank_of[stage] != rank) continue;
      for (int64_t block = stages_[stage].begin; block < stages_[stage].end; ++block) {
        const BlockDescription& described = model_.blocks[size_t(block)];
        cost.parameter_bytes += double(described.parameters) * element_;
        cost.buffer_bytes += double(described.buffers) * element_;
      }
      cost.work.busy += micro_batches_ * durations_.of_stage[stage];
      received += boundary_bytes(model_, stages_[stage]) / shape_.options.virtual_stages;
      // Gradients go to the rank before, activations to the rank after.
      const bool from_other = stage > 0 && rank_of[stage - 1] != rank;
      const bool to_other = stage + 1 < stages_.size() && rank_of[stage + 1] != rank;
      if (from_other) cost.bytes_sent_per_step += shape_.rows * boundary_bytes(model_, stages_[stage]);
      if (to_other) cost.bytes_sent_per_step += shape_.rows * boundary_bytes(model_, stages_[stage + 1]);
      cost.messages_per_step += micro_batches_ * ((from_other ? 1 : 0) + (to_other ? 1 : 0));
    }
    return received;
  }

  double kept_activations(int rank) const {
    std::map<std::pair<int, double>, KeptBytes> known;  // by stage and rows: micro-batches have at most two sizes
    return most_held(schedule_.actions[size_t(rank)], [&](const Action& action) {
      const double rows = rows_of_micro_batch(shape_.rows, action.micro, micro_batches_);
      const auto [found, fresh] = known.try_emplace({action.stage, rows});
      if (fresh) {
        const BlockRange& stage = stages_[size_t(action.stage)];
        found->second = kept_bytes(shape_.step.recompute, model_, stage.begin, stage.end, rows);
      }
      return found->second;
    });
  }

  const PipelineShape& shape_;
  const std::vector<BlockRange>& stages_;
  const ModelDescription& model_;
  const double element_, elements_;  // bytes of an element; parameters of the model
  const int micro_batches_;
  const StepSchedule schedule_;
  const std::map<std::string, TieRanks> ties_;
  std::map<std::string, int> makers_;  // rank that owns each tied tensor
  Durations durations_;
  double span_ = 0;  // in passes of the whole model on one rank
};

}  // namespace

std::vector<RankCost> pipeline_costs(const PipelineShape& shape, const std::vector<BlockRange>& stages,
                                     const ModelDescription& model) {
  const PipelineCosts costs(shape, stages, model);
  std::vector<RankCost> all;
  for (int rank = 0; rank < shape.ranks; ++rank) all.push_back(costs.of(rank));
  return all;
}

std::string pipeline_text(const JobPlan& job, const ModelDescription& model) {
  const PipelineOptions options = pipeline_options(job.config.strategy.options);
  const int ranks = job.mesh.degree("pipeline");
  std::vector<std::vector<int>> ranks_at(static_cast<size_t>(ranks));  // by index along the axis
  for (int rank = 0; rank < job.mesh.size(); ++rank)
    ranks_at[size_t(job.mesh.coordinate(rank, "pipeline"))].push_back(rank);
  std::vector<std::string> names;
  for (const std::vector<int>& some : ranks_at) names.push_back(named_ranks(some));
  const auto micro = int(step_options(options.section).micro_batches);
  const StepSchedule steps = schedule_of(options.schedule, ranks, options.virtual_stages, micro);
  const std::vector<BlockRange> stages = job_stages(job, model);
  const double idle = 100 * examine(steps, micro).bubble;
  std::vector<std::string> holders;
  for (const int index : steps.rank_of) holders.push_back(names[size_t(index)]);
  return str(stages_text(stages, holders, model), schedule_names[size_t(options.schedule)], ", ", micro,
             " micro-batches (F1.0: forward of stage 1, micro-batch 0; B: backward):\n", to_text(steps, names),
             "idle: ", std::lround(idle), " % of the ranks' time, where a backward takes as long as two forwards\n");
}

}  // namespace convoy
