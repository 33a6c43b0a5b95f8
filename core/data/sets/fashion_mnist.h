// Fashion-MNIST (or any set in the same IDX files, gzipped or not): 28 × 28 grey images of ten classes. Images stay
// bytes, mapped from uncompressed files, or from a cache of gzipped ones (core/data/readers/column_cache.h).
// Batch tensors: features [B, 1, 28, 28] float in [0, 1], or uint8 (core/data/rows.h) · target [B] int64.
#pragma once
#include <string>

#include "core/base/options.h"
#include "core/data/dataset.h"

namespace convoy {

class FashionMnist : public Dataset {
 public:
  // bytes: features stay uint8; batches take a quarter of the memory and of the transfer to a GPU.
  explicit FashionMnist(const std::string& folder, bool bytes = false);

  Schema schema() const override;
  int64_t size(Split split) const override;
  int64_t instances_per_row() const override { return 1; }
  bool gathers_from_memory() const override { return true; }
  DataContents contents() const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override;

 private:
  struct SplitData {
    at::Tensor images;  // uint8 [N, height, width]
    at::Tensor labels;  // uint8 [N]
  };
  const SplitData& data_of(Split split) const { return split == Split::train ? train_ : test_; }

  SplitData train_;
  SplitData test_;
  int64_t classes_ = 10;
  bool bytes_;
};

}  // namespace convoy
