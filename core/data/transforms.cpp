// Loops over the rows of a contiguous tensor of floats; or of bytes, for transforms that only move values.
#include "core/data/transforms.h"

#include <algorithm>
#include <cstring>

#include "core/base/random_keys.h"
#include "core/data/rows.h"

namespace convoy {
namespace {

at::Tensor& features_of(Batch& batch, const char* who) {
  for (auto& [name, tensor] : batch.tensors) {
    if (name != "features") continue;
    const bool known = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kByte;
    if (!known || !tensor.is_contiguous())
      throw Error(Failure::config, "transform ", who, " works on features of float numbers or bytes; these are ",
                  tensor.scalar_type());
    return tensor;
  }
  throw Error(Failure::config, "transform ", who, " needs a data set with features; this one has none");
}

// Features as floats: converts bytes here, so that later arithmetic does not round.
at::Tensor& float_features_of(Batch& batch, const char* who) {
  at::Tensor& features = features_of(batch, who);
  if (features.scalar_type() == at::kByte) features = from_bytes(features, at::kFloat);
  return features;
}

template <class T>
struct Images {
  T* data;
  int64_t planes;  // per row
  int64_t height;
  int64_t width;
};

// Calls `work` with the Images of floats or bytes.
template <class Work>
void on_images(Batch& batch, const char* who, const Work& work) {
  at::Tensor& features = features_of(batch, who);
  const int64_t dims = features.dim();
  if (dims != 3 && dims != 4)
    throw Error(Failure::config, "transform ", who,
                " needs images, [rows, height, width] or [rows, channels, height, width], but features are ",
                features.sizes(), "; leave the transform out");
  const int64_t planes = dims == 4 ? features.size(1) : 1;
  if (features.scalar_type() == at::kByte)
    work(Images<uint8_t>{features.mutable_data_ptr<uint8_t>(), planes, features.size(-2), features.size(-1)});
  else
    work(Images<float>{features.mutable_data_ptr<float>(), planes, features.size(-2), features.size(-1)});
}

template <class T>
void shift_plane(T* plane, int64_t height, int64_t width, int64_t down, int64_t right) {
  const auto bytes = size_t(width - std::abs(right)) * sizeof(T);
  for (int64_t k = 0; k < height; ++k) {
    const int64_t y = down > 0 ? height - 1 - k : k;  // from the side where no source row is overwritten early
    T* to = plane + y * width;
    const int64_t source = y - down;
    if (source < 0 || source >= height) {
      std::fill(to, to + width, T(0));
      continue;
    }
    const T* from = plane + source * width;
    std::memmove(to + std::max<int64_t>(right, 0), from + std::max<int64_t>(-right, 0), bytes);
    if (right > 0) std::fill(to, to + right, T(0));
    if (right < 0) std::fill(to + width + right, to + width, T(0));
  }
}

}  // namespace

void Flip::apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const {
  const uint64_t key = random_key(seed, "flip", uint64_t(epoch));
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  on_images(batch, "flip", [&](auto images) {
    for (int64_t r = 0; r < indices.numel(); ++r) {
      if (random_uniform(key, uint64_t(samples[r])) >= p_) continue;
      auto* line = images.data + r * images.planes * images.height * images.width;
      for (int64_t l = 0; l < images.planes * images.height; ++l, line += images.width) {
        std::reverse(line, line + images.width);
      }
    }
  });
}

void Shift::apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const {
  const uint64_t key = random_key(seed, "shift", uint64_t(epoch));
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  const auto range = uint64_t(2 * pixels_ + 1);
  on_images(batch, "shift", [&](auto images) {
    if (pixels_ >= images.height || pixels_ >= images.width)
      throw Error(Failure::config, "transform shift by ", pixels_, " pixels is not smaller than images of ",
                  images.height, " × ", images.width);
    for (int64_t r = 0; r < indices.numel(); ++r) {
      const auto words = philox(key, uint64_t(samples[r]), 0);
      const int64_t down = int64_t(words[0] * range >> 32) - pixels_;
      const int64_t right = int64_t(words[1] * range >> 32) - pixels_;
      for (int64_t p = 0; p < images.planes; ++p) {
        shift_plane(images.data + (r * images.planes + p) * images.height * images.width, images.height, images.width,
                    down, right);
      }
    }
  });
}

void Normalise::apply(Batch& batch, const at::Tensor&, uint64_t, int64_t) const {
  at::Tensor& features = float_features_of(batch, "normalise");
  if (features.numel() == 0) return;
  const int64_t channels = features.dim() > 1 ? features.size(1) : 1;
  const int64_t plane = features.numel() / features.size(0) / channels;
  for (const auto* values : {&mean_, &deviation_}) {
    if (values->size() != 1 && int64_t(values->size()) != channels)
      throw Error(Failure::config, "transform normalise has ", values->size(), " values for ", channels,
                  " channels: give one, or one for each");
  }
  float* at = features.mutable_data_ptr<float>();
  for (int64_t r = 0; r < features.size(0); ++r) {
    for (int64_t c = 0; c < channels; ++c, at += plane) {
      const auto mean = float(mean_.size() == 1 ? mean_[0] : mean_[size_t(c)]);
      const auto scale = float(1 / (deviation_.size() == 1 ? deviation_[0] : deviation_[size_t(c)]));
      for (int64_t i = 0; i < plane; ++i) at[i] = (at[i] - mean) * scale;
    }
  }
}

void Noise::apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const {
  at::Tensor& features = float_features_of(batch, "noise");
  if (features.numel() == 0) return;
  const int64_t width = features.numel() / features.size(0);
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  float* at = features.mutable_data_ptr<float>();
  std::vector<double> drawn(static_cast<size_t>(width));
  for (int64_t r = 0; r < indices.numel(); ++r, at += width) {
    draw_normal(drawn.data(), width, random_key(seed, "noise", uint64_t(epoch), uint64_t(samples[r])), 0);
    for (int64_t i = 0; i < width; ++i) at[i] += float(deviation_ * drawn[size_t(i)]);
  }
}

}  // namespace convoy
