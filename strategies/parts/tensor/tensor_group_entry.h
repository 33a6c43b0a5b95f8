// What strategies with a tensor group share without LibTorch: its options, what the configuration must fit, what a
// step costs.
#pragma once
#include "strategies/catalogue.h"
#include "strategies/parts/replicas/replicated_entry.h"

namespace convoy {

std::vector<Option> tensor_options();

// Throws ConfigError at model.heads where the ranks do not divide the attention heads that a model says it has. Other
// sizes only its layers know: check_cuts.
void check_tensor_degree(const RunConfig& config, int degree);

// Per rank of a job on a mesh {data, tensor} whose data axis replicates. With D and N ranks along them, P trained
// elements of e bytes of which C are cut, k moments, R rows a rank and step, and per row the bytes I of inputs of
// column-cut layers (that want gradients) and O of outputs of row-cut layers and embeddings:
//   parameters (P − C + C/N)·e, the same for gradients, k times for moments
//   sent: 2(D−1)/D of the gradients every `every` steps, and 2(N−1)/N · R·(I + O) a step;
//         with shares of sequences (N−1)/N · R·(3·I + 2·O + what the first block with cut layers is given)
// beside a few numbers per position for a loss over cut classes and, per update, two for the norm.
//
// tensor_group_cost is that without the data axis: the update's memory, and what is sent along the axis tensor.
// Throws ConfigError for a layer that the ranks of the axis tensor do not divide: at the model's option that has its size where
// there is just one, else at `model`.
void check_cuts(const Job& job, const Description& description);
// What a tensor group of such blocks does not do, though it was asked for: warnings, whose first word is `key`, the one that
// wants the group.
std::vector<std::string> tensor_notes(const Job& job, const Description& description, const std::string& key);
RankCost tensor_group_cost(const Job& job, const Description& description);
// The model as one rank of the axis tensor holds it: fewer parameters, and less kept for backward.
Description cut_description(const Job& job, const Description& description);
// What a data axis of that many ranks sends of `cost.gradient_bytes`.
void add_bucket_messages(int data, const BucketSizes& buckets, int64_t every, bool overlap, RankCost& cost);
std::vector<RankCost> tensor_costs(const Job& job, const Description& description, const BucketSizes& buckets,
                                   int64_t every);

}  // namespace convoy
