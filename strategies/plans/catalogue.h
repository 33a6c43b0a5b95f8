// Strategies without LibTorch: options, placement of ranks, and costs of a step.
//
// A new strategy X needs its name in CONVOY_STRATEGIES, X_entry() in strategies/plans/X.cpp, and make_X() in
// strategies/X.cpp (docs/extending.md).
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/job_plan.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {

// Tensor of an earlier block that this block uses too.
struct TiedTensor {
  std::string name;   // canonical
  int64_t block = 0;  // block that created it
  int64_t elements = 0;
};
CONVOY_JSON(TiedTensor, name, block, elements)
// Linear layer that uses a shard of its inputs but is tied to a tensor that is sharded by outputs or rows.
struct TieConflict {
  std::string layer, tensor;  // canonical
};
CONVOY_JSON(TieConflict, layer, tensor)
// Size of a layer that the number of ranks of a tensor group must divide, in each of `parts` fused products.
struct ShardSize {
  std::string layer;  // canonical
  int64_t size = 0;
  int64_t parts = 1;
  bool outputs = true;  // size of the outputs; otherwise of the inputs
};
CONVOY_JSON(ShardSize, layer, size, parts, outputs)
// Embedding that stays dense because a layer is tied to it. Without the tie it would be sparse, or sparse if large.
struct TiedEmbedding {
  std::string name;    // canonical name of its weight
  std::string user;    // the tied layer
  bool asked = false;  // the model requests a sparse embedding of any size
};
CONVOY_JSON(TiedEmbedding, name, user, asked)
// Sizes of one block of a model, measured by `convoy-rank --describe`. 0: not measured.
struct BlockDescription {
  std::string name;
  int64_t parameters = 0;        // elements
  int64_t buffers = 0;           // elements
  double row_flops = 0;          // floating-point operations of forward, per row
  int64_t row_output_bytes = 0;  // bytes passed to the next block, per row
  int64_t row_saved_bytes = 0;   // bytes kept for backward, per row; saved_bytes does not depend on rows
  int64_t products = 0;          // elements of the parameters that multiply activations
  std::vector<TiedTensor> ties{};
  std::vector<TieConflict> tie_conflicts{};
  // Sizes of layers that a tensor group shards (linear layers with a hint, embeddings):
  int64_t cut_parameters = 0;        // elements, included in `parameters`
  int64_t row_cut_input_bytes = 0;   // inputs of column-parallel layers that need gradients, per row
  int64_t row_cut_output_bytes = 0;  // outputs of row-parallel layers and embeddings, per row
  int64_t row_cut_saved_bytes = 0;   // part of row_saved_bytes between column- and row-parallel layers, per row
  int64_t cut_exchanges = 0;         // messages per micro-batch, forward and backward
  std::vector<ShardSize> cuts{};     // sizes of the column- and row-parallel layers
  int64_t row_working_bytes = 0;     // peak of its backward in addition to what is kept, per row
  int64_t working_bytes = 0;         // the same, independent of rows (a gradient that must be copied)
  int64_t tensors = 0;               // number of parameters
  int64_t product_parameters = 0;    // elements of parameters that only multiply activations
  int64_t product_tensors = 0;       // number of those parameters
  int64_t convolutions = 0;          // layers from Layers
  int64_t norms = 0;                 // batch norm layers from Layers, which a data axis may synchronise
  int64_t norm_channels = 0;         // their total number of channels
  // Foreign modules with statistics that depend on a rank's rows.
  std::vector<std::string> foreign_norms{};
  std::vector<std::string> tracking_norms{};  // foreign instance norms with running statistics
  std::vector<TableSize> tables{};            // parameters that may have sparse gradients
  std::vector<TiedEmbedding> tied_tables{};
  double time = 0;  // share of the time of a step's forwards, from a calibration; not in the JSON
  std::vector<std::pair<std::string, int64_t>> named{};  // its parameters: canonical name, elements
  int64_t saved_bytes = 0;             // kept for each backward, independent of rows: half-precision copies of weights
  int64_t cut_product_parameters = 0;  // elements, included in `cut_parameters` and `product_parameters`
  // An output that is no sequence [rows, positions, features], of a block with sharded layers that receives sequences:
  // their length, then the output's dimensions after the rows. Empty: none. Sequence parallelism refuses it, because it
  // would be computed from a rank's positions only.
  std::vector<int64_t> flat_sequences{};
};
CONVOY_JSON(BlockDescription, name, parameters, buffers, row_working_bytes, working_bytes, tensors, product_parameters,
            product_tensors, cut_product_parameters, flat_sequences, row_flops, row_output_bytes, row_saved_bytes,
            saved_bytes, cut_parameters, row_cut_input_bytes, row_cut_output_bytes, row_cut_saved_bytes, cut_exchanges,
            products, convolutions, norms, norm_channels, foreign_norms, tracking_norms, tables, tied_tables, cuts,
            tie_conflicts, named, ties)
struct ModelDescription {
  std::vector<BlockDescription> blocks;
  int64_t element_bytes = 4;
  bool measured = false;  // a step measured it: then 0 means none; otherwise 0 means not measured
};
CONVOY_JSON(ModelDescription, element_bytes, measured, blocks)

// Kinds of communication in a cost. name_of returns their names in files.
enum class Exchange {
  all_reduce,
  gather,   // all-gather
  scatter,  // reduce-scatter
  send      // point-to-point with a neighbour, the same bytes in both directions
};
const char* name_of(Exchange kind);
Exchange exchange_named(const std::string& name);  // Error(config) for another name

// Data that a rank sends along one mesh axis in a step with one kind of exchange. An axis may have several kinds.
struct AxisCost {
  std::string axis;
  double bytes = 0;
  double messages = 0;
  Exchange kind = Exchange::all_reduce;
  double overlapped = 0;             // share that may overlap with computation
  bool run_chooses_overlap = false;  // on cores the run measures whether overlap is faster
};
// Work of a rank in a step. Predictions of its time use it.
struct RankWork {
  double rows = 0;    // per pass, forward and backward
  double passes = 0;  // per step
  // Time of a step's passes, with waits for other ranks, ÷ time of one pass through the whole model.
  double span = 0;
  double busy = 0;     // the same without waits
  double updates = 1;  // per step
  double updated = 1;  // share of the model's parameters that this rank updates
  // True if the rank has a shard of every layer, so fixed costs per operation are not divided.
  bool cut = false;
};
// Cost of one rank by the strategy's formulas.
struct RankCost {
  double bytes_sent_per_step = 0;
  double messages_per_step = 0;
  double parameter_bytes = 0, gradient_bytes = 0, moment_bytes = 0, buffer_bytes = 0, activation_bytes = 0;
  // Parameters, moments and buffers that this rank writes in a checkpoint. A save in the background copies them into
  // host memory first (train.checkpoint_async).
  double owned_bytes = 0;
  // Bytes and messages by axis and kind. Empty: everything is sent along the only axis of the mesh.
  std::vector<AxisCost> axes = {};
  RankWork work = {};

  void add(const AxisCost& axis) {
    bytes_sent_per_step += axis.bytes;
    messages_per_step += axis.messages;
    axes.push_back(axis);
  }
};

// Metrics of evaluations of one model. Only the model and the data determine them. So `convoy-rank --describe metrics`
// lists them, and convoy refuses an unknown metric in the configuration before training.
struct EvaluationMetrics {
  std::vector<std::string> evaluated;  // metrics of the evaluation split; empty: it has no rows
  std::vector<std::string> held_out;   // metrics of training rows; empty: they cannot be evaluated

  // Returns the names that evaluations report. `folds`: training holds out a fold of the rows.
  std::vector<std::string> names(bool folds) const;
};
CONVOY_JSON(EvaluationMetrics, evaluated, held_out)

// Functions of a strategy that trains several models at once, the members. All are null for other strategies. `modes`,
// `mode` and `mode_key` are set together, and so are `watches_metric` and `check_metric`.
struct MemberFunctions {
  // Returns overrides in the form of --set, one list for each member. They turn the configuration into a run of the
  // reference strategy for that member.
  std::function<std::vector<std::vector<std::string>>(const RunConfig&)> overrides;

  // Execution modes divide one run differently, with the same results up to rounding. If the configuration leaves the
  // mode open, `plan` chooses it.
  std::string mode_key = {};  // key of the mode in the strategy's section
  // Returns the modes to choose from; empty: the configuration fixes the mode. `plan` decides if a mode is possible.
  std::function<std::vector<std::string>(const RunConfig&)> modes;
  std::function<std::string(const JobPlan&)> mode;  // returns the mode of a planned job

  // True if a metric ends single members. Throws ConfigError if the section contradicts itself.
  std::function<bool(const RunConfig&)> watches_metric;
  // Throws ConfigError at the key of that metric if no evaluation of a member reports it.
  std::function<void(const RunConfig&, const EvaluationMetrics&)> check_metric;
  // Returns the metrics that evaluations of the whole run report.
  std::function<std::vector<std::string>(const RunConfig&, const EvaluationMetrics&)> metrics;
  // Returns the metrics that they report with any options of the strategy.
  std::function<std::vector<std::string>(const EvaluationMetrics&)> possible_metrics;
};

struct StrategyEntry : Entry {
  // Throws ConfigError with the reason.
  std::function<Plan(const RunConfig&, const Topology&, const PlanRequest&)> plan;
  std::function<std::vector<RankCost>(const JobPlan&, const ModelDescription&)> cost;
  // Checks of a plan that need the model's blocks. Runs before any rank starts; throws ConfigError, returns warnings.
  // Null: none.
  std::function<std::vector<std::string>(const JobPlan&, const ModelDescription&)> check;
  // Returns lines for people: actions of ranks or devices in a step, in order. Null or "": all ranks do the same.
  std::function<std::string(const JobPlan&, const ModelDescription&)> report;
  bool sparse_embeddings = false;  // the strategy supports them
  bool replicas = false;           // ranks may have whole replicas, which can train locally (`sync`)
  // launch.min_ranks: returns "" if the other ranks have all state of a lost rank. Else returns why not: then they
  // continue from the newest checkpoint. Throws ConfigError at a key that prevents both. Null: the job ends.
  std::function<std::string(const JobPlan&)> state_of_lost_rank;
  MemberFunctions members = {};
};

// True if planning needs the model's blocks before ranks start: for StrategyEntry::check, and for options
// that name blocks.
bool wants_blocks(const StrategyEntry& entry, const JobPlan& job);
// Runs StrategyEntry::check. Throws ConfigError; returns warnings.
std::vector<std::string> check_blocks(const StrategyEntry& entry, const JobPlan& job,
                                      const ModelDescription& description);

// Returns lines for people: actions in a step, and sparse embeddings.
std::string strategy_report(const StrategyEntry& entry, const JobPlan& job, const ModelDescription& description);

// All strategies, in the order of the reference page. `independent` is a farm: each of its runs has a strategy
// (launch/farm/config).
#define CONVOY_STRATEGIES(X) \
  X(single) X(data_parallel) X(ddp) X(model_parallel) X(tensor_parallel) X(pipeline) X(fsdp) X(hybrid) X(ensemble)

const std::vector<StrategyEntry>& strategy_catalogue();
std::vector<Entry> strategy_entries();  // the same for Catalogues
const StrategyEntry& strategy_entry(const std::string& name);
// Returns the strategy of a configuration. For a run with a program the result only plans: equal ranks, each a process.
const StrategyEntry& strategy_of(const RunConfig& config);
// Returns the strategy with which `convoy verify` compares all others.
const StrategyEntry& reference_strategy();
// Returns a strategy with equal ranks, in any number and over every backend. Jobs that do not train use it.
const StrategyEntry& equal_ranks_strategy();
// Returns the strategy that trains several models at once.
const StrategyEntry& members_strategy();
// Return the strategies whose options the library's Replicas and Shards have.
const StrategyEntry& replicas_strategy();
const StrategyEntry& shards_strategy();

// Returns the tolerance for gradients that `sync.compress` rounds, as `convoy verify` measures it: the largest relative
// difference from the gradients of one rank. 0: nothing is rounded.
double compression_error(const Options& strategy);

// Throws ConfigError at `what` of the section `sync`, or of one of its groups, if ranks would make local updates.
// `reason` returns the message for the text of `what`.
void refuse_local_updates(const Options& strategy, const std::function<std::string(const std::string&)>& reason);

// Returns MemberFunctions::overrides(config); empty: the strategy trains one model.
std::vector<std::vector<std::string>> member_overrides(const RunConfig& config);

// Throws ConfigError at `key` if `names`, the metrics that evaluations report, do not contain the metric. The message
// lists them. `whose`: "", or " of a member".
void check_reported(const RunConfig& config, const std::string& key, const std::string& metric,
                    const std::vector<std::string>& names, const std::string& whose);
// Returns the metrics that evaluations of the whole run report.
std::vector<std::string> reported_metrics(const RunConfig& config, const EvaluationMetrics& metrics);
// Throws ConfigError at `key` if reported_metrics lacks the metric; "": nothing is watched.
void check_watched_metric(const RunConfig& config, const std::string& key, const std::string& metric,
                          const EvaluationMetrics& metrics);

}  // namespace convoy
