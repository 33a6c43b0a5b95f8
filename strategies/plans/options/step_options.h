// Typed values of the options of a step, as ranks and the planner read them: synchronisation, activation checkpointing,
// buckets. data_axis.h describes and checks them. StateOwners is here too: ranks and the planner share it.
// Without LibTorch.
//
// Synchronisation of replicas (section `sync`): each group of parameters, selected by name pattern, has one rule:
//   gradients   are summed for every update, so all ranks make the same update;
//   parameters  are averaged after every k local updates (local SGD: Stich, "Local SGD Converges Fast and
//               Communicates Little", ICLR 2019);
//   diloco      the mean change of k local updates is the gradient of an outer Nesterov step (Douillard et al.,
//               "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105).
// `every` counts accumulated steps of one update for gradients, and updates for the others.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/base/name_pattern.h"
#include "core/config/run_config.h"

namespace convoy {

// Returns the position of a choice in `names`, which have the order of its enumeration.
size_t index_in(const std::vector<std::string>& names, const std::string& name);

enum class SyncKind { gradients, parameters, diloco };
inline const std::vector<std::string> sync_kinds{"gradients", "parameters", "diloco"};  // in the order of SyncKind

struct SyncGroup {
  // Regular expression, searched anywhere in a parameter's name; "": parameters that no earlier group matches.
  std::string match;
  SyncKind what = SyncKind::gradients;
  int64_t every = 1;
  int64_t start_after = 0;  // first updates, which sum gradients every time
  bool average_moments = false;
  double outer_rate = 0.7, outer_momentum = 0.9;
  bool nesterov = true;

  // is_local: update `number` (from 0) is local. due: ranks synchronise after it.
  bool is_local(int64_t number) const { return what != SyncKind::gradients && number >= start_after; }
  bool due(int64_t number) const { return is_local(number) && (number + 1 - start_after) % every == 0; }
  // drifted: ranks have different values after `made` updates.
  bool drifted(int64_t made) const {
    return what != SyncKind::gradients && made > start_after && (made - start_after) % every != 0;
  }
  bool moments_drifted(int64_t made) const {
    return what != SyncKind::gradients && made > start_after && (!average_moments || drifted(made));
  }
};

enum class Compression { none, fp16, bf16 };
const std::string& name_of(Compression compression);
inline const std::vector<std::string> compressions{"none", "fp16", "bf16"};  // in the order of Compression

struct SyncPolicy {
  int64_t every = 1;                           // steps per update
  std::vector<SyncGroup> groups{SyncGroup{}};  // the first match decides; the last group matches all others
  Compression compress = Compression::none;

  size_t group_of(const std::string& parameter) const;
  // True if the parameter may be a sparse embedding. An outer step would change all rows.
  bool allows_rows(const std::string& parameter) const { return groups[group_of(parameter)].what != SyncKind::diloco; }
  bool ever_local() const;    // some group is not of kind gradients
  bool always_local() const;  // no gradient is ever summed
  bool plain() const { return !ever_local() && compress == Compression::none; }
  std::vector<NamePattern> patterns = {};  // by group, except the last
};
// Reads a checked section of a strategy. Missing keys have their defaults.
SyncPolicy sync_policy(const Options& strategy);

// Batch norm's buffers after an update: rank 0's, their mean, or each rank's.
enum class SharedBuffers { broadcast, mean, local };
inline const std::vector<std::string> shared_buffers{"broadcast", "mean", "local"};  // in the order of SharedBuffers

// When a step is recorded as a CUDA graph; see graph_option().
enum class GraphMode { automatic, always, never };
inline const std::vector<std::string> graph_modes{"auto", "always", "never"};  // in the order of GraphMode

// Blocks with activation checkpointing.
struct Recompute {
  bool all = false;
  std::vector<std::string> names = {};  // names of blocks, if not all

  bool includes(const std::string& block) const;
};
// Reads the option `recompute`; a strategy without it has none. Throws ConfigError at the key if it is malformed.
Recompute recompute_of(const Options& strategy);

// Typed values of a strategy's section. A key that the strategy lacks keeps the default here.
struct StepOptions {
  int64_t micro_batches = 1;
  SyncPolicy sync = {};
  Recompute recompute = {};
  double first_bytes = 0;            // size of the first bucket
  double cap_bytes = 0;              // size of the others; 0: bucket_cap decides
  std::optional<bool> overlap = {};  // send during the backward pass; none: the first updates measure
  SharedBuffers buffers = SharedBuffers::local;
  bool synchronises_norms = false;  // batch norm uses the rows of all ranks of the data axis
  GraphMode graph = GraphMode::never;
};
StepOptions step_options(const Options& strategy);

// Returns the default of bucket_cap_mb: a quarter of the gradients, so that most of them overlap with the backward
// pass, between 1 and 25 MiB. Smaller messages cost latency; larger ones gain nothing.
double bucket_cap(double gradient_bytes);

// Throws ConfigError at strategy.recompute for a name that is not a block of the model.
void check_recomputed_names(const std::vector<std::string>& named, const std::vector<std::string>& blocks);

// Divides the tensors of a checkpoint among replicas: each tensor goes to the replica with the fewest bytes so far. All
// tensors of a small model go to replica 0, because a second file costs more than it saves.
class StateOwners {
 public:
  StateOwners(int replicas, double parameter_bytes);
  int next(double bytes);  // returns the replica that writes the next tensor

 private:
  std::vector<double> bytes_;  // by replica
};

}  // namespace convoy
