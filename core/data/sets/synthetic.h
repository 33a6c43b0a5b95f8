// Synthetic data of any size, without files: a function of the seed. For benchmarks, tests and first steps.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/data/dataset.h"
#include "core/data/sets/interactions.h"

namespace convoy {

// Rows of features with a class or with numbers to predict. They are computed when gathered, from a table of noise.
// classification: features = prototype of the class + noise. regression: target = a fixed linear map of the features +
// noise.
// Batch tensors: features [B, …shape] float · target [B] int64, or [B, targets] float.
class SyntheticVectors : public Dataset {
 public:
  struct Shape {
    bool classification = true;
    int64_t rows = 0;
    int64_t evaluate_rows = 0;
    std::vector<int64_t> features;
    int64_t classes = 10;
    int64_t targets = 1;
    double noise = 1;
  };
  SyntheticVectors(const Shape& shape, uint64_t seed);

  Schema schema() const override;
  int64_t size(Split split) const override;
  int64_t instances_per_row() const override { return 1; }
  bool gathers_from_memory() const override { return true; }
  DataContents contents() const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override;

 private:
  const Shape shape_;
  const uint64_t key_;
  int64_t width_ = 1;
  std::vector<float> noise_;       // standard normal; each row reads a range of it
  std::vector<float> prototypes_;  // [classes, width], or [targets, width] for the linear map
};

// Zipf-distributed users and items, context columns in [0, 1), and a known preference. Users and items form groups, and
// a fraction of a user's items is from the user's group. The first context column shifts the user's group by one.
struct SyntheticInteractions {
  int64_t rows = 0;  // training positives
  int64_t users = 0;
  int64_t drawn_users = 0;  // number of users that occur, the first ones; 0: all
  int64_t items = 0;
  int64_t context = 0;  // number of context columns
  double user_exponent = 0.6;
  double item_exponent = 0.8;
  double preference = 0.8;  // fraction of a user's items from the user's group
  int64_t groups = 16;
  int64_t occurring() const { return drawn_users > 0 ? drawn_users : users; }  // number of users that occur
};
struct PlantedInteractions {
  Interactions all;
  InteractionSplit split;  // one held-out interaction for each drawn user, never a training row
};
// `cache`: a folder that stores the columns, so that later starts map them (core/data/readers/column_cache.h); "":
// none.
PlantedInteractions plant_interactions(const SyntheticInteractions& sizes, uint64_t seed,
                                       const std::string& cache = "");

// Creates the data set for `data: {name: synthetic, kind: …}`. `few_rows`: equal columns and distribution, fast to
// generate, without a cache. At most 131,072 rows; interactions use at most the first 2,097,152 users.
DatasetPtr make_synthetic(const Options& options, uint64_t seed, bool few_rows = false);

// Synthetic sequences of tokens: each token has a few successors, chosen by the seed, with equal probability. A model
// that has learnt them all has the loss log(successors). A model that has learnt nothing has log(vocabulary).
// Batch tensors: tokens [B, T] int64 · target [B, T] int64, shifted by one.
class SyntheticTokens : public Dataset {
 public:
  static constexpr int64_t successors = 4;
  struct Shape {
    int64_t rows = 0;
    int64_t evaluate_rows = 0;
    int64_t vocabulary = 256;
    int64_t length = 128;
  };
  SyntheticTokens(const Shape& shape, uint64_t seed);

  Schema schema() const override;
  int64_t size(Split split) const override { return split == Split::train ? shape_.rows : shape_.evaluate_rows; }
  int64_t instances_per_row() const override { return 1; }
  bool gathers_from_memory() const override { return true; }
  int64_t tokens_per_row() const override { return shape_.length; }
  DataContents contents() const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override;

 private:
  const Shape shape_;
  const uint64_t key_;
  std::vector<int64_t> next_;  // [vocabulary, successors]
};

}  // namespace convoy
