// Augmentations of the tensor "features", in place. Draws for a row depend only on (seed, epoch, row number). Images
// are [B, C, H, W] or [B, H, W]; Error(config) if a transform needs images and gets other shapes. Features are floats
// or bytes; the outputs of normalise and noise are floats.
#pragma once
#include <vector>

#include "core/base/options.h"
#include "core/data/dataset.h"

namespace convoy {

class Flip : public Transform {
 public:
  explicit Flip(double p) : p_(p) {}
  void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const override;
  bool evaluation_too() const override { return false; }

 private:
  double p_;
};

class Shift : public Transform {
 public:
  explicit Shift(int64_t pixels) : pixels_(pixels) {}
  void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const override;
  bool evaluation_too() const override { return false; }

 private:
  int64_t pixels_;
};

class Normalise : public Transform {
 public:
  Normalise(std::vector<double> mean, std::vector<double> deviation)
      : mean_(std::move(mean)), deviation_(std::move(deviation)) {}
  void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const override;
  bool evaluation_too() const override { return true; }

 private:
  std::vector<double> mean_;
  std::vector<double> deviation_;
};

class Noise : public Transform {
 public:
  explicit Noise(double deviation) : deviation_(deviation) {}
  void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const override;
  bool evaluation_too() const override { return false; }

 private:
  double deviation_;
};

}  // namespace convoy
