// Vectors: a hash gives a row its class and its stretch of noise, and one loop adds prototype and noise.
#include "core/data/synthetic.h"

#include <algorithm>
#include <cmath>

#include "core/data/synthetic_tokens.h"
#include "core/error.h"
#include "core/random_keys.h"

namespace convoy {
namespace {

constexpr int64_t stretches = 1 << 16;  // different starts into the table of noise

std::vector<float> normals(uint64_t key, int64_t count, double factor) {
  std::vector<double> drawn(size_t(std::min<int64_t>(count, 4096)));
  std::vector<float> values(size_t(count), 0);
  for (int64_t at = 0; at < count; at += int64_t(drawn.size())) {
    const int64_t part = std::min<int64_t>(count - at, int64_t(drawn.size()));
    draw_normal(drawn.data(), part, key, uint64_t(at));
    for (int64_t i = 0; i < part; ++i) values[size_t(at + i)] = float(factor * drawn[size_t(i)]);
  }
  return values;
}

}  // namespace

SyntheticVectors::SyntheticVectors(const Shape& shape, uint64_t seed)
    : shape_(shape), key_(random_key(seed, "synthetic rows")) {
  for (int64_t size : shape_.features) width_ *= size;
  const double factor = shape_.classification ? 1 : 1 / std::sqrt(double(width_));
  noise_ = normals(random_key(seed, "synthetic noise"), stretches + width_, 1);
  prototypes_ = normals(random_key(seed, "synthetic prototypes"),
                        (shape_.classification ? shape_.classes : shape_.targets) * width_, factor);
}

Schema SyntheticVectors::schema() const {
  Schema schema;
  schema.fields["features"] = {shape_.features, at::kFloat, 0};
  if (shape_.classification) {
    schema.fields["target"] = {{}, at::kLong, shape_.classes};
  } else {
    schema.fields["target"] = {{shape_.targets}, at::kFloat, 0};
  }
  return schema;
}

DataContents SyntheticVectors::contents() const {
  return {combined_fingerprint({"vectors", str(key_), str(shape_.classification), str(shape_.rows),
                                convoy::str(at::IntArrayRef(shape_.features)), str(shape_.classes), str(shape_.targets),
                                str(shape_.noise)}),
          shape_.rows,
          {}};
}

int64_t SyntheticVectors::size(Split split) const { return split == Split::train ? shape_.rows : shape_.evaluate_rows; }

Batch SyntheticVectors::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, Buffers& buffers) const {
  const int64_t rows = indices.numel();
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  const int64_t offset = split == Split::train ? 0 : shape_.rows;
  std::vector<int64_t> sizes{rows};
  sizes.insert(sizes.end(), shape_.features.begin(), shape_.features.end());
  auto features = buffers.take("features", sizes, at::kFloat);
  auto target = shape_.classification ? buffers.take("target", {rows}, at::kLong)
                                      : buffers.take("target", {rows, shape_.targets}, at::kFloat);
  float* x = features.mutable_data_ptr<float>();
  const auto amount = float(shape_.noise);

  for (int64_t r = 0; r < rows; ++r, x += width_) {
    const auto words = philox(key_, uint64_t(offset + samples[r]), 0);
    const float* noise = noise_.data() + words[0] % stretches;
    if (shape_.classification) {
      const int64_t label = int64_t(uint64_t(words[1]) * uint64_t(shape_.classes) >> 32);
      const float* prototype = prototypes_.data() + label * width_;
      for (int64_t i = 0; i < width_; ++i) x[i] = prototype[i] + amount * noise[i];
      target.mutable_data_ptr<int64_t>()[r] = label;
      continue;
    }
    std::copy(noise, noise + width_, x);
    for (int64_t t = 0; t < shape_.targets; ++t) {
      const float* map = prototypes_.data() + t * width_;
      float sum = amount * noise_[(words[1] + uint32_t(t)) % stretches];
      for (int64_t i = 0; i < width_; ++i) sum += map[i] * x[i];
      target.mutable_data_ptr<float>()[r * shape_.targets + t] = sum;
    }
  }
  Batch batch;
  batch.rows = rows;
  batch.tensors = {{"features", features}, {"target", target}};
  return batch;
}

DatasetPtr make_synthetic(const Options& options, uint64_t seed) {
  if (options.text("kind") == "interactions") {
    SyntheticInteractions sizes;
    sizes.rows = options.integer("rows");
    sizes.users = options.integer("users");
    sizes.items = options.integer("items");
    sizes.context = options.integer("context");
    sizes.user_exponent = options.real("user_exponent");
    sizes.item_exponent = options.real("item_exponent");
    sizes.preference = options.real("preference");
    sizes.groups = options.integer("groups");
    if (sizes.groups > sizes.items) options.fail("groups", "are more than items");
    auto planted = plant_interactions(sizes, seed, options.has("cache") ? options.text("cache") : "");
    return std::make_shared<InteractionsDataset>(std::move(planted.all), std::move(planted.split),
                                                 RankingOptions::from(options), seed);
  }
  if (options.text("kind") == "tokens") {
    SyntheticTokens::Shape shape;
    shape.rows = options.integer("rows");
    shape.evaluate_rows = options.integer("evaluate_rows");
    shape.vocabulary = options.integer("vocabulary");
    shape.length = options.integer("length");
    return std::make_shared<SyntheticTokens>(shape, seed);
  }
  SyntheticVectors::Shape shape;
  shape.classification = options.text("kind") == "classification";
  shape.rows = options.integer("rows");
  shape.evaluate_rows = options.integer("evaluate_rows");
  shape.features = options.integers("features");
  if (shape.features.empty()) options.fail("features", "needs at least one size");
  shape.classes = options.integer("classes");
  shape.targets = options.integer("targets");
  shape.noise = options.real("noise");
  return std::make_shared<SyntheticVectors>(shape, seed);
}

}  // namespace convoy
