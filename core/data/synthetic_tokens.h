// Made-up sequences of tokens: each token is followed by one of a few that the seed chose for it, evenly. A model that has
// learnt them all is at a loss of log(successors); one that knows nothing, at log(vocabulary).
// Batch tensors: tokens [B, T] int64 · target [B, T] int64, one further.
#pragma once
#include <cstdint>
#include <vector>

#include "core/data/dataset.h"

namespace convoy {

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
  bool at_hand() const override { return true; }
  int64_t tokens_per_row() const override { return shape_.length; }
  DataContents contents() const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, Buffers& buffers) const override;

 private:
  const Shape shape_;
  const uint64_t key_;
  std::vector<int64_t> next_;  // [vocabulary, successors]
};

}  // namespace convoy
