#include "strategies/parts/stages/pipeline_entry.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/describe.h"
#include "core/units.h"
#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/stages/schedule.h"

namespace convoy {
namespace {

constexpr double loss_bytes = 16;  // sum and weight, as doubles
constexpr double norm_bytes = 24;  // of the gradient; how much of it and how many losses are not finite

// Of one row, in front of a stage.
double boundary_bytes(const Description& model, const BlockRange& stage) {
  return stage.begin == 0 ? 0
                          : static_cast<double>(model.blocks[static_cast<size_t>(stage.begin - 1)].row_output_bytes);
}

// Ranks that hold each tensor that is tied over stages, and how often: a second stage of a rank has a gradient of its own.
struct TieHolders {
  double elements = 0;
  std::map<int, int> stages;  // by rank
};
std::map<std::string, TieHolders> tie_holders(const std::vector<int>& rank_of, const std::vector<BlockRange>& stages,
                                              const Description& model) {
  const auto stage_of = [&](int64_t block) {
    size_t stage = 0;
    while (block >= stages[stage].end) ++stage;
    return stage;
  };
  std::map<std::string, std::set<size_t>> held;
  std::map<std::string, TieHolders> holders;
  for (size_t block = 0; block < model.blocks.size(); ++block) {
    for (const TiedTensor& tie : model.blocks[block].ties) {
      held[tie.name].insert({stage_of(tie.block), stage_of(static_cast<int64_t>(block))});
      holders[tie.name].elements = static_cast<double>(tie.elements);
    }
  }
  for (const auto& [name, in] : held)
    for (const size_t stage : in) ++holders[name].stages[rank_of[stage]];
  return holders;
}

// What the rank holds of ties whose owner is another stage, and what it sends for them at an update.
void add_ties(const std::map<std::string, TieHolders>& ties, const std::map<std::string, int>& makers, double element,
              const PipelineShape& shape, int rank, RankCost& cost) {
  const auto every = static_cast<double>(shape.every);
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
    const auto holders = static_cast<double>(tie.stages.size());
    if (holders < 2) continue;
    cost.bytes_sent_per_step += 2 * (holders - 1) / holders * bytes / shape.tie_shares / every;
    cost.messages_per_step += 1 / every;
  }
}

}  // namespace

std::vector<Option> pipeline_section_options() {
  Option chunks = describe::integer("virtual",
                                    "stages of each rank, round robin; auto: two for schedule interleaved, one for the "
                                    "others",
                                    "auto")
                      .at_least(1)
                      .at_most(10000)  // so that, with the most ranks there are, stages can be counted
                      .in("stages");
  chunks.also_auto = true;
  return {describe::choice("schedule",
                           "in which order stages work on micro-batches: all forwards first, backwards as soon as they "
                           "can, or that with several stages a rank",
                           {"gpipe", "1f1b", "interleaved"}, "1f1b"),
          stages_option(), chunks};
}

Option pipeline_micro_batches_option() {
  return describe::integer("micro_batches",
                           "slices of each global batch that go through the stages one behind the other and make one "
                           "update; more of them leave ranks less idle",
                           4)
      .at_least(1)
      .at_most(1 << 20)
      .in("slices");
}

int64_t chunks_of(const Options& section) {
  if (!section.is_auto("virtual")) return section.integer("virtual");
  return section.text("schedule") == "interleaved" ? 2 : 1;
}

int listed_ranks(const Options& section) {
  const auto stages = static_cast<int64_t>(listed_stages(section).size());
  const int64_t chunks = chunks_of(section);
  if (stages % chunks != 0)
    section.fail("stages", str("has ", stages, " items, which ", chunks, " stages a rank do not divide"));
  return static_cast<int>(stages / chunks);
}

void check_pipeline(const Options& section, int ranks) {
  const int64_t chunks = chunks_of(section);
  if (chunks > 1 && section.text("schedule") != "interleaved")
    section.fail("virtual", str("is ", chunks, ", and schedule ", section.text("schedule"),
                                " has one stage a rank; take schedule interleaved"));
  const int listed = listed_ranks(section);
  if (listed > 0 && listed != ranks)
    section.fail("stages", str("has ", listed * chunks, " items, and there are ", ranks * chunks, " stages: ", ranks,
                               ranks == 1 ? " rank" : " ranks", " of ", chunks));
}

PipelineShape pipeline_shape(const Job& job) {
  const Options options(job.config.at("strategy"));
  PipelineShape shape;
  shape.schedule = options.text("schedule");
  shape.strategy = job.config.at("strategy");
  shape.ranks = job.mesh.degree("pipeline");
  shape.chunks = static_cast<int>(chunks_of(options));
  shape.micro_batches = static_cast<int>(options.integer("micro_batches"));
  shape.every = options.section("sync").integer("every");
  shape.rows = rows_per_rank(job.config, job.mesh.degree("data"));
  shape.moments = moments_of(job.config);
  return shape;
}

RankCost pipeline_cost(const PipelineShape& shape, const std::vector<BlockRange>& stages, const Description& model,
                       int rank) {
  const auto element = static_cast<double>(model.element_bytes);
  const std::vector<int> rank_of = round_robin(shape.ranks, shape.chunks);
  const StepSchedule schedule = schedule_named(shape.schedule, shape.ranks, shape.chunks, shape.micro_batches);
  Durations durations;
  durations.of_stage = shape.stage_time;
  if (durations.of_stage.empty()) durations.of_stage = stage_times(model, stages, 1);
  const ScheduleReport report = examine(schedule, shape.micro_batches, durations);
  const double micro_rows = std::ceil(shape.rows / shape.micro_batches);
  const auto every = static_cast<double>(shape.every);
  RankCost cost;
  cost.work.passes = shape.micro_batches;
  cost.work.rows = micro_rows;
  cost.work.updates = 1 / every;
  cost.work.span = report.span / (durations.forward + durations.backward);
  cost.work.cut = shape.tensor > 1;
  double received = 0, elements = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (rank_of[stage] != rank) continue;
    for (int64_t block = stages[stage].begin; block < stages[stage].end; ++block) {
      const BlockDescription& described = model.blocks[static_cast<size_t>(block)];
      cost.parameter_bytes += static_cast<double>(described.parameters) * element;
      cost.buffer_bytes += static_cast<double>(described.buffers) * element;
    }
    cost.work.own += shape.micro_batches * durations.of_stage[stage];
    received += boundary_bytes(model, stages[stage]) / shape.chunks;
    // Gradients go to the rank before, activations to the one behind.
    const bool from_other = stage > 0 && rank_of[stage - 1] != rank;
    const bool to_other = stage + 1 < stages.size() && rank_of[stage + 1] != rank;
    if (from_other) cost.bytes_sent_per_step += shape.rows * boundary_bytes(model, stages[stage]);
    if (to_other) cost.bytes_sent_per_step += shape.rows * boundary_bytes(model, stages[stage + 1]);
    cost.messages_per_step += shape.micro_batches * ((from_other ? 1 : 0) + (to_other ? 1 : 0));
  }
  for (const BlockDescription& block : model.blocks) elements += static_cast<double>(block.parameters);
  cost.work.updated = elements > 0 ? cost.parameter_bytes / element / elements : 1;
  if (cost.messages_per_step > 0)
    cost.axes.push_back(
        {"pipeline", cost.bytes_sent_per_step, cost.messages_per_step, Exchange::send, 1 - 1.0 / shape.micro_batches});
  cost.gradient_bytes = cost.parameter_bytes;
  cost.moment_bytes = cost.parameter_bytes * shape.moments;
  // What backward keeps of stages and micro-batches between their forwards and backwards, and the inputs of two more that are
  // on their way.
  constexpr double ahead = 2;
  const auto held = [&](const Action& action) -> StageBytes {
    const BlockRange& stage = stages[static_cast<size_t>(action.stage)];
    const double rows = rows_of_slice(shape.rows, action.micro, shape.micro_batches);
    const KeptBytes bytes = kept_bytes(shape.strategy, model, stage.begin, stage.end, rows);
    return {bytes.kept, bytes.largest};
  };
  cost.activation_bytes = most_held(schedule.actions[static_cast<size_t>(rank)], held) + micro_rows * ahead * received;
  const double bytes_before = cost.bytes_sent_per_step, messages_before = cost.messages_per_step;
  const auto ties = tie_holders(rank_of, stages, model);
  std::map<std::string, int> makers;
  for (const BlockDescription& block : model.blocks)
    for (const TiedTensor& tie : block.ties)
      for (size_t stage = 0; stage < stages.size(); ++stage)
        if (tie.block >= stages[stage].begin && tie.block < stages[stage].end) makers[tie.name] = rank_of[stage];
  add_ties(ties, makers, element, shape, rank, cost);
  const double others = shape.ranks - 1;
  if (others > 0) {
    cost.bytes_sent_per_step += 2 * others / shape.ranks * norm_bytes / every;
    if (rank == shape.ranks - 1) cost.bytes_sent_per_step += others * loss_bytes / every;
    cost.messages_per_step += 2 / every;
    cost.axes.push_back(
        {"pipeline", cost.bytes_sent_per_step - bytes_before, cost.messages_per_step - messages_before});
  }
  return cost;
}

std::string pipeline_text(const Job& job, const Description& model) {
  const Options section(job.config.at("strategy"));
  const int ranks = job.mesh.degree("pipeline");
  std::vector<std::string> names;  // by place along the axis
  for (int place = 0; place < ranks; ++place) {
    std::vector<int> there;
    for (int rank = 0; rank < job.mesh.size(); ++rank)
      if (job.mesh.coordinate(rank, "pipeline") == place) there.push_back(rank);
    names.push_back((there.size() == 1 ? "rank " : "ranks ") + ranks_text(there));
  }
  const std::string& name = section.text("schedule");
  const int chunks = static_cast<int>(chunks_of(section));
  const auto micro = static_cast<int>(section.integer("micro_batches"));
  const StepSchedule steps = schedule_named(name, ranks, chunks, micro);
  const std::vector<BlockRange> stages = stage_ranges(section, ranks * chunks, model);
  const double idle = 100 * examine(steps, micro).bubble;
  std::vector<std::string> holders;
  for (const int place : steps.rank_of) holders.push_back(names[static_cast<size_t>(place)]);
  return str(stages_text(stages, holders, model), name, ", ", micro,
             " micro-batches (F2.0: forward of stage 2, micro-batch 0; B: backward):\n", to_text(steps, names),
             "idle: ", std::lround(idle), " % of the ranks' time, where a backward takes as long as two forwards\n");
}

}  // namespace convoy
