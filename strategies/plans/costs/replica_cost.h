// Cost of a step with a replica per rank, and the terms that other strategies share. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "strategies/plans/catalogue.h"
#include "strategies/plans/costs/sparse_cost.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/schedule.h"

namespace convoy {

double parameters_of(const ModelDescription& description);     // elements
double replicated_bytes(const ModelDescription& description);  // all parameters
double buffer_bytes(const ModelDescription& description);      // all buffers
// Returns the cost per rank if every rank has everything. Each step sends one ring all-reduce of the gradients, divided
// by sync.every: 2·(N−1)/N times their bytes. add_sync_cost has other sync policies, and sparse_cost.h has sparse
// embeddings, for strategies that support them.
std::vector<RankCost> replica_costs(const JobPlan& job, const ModelDescription& description);

// Returns RankCost::owned_bytes of each replica. `dense`: the model, or a part of it, without `tables`.
std::vector<double> owned_bytes(const RunConfig& config, const ModelDescription& dense,
                                const std::vector<TouchedTable>& tables, int replicas);

// moments_of: moments that the optimizer keeps per parameter. rows_per_rank: rows that each of `ranks` along the data
// axis reads in a step; 0 if unknown.
int moments_of(const RunConfig& config);
double rows_per_rank(const RunConfig& config, int ranks);
// Returns the activation bytes of `rows` rows through blocks [begin, end).
KeptBytes kept_bytes(const Recompute& recompute, const ModelDescription& description, int64_t begin, int64_t end,
                     double rows);
// Returns the rows of micro-batch `micro_batch` of `micro_batches`: sizes differ by at most one, larger ones first.
double rows_of_micro_batch(double rows, int micro_batch, int micro_batches);
double activation_bytes(const RunConfig& config, const ModelDescription& description, int ranks);

// Adds the all-reduces of `cost.gradient_bytes` of gradients in buckets, for a data axis of `ranks` > 1.
void add_buckets(const StepOptions& step, int ranks, RankCost& cost);
// Adds the cost of batch norm on a data axis of `ranks` ranks, by `synchronises_norms` and `buffers`: exchanges of
// layers in forward and backward, and buffers after an update (rank 0 of the axis sends a broadcast).
void add_buffer_exchanges(const StepOptions& step, const ModelDescription& description, int ranks, int data_rank,
                          RankCost& cost);
// Returns the work of a rank that runs all passes of its rows and updates everything. `degree`: size of the data axis.
RankWork whole_work(const RunConfig& config, int degree);
// Returns the share of `messages` messages that overlaps with the backward pass, by the option `overlap`.
double during_backward(const StepOptions& step, double messages);

// --- What an update sends by the section `sync` ---

// Throws ConfigError at the key for a pattern that matches no parameter.
void check_sync_names(const JobPlan& job, const ModelDescription& description);

// Returns the number of elements of this rank in each group of the policy. A tensor group may shard a block: its
// elements are then divided between the groups in proportion to the unsharded sizes.
std::vector<double> sync_elements(const SyncPolicy& policy, const ModelDescription& description);
// Adds the mean bytes per step that a data axis of `ranks` replicas sends after `start_after`. Also adds the memory
// that replicas need besides parameters, gradients and moments.
void add_sync_cost(const RunConfig& config, const ModelDescription& description, int ranks, RankCost& cost);
// Returns lines for people: messages of each group and their times. "" if all gradients are summed for every update.
std::string sync_text(const RunConfig& config, const ModelDescription& description, int ranks);

}  // namespace convoy
