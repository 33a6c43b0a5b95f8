// A transform: changes a gathered batch in place. Its draws for a row depend only on (seed, epoch, row number).
#include <ATen/ATen.h>

#include <algorithm>

#include "factories.h"

namespace {

using namespace convoy;

class Cutout : public Transform {
 public:
  explicit Cutout(int64_t width) : width_(width) {}
  void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const override {
    const at::Tensor& features = batch.at("features");
    if (features.scalar_type() != at::kFloat)
      throw Error(Failure::config, "transform cutout works on features of float numbers");
    const int64_t rows = indices.numel();
    if (rows == 0) return;
    const int64_t size = features.numel() / rows;
    const int64_t width = std::min(width_, size);
    const uint64_t key = random_key(seed, "cutout", uint64_t(epoch));
    float* row = features.data_ptr<float>();
    for (int64_t r = 0; r < rows; ++r, row += size) {
      const auto sample = uint64_t(indices.const_data_ptr<int64_t>()[r]);
      const auto start = int64_t(random_below(key, sample, uint64_t(size - width + 1)));
      std::fill(row + start, row + start + width, 0.f);
    }
  }
  bool evaluation_too() const override { return false; }

 private:
  int64_t width_;
};

}  // namespace

std::shared_ptr<const Transform> make_cutout(const Options& options) {
  return std::make_shared<Cutout>(options.integer("width"));
}
