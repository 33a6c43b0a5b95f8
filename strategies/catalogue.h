// Strategies without LibTorch: options, where ranks go, and what a step costs.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/run_config.h"
#include "core/plan.h"

namespace convoy {

// A tensor of an earlier block that a block uses too.
struct TiedTensor {
  std::string name;   // canonical
  int64_t block = 0;  // that made it
  int64_t elements = 0;
};
// A linear layer that asks for a share of its inputs and is tied to a tensor that is cut by its outputs or rows.
struct TieClash {
  std::string layer, tensor;  // canonical
};
// A size that the ranks of a tensor group must divide, in each of `parts`.
struct CutSize {
  std::string layer;  // canonical
  int64_t size = 0;
  int64_t parts = 1;
  bool outputs = true;  // else inputs
};
// An embedding that is a row table, or becomes one where it is large enough.
struct TableSize {
  std::string name;  // canonical, of its weight
  int64_t rows = 0, dim = 0;
  bool asked = false;   // for rows, whatever its size
  int64_t lookups = 1;  // ids of one row of a batch at most, as the model says
  double row_ids = 0;   // looked up per row of a batch; 0 where that has not been found
  // Ids, and how many different rows they are, of samples of the data that grow; empty where there are none.
  std::vector<std::pair<double, double>> drawn{};
};
// An embedding that was to be a row table, or might have been, and stays dense since a layer is tied to it.
struct TiedTable {
  std::string name;    // canonical, of its weight
  std::string user;    // the layer
  bool asked = false;  // for rows, whatever its size
};
// Found by `convoy-rank --describe`: sizes of a model, per block. 0 where a figure has not been found.
struct BlockDescription {
  std::string name;
  int64_t parameters = 0;        // elements
  int64_t buffers = 0;           // elements
  double row_flops = 0;          // forward, per row
  int64_t row_output_bytes = 0;  // handed to the next block, per row
  int64_t row_saved_bytes = 0;   // kept for backward, per row; what is whatever the rows: saved_bytes
  int64_t products = 0;          // elements of the weights that activations are multiplied with
  std::vector<TiedTensor> ties{};
  std::vector<TieClash> clashes{};
  // Of layers that a tensor group shares out (linear layers with a cut, embeddings):
  int64_t cut_parameters = 0;        // elements, of `parameters`
  int64_t row_cut_input_bytes = 0;   // inputs of column-cut ones that want gradients, per row
  int64_t row_cut_output_bytes = 0;  // outputs of row-cut ones and embeddings, per row
  int64_t row_cut_saved_bytes = 0;   // of row_saved_bytes: between column- and row-cut ones, per row
  int64_t cut_exchanges = 0;         // messages a micro-batch, forward and backward
  std::vector<CutSize> cuts{};       // of its column- and row-cut layers
  int64_t row_working_bytes = 0;     // beside what is kept, the most that its backward holds, per row
  int64_t working_bytes = 0;         // and whatever the rows (a gradient that has to be copied)
  int64_t tensors = 0;               // how many parameters there are
  int64_t product_parameters = 0;  // elements of those that activations are multiplied with, and that nothing else uses
  int64_t product_tensors = 0;     // how many of those there are
  int64_t norms = 0;               // batch norm layers from Layers, which a data axis may synchronise
  int64_t norm_channels = 0;       // of them all together
  std::vector<std::string>
      own_norms{};                  // modules that the block makes itself and whose figures depend on a rank's rows
  std::vector<TableSize> tables{};  // of parameters: those whose gradients may be rows
  std::vector<TiedTable> tied_tables{};
  double time = 0;  // share of a step's forwards, as a calibration has measured it; not in the JSON
  std::vector<std::pair<std::string, int64_t>> named{};  // its parameters by canonical name, with their elements
  int64_t saved_bytes = 0;  // kept for backward of each pass whatever its rows: weights that autocast has narrowed
};
struct Description {
  std::vector<BlockDescription> blocks;
  int64_t element_bytes = 4;
  bool measured = false;  // by a step: what is 0 is nothing, where otherwise it has not been found
};
Json to_json(const Description& description);
Description description_from_json(const Json& json);

// How ranks of a group exchange; one name for each in files (name_of).
enum class Exchange {
  all_reduce,
  gather,   // all-gather
  scatter,  // reduce-scatter
  send      // to a neighbour, who sends as much back
};
const char* name_of(Exchange kind);

// What a rank sends along one axis of the mesh in a step by one kind of exchange; an axis may have several.
struct AxisCost {
  std::string axis;
  double bytes = 0;
  double messages = 0;
  Exchange kind = Exchange::all_reduce;
  double beside = 0;  // share of it that may go on while the rank computes
};
// What a rank computes in a step: what its time is predicted from.
struct RankWork {
  double rows = 0;    // of one pass, forward and backward
  double passes = 0;  // a step
  double span =
      0;  // time of a step's passes, waits for other ranks' included, ÷ that of one pass through the whole model
  double own = 0;      // the same without the waits
  double updates = 1;  // a step
  double updated = 1;  // share of the model's parameters that this rank updates
  bool cut = false;  // its share is one of every layer, so that what each operation costs beside its rows is not shared
};
// Per rank, as the strategy's formulas evaluate.
struct RankCost {
  double bytes_sent_per_step = 0;
  double messages_per_step = 0;
  double parameter_bytes = 0, gradient_bytes = 0, moment_bytes = 0, buffer_bytes = 0, activation_bytes = 0;
  // Of the first two, by axis and kind; where it is empty all of it goes along the one axis that the mesh has.
  std::vector<AxisCost> axes = {};
  RankWork work = {};
};

struct Node;           // core/config/node.h
struct PipelineTexts;  // core/config/pipeline_texts.h

struct StrategyEntry : Entry {
  std::function<Plan(const RunConfig&, const Topology&, const PlanRequest&)>
      plan;  // throws ConfigError with the reason
  std::function<std::vector<RankCost>(const Job&, const Description&)> cost;
  // What only the model's blocks can tell of a plan, checked before any rank starts; throws ConfigError. Null: nothing.
  std::function<void(const Job&, const Description&)> check;
  // What ranks or devices do in a step, in which order, as lines for people. Null, or "": all ranks do
  // the same.
  std::function<std::string(const Job&, const Description&)> schedule;
  // Lines on embeddings of which a step touches some rows only. Null, or "": there are none.
  std::function<std::string(const Job&, const Description&)> tables = nullptr;
  // Of a strategy whose file describes several runs with a configuration each, and none itself: takes the file's tree
  // apart before anything of it is checked. Null: the file is one run.
  PipelineTexts (*pipelines)(const Node& root) = nullptr;
  // Of a strategy that trains several models, each as the reference would by itself: for each of them the overrides, as of
  // --set, that make a run of the configuration by the reference that one. Null: the model is one.
  std::function<std::vector<std::vector<std::string>>(const RunConfig&)> members = nullptr;
  // Warnings that only the model's blocks can tell of a plan that is no mistake. Null: none.
  std::function<std::vector<std::string>(const Job&, const Description&)> notes = nullptr;
};

// Whether a plan has to see the model's blocks before ranks start: for StrategyEntry::check and notes, and for options that
// name blocks.
bool wants_blocks(const StrategyEntry& entry, const Job& job);
// All of that; throws ConfigError, and returns warnings.
std::vector<std::string> check_blocks(const StrategyEntry& entry, const Job& job, const Description& description);

const std::vector<StrategyEntry>& strategy_catalogue();
std::vector<Entry> strategy_entries();  // the same for Catalogues
const StrategyEntry& strategy_entry(const std::string& name);
// The one that all others are held against.
const StrategyEntry& reference_strategy();
// The one whose ranks are all alike, in any number and over every backend: where jobs that do not train have ranks.
const StrategyEntry& plain_strategy();

// Of a resolved section `strategy`: how far gradients that are sent narrow (sync.compress), and what follows from them, may be
// from those of one rank, as `convoy verify` measures it. 0 where nothing is rounded.
double compression_error(const Json& strategy);

}  // namespace convoy
