// Interactions of users with items: their columns, the split into training and held-out rows, the preparation of
// context columns and features, and the data set for implicit feedback.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/data/dataset.h"
#include "core/data/preparation.h"
#include "core/data/readers/name_list.h"
#include "core/data/sets/candidates.h"
#include "core/data/sets/features.h"

namespace convoy {

// --- Interactions: the columns of the data ---

// The value of a context column depends on this entity. same_everywhere: all rows have one value.
enum class ContextKind : uint8_t { of_interaction, of_item, of_user, same_everywhere };

// One element per interaction, in the order of the source. Ids are dense, numbered by first appearance.
struct Interactions {
  int64_t users = 0;
  int64_t items = 0;
  at::Tensor user;                          // int32 [N]
  at::Tensor item;                          // int32 [N]
  at::Tensor time;                          // float64 [N]; undefined if there are no times
  at::Tensor context;                       // float32 [N, C]; undefined without context columns
  at::Tensor weight;                        // float32 [N]; undefined: all one
  at::Tensor item_features, user_features;  // float32 [items, F], [users, U]; undefined if there are none
  at::Tensor context_kinds;                 // uint8 [C], a ContextKind each; undefined if unknown
  NameList user_names, item_names;          // ids as in the source, by number; empty for synthetic data
  std::vector<ColumnWords> context_words;   // by context column; empty for columns of numbers, or if all are numbers
  std::vector<std::string> context_names;   // columns of `context`; empty for synthetic data
  std::vector<std::string> item_feature_names, user_feature_names;  // likewise
  std::vector<Features> item_sources, user_sources;                 // sources of the joined features
  std::string fingerprint;                                          // fingerprint of all sources' bytes; "": unknown

  int64_t size() const { return user.defined() ? user.numel() : 0; }
  int64_t contexts() const { return context.defined() ? context.size(1) : 0; }
};

// Returns the same interactions, with the numbers of ids and the order of context columns as in `stored`. `stored` must
// contain every id and column, as data_change checks. Error(config) if neither has the features of an id of `stored`.
Interactions renumbered(const Interactions& all, const DataContents& stored);

// --- Split: training rows and held-out rows ---

enum class Holdout { none, latest, random, time };

// Row numbers in Interactions. With latest and random, a user with a single interaction keeps it for training.
struct InteractionSplit {
  std::vector<int32_t> train;
  std::vector<int32_t> held_out;  // sorted by user; rows of one user by time or, with random, as in the source
};
// Chooses the interactions to hold out:
//   latest   the last one of each user in time; of equal times, the last in the source
//   random   one of each user, drawn by `seed`
//   time     the last `fraction` of all interactions. Held-out rows of users without a training row are left out.
//   none     no interaction
// With a `fraction`, latest and random hold out that share of each user's interactions: at least one, and never all.
// Error(config) if the data has no times and the choice needs them.
InteractionSplit split_interactions(const Interactions& all, Holdout holdout, uint64_t seed, double fraction = 0);

// --- Preparation: scaled or categorical context columns, and scaled features of items and users ---

struct PreparedInteractions {
  PreparationOptions options;
  Preparation context;                      // applied when rows are gathered
  Preparation item, user;                   // applied once, with the results below
  at::Tensor item_features, user_features;  // prepared: float32 [items, F], [users, U]; undefined if there are none

  PreparedInteractions() = default;
  // Computes means and deviations: of context columns from the rows `train`, of features from all ids. `stored`: takes
  // those of the checkpoint instead. Logs a hint if context columns should be scaled.
  PreparedInteractions(const Interactions& all, const std::vector<int32_t>& train, PreparationOptions options,
                       const Preparations* stored = nullptr);

  int64_t contexts() const { return context.width(); }
  Preparations preparations() const;
};

// --- InteractionsDataset: the data set for implicit feedback ---

struct RankingOptions {
  int64_t negatives = 4;       // drawn for each positive
  bool full = false;           // rank all items instead of drawn candidates
  int64_t candidates = 99;     // in addition to the held-out item: distinct, never touched by the user
  int64_t evaluate_users = 0;  // number of users with a held-out item, drawn by the seed; 0: all
  double fraction = 0;         // share of the interactions to hold out; 0: one of each user. Needs a full ranking.

  // Reads the options that both data sets of interactions share: negatives, ranking, candidates, evaluate.
  static RankingOptions from(const Options& options);
};

// A training row is one positive with its drawn negatives. An evaluation row is one user with the candidates, the
// held-out items first. Batch tensors:
//   user [B] int64 · item [B, 1+negatives] int64, the positive first · target [B, 1+negatives] float 1, 0, 0, …
//   context [B, C], user_features [B, U], item_features [B, 1+negatives, F] and weight [B] float, if the data has them.
// In evaluation, dimension 1 of item, target and item_features is 1+candidates, or all items under full ranking. Full
// ranking adds fields (core/metrics/model_metrics.h):
//   excluded [B, items] bool: the user's training positives, which metrics leave out
//   held_out [B] int64: number of held-out items; only if some user has several
class InteractionsDataset : public Dataset {
 public:
  // Error(config) if a user has touched too many items to draw negatives or candidates. Error(corrupt_data) if no
  // training row is left.
  // `stored`: preparations of a checkpoint; null: computed from the training rows.
  InteractionsDataset(Interactions all, InteractionSplit split, const RankingOptions& options, uint64_t seed,
                      const PreparationOptions& prepare = {}, const Preparations* stored = nullptr);
  InteractionsDataset(Interactions all, Holdout holdout, const RankingOptions& options, uint64_t seed,
                      const PreparationOptions& prepare = {}, const Preparations* stored = nullptr);

  Schema schema() const override;
  int64_t size(Split split) const override;
  int64_t instances_per_row() const override { return 1 + options_.negatives; }
  bool gathers_from_memory() const override { return true; }
  DataContents contents() const override;
  DatasetPtr numbered_as(const DataContents& stored) const override;
  const Interactions* interactions() const override { return &all_; }
  const PreparedInteractions* prepared_interactions() const override { return &prepared_; }
  using Dataset::gather_once;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override;

  const Positives& positives() const { return positives_; }  // positives of the training split

 private:
  Batch gather_train(const int64_t* samples, int64_t rows, int64_t epoch, BatchBuffers& buffers) const;
  Batch gather_evaluate(const int64_t* samples, int64_t rows, BatchBuffers& buffers) const;
  void choose_evaluated_users();
  bool holds_out_several() const { return held_out_begin_.size() != split_.held_out.size() + 1; }
  Batch gather_positives(const std::string& buffer, const int32_t* table_rows, const int64_t* samples, int64_t rows,
                         int64_t width, BatchBuffers& buffers) const;
  void gather_all_items(Batch& batch, const int64_t* samples, BatchBuffers& buffers) const;
  void gather_columns(Batch& batch, const int32_t* table_rows, const int64_t* samples, int64_t rows,
                      BatchBuffers& buffers) const;
  void gather_features(Batch& batch, const std::string& buffer, BatchBuffers& buffers) const;
  void check_drawable() const;

  const Interactions all_;
  std::optional<Holdout> holdout_;  // rule of the split; nullopt: the split was given
  InteractionSplit split_;
  std::vector<int64_t> held_out_begin_;  // by evaluated user: begin of its rows in split_.held_out; last, the end
  std::vector<int32_t> first_held_out_;  // by evaluated user: the row that gives context and weight
  const RankingOptions options_;
  const uint64_t seed_;
  Positives positives_;
  PreparedInteractions prepared_;
};

}  // namespace convoy
