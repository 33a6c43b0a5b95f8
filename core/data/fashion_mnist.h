// Fashion-MNIST (or any set in the same IDX files, gzipped or not): 28 × 28 grey images of ten classes. Kept as bytes,
// mapped: plain files as they are, those in gzip from a cache (core/data/column_cache.h).
// Batch tensors: features [B, 1, 28, 28] float in [0, 1], or uint8 (core/data/bytes.h) · target [B] int64.
#pragma once
#include <string>

#include "core/data/dataset.h"
#include "core/options.h"

namespace convoy {

class FashionMnist : public Dataset {
 public:
  // bytes: features stay uint8, a quarter of what a batch takes in memory and on its way to a GPU.
  explicit FashionMnist(const std::string& folder, bool bytes = false);

  Schema schema() const override;
  int64_t size(Split split) const override;
  int64_t instances_per_row() const override { return 1; }
  bool at_hand() const override { return true; }
  DataContents contents() const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, Buffers& buffers) const override;

 private:
  struct Part {
    at::Tensor images;  // uint8 [N, height, width]
    at::Tensor labels;  // uint8 [N]
  };
  const Part& part(Split split) const { return split == Split::train ? train_ : test_; }

  Part train_;
  Part test_;
  int64_t classes_ = 10;
  bool bytes_;
};

}  // namespace convoy
