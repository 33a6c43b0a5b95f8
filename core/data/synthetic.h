// Made-up data of any size, without files: a function of the seed. For benchmarks, tests and first steps.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/interactions.h"
#include "core/options.h"

namespace convoy {

// Rows of features with a class or with numbers to predict, computed when they are gathered; nothing is kept but a table
// of noise. classification: features = prototype of the class + noise. regression: target = a fixed linear map of the
// features + noise.
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
  bool at_hand() const override { return true; }
  DataContents contents() const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, Buffers& buffers) const override;

 private:
  const Shape shape_;
  const uint64_t key_;
  int64_t width_ = 1;
  std::vector<float> noise_;       // standard normal; each row reads a stretch of it
  std::vector<float> prototypes_;  // [classes, width], or [targets, width] of the linear map
};

// Zipf-distributed users and items, context columns in [0, 1), and a planted preference: users and items fall into groups,
// and a share of what a user takes is of the user's group (which the first context column shifts by one).
struct SyntheticInteractions {
  int64_t rows = 0;  // training positives
  int64_t users = 0;
  int64_t items = 0;
  int64_t context = 0;  // columns
  double user_exponent = 0.6;
  double item_exponent = 0.8;
  double preference = 0.8;  // the share
  int64_t groups = 16;
};
struct PlantedInteractions {
  Interactions all;
  InteractionSplit split;  // one held-out interaction for each user, never one of the training part
};
// cache: a folder where they are kept, so that all later starts map them (core/data/column_cache.h); "": made anew.
PlantedInteractions plant_interactions(const SyntheticInteractions& sizes, uint64_t seed,
                                       const std::string& cache = "");

// The data set that `data: {name: synthetic, kind: …}` describes.
DatasetPtr make_synthetic(const Options& options, uint64_t seed);

}  // namespace convoy
