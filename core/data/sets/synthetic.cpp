// --- Vectors: a hash determines a row's class and its range of noise; one loop adds prototype and noise ---

#include "core/data/sets/synthetic.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/base/hash.h"
#include "core/base/random_keys.h"
#include "core/data/readers/column_cache.h"

namespace convoy {
namespace {

constexpr int64_t noise_starts = 1 << 16;  // start positions in the table of noise

std::vector<float> normals(uint64_t key, int64_t count, double factor) {
  std::vector<double> drawn(size_t(std::min<int64_t>(count, 4096)));
  std::vector<float> values(size_t(count), 0);
  for (int64_t at = 0; at < count; at += int64_t(drawn.size())) {
    const int64_t block = std::min<int64_t>(count - at, int64_t(drawn.size()));
    draw_normal(drawn.data(), block, key, uint64_t(at));
    for (int64_t i = 0; i < block; ++i) values[size_t(at + i)] = float(factor * drawn[size_t(i)]);
  }
  return values;
}

// --- Interactions: interaction r is a function of (seed, r), so all are drawn in parallel ---

// Draws ranks 0 … n−1 with weights near (rank+1)^−exponent: the inverse of the continuous distribution function.
class Zipf {
 public:
  Zipf(int64_t n, double exponent) : n_(n), logarithmic_(std::abs(exponent - 1) < 1e-9), power_(1 - exponent) {
    span_ = logarithmic_ ? std::log(double(n) + 1) : std::pow(double(n) + 1, power_) - 1;
  }
  int64_t at(double uniform) const {
    const double x = logarithmic_ ? std::exp(uniform * span_) : std::pow(1 + uniform * span_, 1 / power_);
    return std::clamp<int64_t>(int64_t(x) - 1, 0, n_ - 1);
  }

 private:
  int64_t n_;
  bool logarithmic_;
  double power_;
  double span_;
};

class Planter {
 public:
  Planter(const SyntheticInteractions& sizes, uint64_t seed)
      : sizes_(sizes),
        key_(random_key(seed, "synthetic interactions")),
        context_key_(random_key(seed, "synthetic context")),
        group_key_(random_key(seed, "synthetic groups")),
        user_(sizes.occurring(), sizes.user_exponent),
        any_item_(sizes.items, sizes.item_exponent),
        group_item_(sizes.items / sizes.groups, sizes.item_exponent) {}

  int32_t user(int64_t row) const { return int32_t(user_.at(random_uniform(key_, uint64_t(row) * 2))); }

  void context(int64_t row, float* out) const {
    for (int64_t c = 0; c < sizes_.context; c += 4) {
      const auto words = philox(context_key_, uint64_t(row), uint64_t(c));
      for (int64_t i = c; i < std::min(c + 4, sizes_.context); ++i)
        out[i] = float(words[size_t(i - c)] >> 8) * 0x1p-24f;
    }
  }

  // attempt: a larger one gives another item for the same row.
  int32_t item(int64_t row, int32_t user, const float* context, int64_t attempt) const {
    const auto words = philox(key_, uint64_t(row), uint64_t(attempt) + 1);
    const double uniform = double(words[0]) * 0x1p-32;
    if (double(words[1]) * 0x1p-32 >= sizes_.preference) return int32_t(any_item_.at(uniform));
    const int64_t shift = sizes_.context > 0 && context[0] >= 0.5f ? 1 : 0;
    const int64_t group =
        (int64_t(random_below(group_key_, uint64_t(user), uint64_t(sizes_.groups))) + shift) % sizes_.groups;
    return int32_t(group_item_.at(uniform) * sizes_.groups + group);
  }

 private:
  const SyntheticInteractions sizes_;
  const uint64_t key_, context_key_, group_key_;
  const Zipf user_, any_item_, group_item_;
};

constexpr int64_t held_out_attempts = 64;

// The key of a cache. The number in front is the version of the formulas here: raise it with every change.
std::string cache_key(const SyntheticInteractions& sizes, uint64_t seed) {
  return Json{{"formulas", 1},
              {"seed", seed},
              {"rows", sizes.rows},
              {"users", sizes.users},
              {"items", sizes.items},
              {"context", sizes.context},
              {"user_exponent", sizes.user_exponent},
              {"item_exponent", sizes.item_exponent},
              {"preference", sizes.preference},
              {"groups", sizes.groups}}
      .dump();
}

// Columns user and item, context, and the numbers of the held-out rows, which are all after the training rows.
Columns plant_columns(const SyntheticInteractions& sizes, uint64_t seed) {
  const int64_t all = sizes.rows + sizes.occurring();
  Columns columns{{"user", at::empty({all}, at::kInt)}, {"item", at::empty({all}, at::kInt)}};
  if (sizes.context > 0) columns["context"] = at::empty({all, sizes.context}, at::kFloat);
  auto* user = columns["user"].mutable_data_ptr<int32_t>();
  auto* item = columns["item"].mutable_data_ptr<int32_t>();
  float* context = sizes.context > 0 ? columns["context"].mutable_data_ptr<float>() : nullptr;
  const Planter planter(sizes, seed);

  at::parallel_for(0, sizes.rows, 4096, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      float* row_context = context + row * sizes.context;
      planter.context(row, row_context);
      user[row] = planter.user(row);
      item[row] = planter.item(row, user[row], row_context, 0);
    }
  });

  std::vector<int32_t> trained(size_t(sizes.rows));
  std::iota(trained.begin(), trained.end(), 0);
  const Positives positives(sizes.occurring(), sizes.items, user, item, trained);
  std::vector<char> found(size_t(sizes.occurring()));
  at::parallel_for(0, sizes.occurring(), 1024, [&](int64_t first, int64_t last) {
    for (int64_t u = first; u < last; ++u) {
      const int64_t row = sizes.rows + u;
      float* row_context = context + row * sizes.context;
      planter.context(row, row_context);
      user[row] = int32_t(u);
      for (int64_t attempt = 0; attempt < held_out_attempts && !found[size_t(u)]; ++attempt) {
        item[row] = planter.item(row, int32_t(u), row_context, attempt);
        found[size_t(u)] = !positives.contains(int32_t(u), item[row]);
      }
    }
  });
  columns["held_out"] = at::empty({std::count(found.begin(), found.end(), 1)}, at::kInt);
  auto* held_out = columns["held_out"].mutable_data_ptr<int32_t>();
  for (int64_t u = 0; u < sizes.occurring(); ++u)
    if (found[size_t(u)]) *held_out++ = int32_t(sizes.rows + u);
  return columns;
}

// True if `columns` has the form that plant_columns makes, with all numbers within their ranges.
bool are_valid_columns(const Columns& columns, const SyntheticInteractions& sizes) {
  const int64_t all = sizes.rows + sizes.occurring();
  const bool whole = has_column(columns, "user", at::kInt, {all}) && has_column(columns, "item", at::kInt, {all}) &&
                     has_column(columns, "held_out", at::kInt, {-1}) &&
                     (sizes.context == 0 || has_column(columns, "context", at::kFloat, {all, sizes.context}));
  return whole && all_below(columns.at("user"), sizes.users) && all_below(columns.at("item"), sizes.items) &&
         all_below(columns.at("held_out"), all);
}

}  // namespace

SyntheticVectors::SyntheticVectors(const Shape& shape, uint64_t seed)
    : shape_(shape), key_(random_key(seed, "synthetic rows")) {
  for (int64_t size : shape_.features) width_ *= size;
  const double factor = shape_.classification ? 1 : 1 / std::sqrt(double(width_));
  noise_ = normals(random_key(seed, "synthetic noise"), noise_starts + width_, 1);
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

Batch SyntheticVectors::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, BatchBuffers& buffers) const {
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
    const float* noise = noise_.data() + words[0] % noise_starts;
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
      float sum = amount * noise_[(words[1] + uint32_t(t)) % noise_starts];
      for (int64_t i = 0; i < width_; ++i) sum += map[i] * x[i];
      target.mutable_data_ptr<float>()[r * shape_.targets + t] = sum;
    }
  }
  return {{{"features", features}, {"target", target}}, rows};
}

DatasetPtr make_synthetic(const Options& options, uint64_t seed, bool few_rows) {
  constexpr int64_t enough = 1 << 17, most_users = 1 << 21;
  const int64_t rows = few_rows ? std::min(options.integer("rows"), enough) : options.integer("rows");
  if (options.text("kind") == "interactions") {
    SyntheticInteractions sizes;
    sizes.rows = rows;
    sizes.users = options.integer("users");
    if (few_rows) sizes.drawn_users = std::min(sizes.users, most_users);
    sizes.items = options.integer("items");
    sizes.context = options.integer("context");
    sizes.user_exponent = options.real("user_exponent");
    sizes.item_exponent = options.real("item_exponent");
    sizes.preference = options.real("preference");
    sizes.groups = options.integer("groups");
    if (sizes.groups > sizes.items) options.fail("groups", "are more than items");
    auto planted = plant_interactions(sizes, seed, options.has("cache") && !few_rows ? options.text("cache") : "");
    return std::make_shared<InteractionsDataset>(std::move(planted.all), std::move(planted.split),
                                                 RankingOptions::from(options), seed);
  }
  if (options.text("kind") == "tokens") {
    SyntheticTokens::Shape shape;
    shape.rows = rows;
    shape.evaluate_rows = options.integer("evaluate_rows");
    shape.vocabulary = options.integer("vocabulary");
    shape.length = options.integer("length");
    return std::make_shared<SyntheticTokens>(shape, seed);
  }
  SyntheticVectors::Shape shape;
  shape.classification = options.text("kind") == "classification";
  shape.rows = rows;
  shape.evaluate_rows = options.integer("evaluate_rows");
  shape.features = options.integers("features");
  if (shape.features.empty()) options.fail("features", "needs at least one size");
  shape.classes = options.integer("classes");
  shape.targets = options.integer("targets");
  shape.noise = options.real("noise");
  return std::make_shared<SyntheticVectors>(shape, seed);
}

PlantedInteractions plant_interactions(const SyntheticInteractions& sizes, uint64_t seed, const std::string& cache) {
  const int64_t all = sizes.rows + sizes.occurring();  // the last rows are the held-out ones
  if (all > std::numeric_limits<int32_t>::max())
    throw Error(Failure::config, "data.rows and data.users together are ", all, "; the maximum is 2147483647");
  const auto make = [&] { return plant_columns(sizes, seed); };
  const std::string how = cache_key(sizes, seed);
  const auto check = [&](const Columns& cached) { return are_valid_columns(cached, sizes); };
  const Columns columns = cache.empty() ? make() : made_columns(cache, "synthetic-interactions", how, make, check);
  PlantedInteractions result;
  result.all.fingerprint = hash_hex(how.data(), how.size());
  result.all.users = sizes.users;
  result.all.items = sizes.items;
  result.all.user = columns.at("user");
  result.all.item = columns.at("item");
  if (sizes.context > 0) result.all.context = columns.at("context");
  result.split.train.resize(size_t(sizes.rows));
  std::iota(result.split.train.begin(), result.split.train.end(), 0);
  const at::Tensor& held_out = columns.at("held_out");
  const auto* first = held_out.const_data_ptr<int32_t>();
  result.split.held_out.assign(first, first + held_out.numel());
  return result;
}

SyntheticTokens::SyntheticTokens(const Shape& shape, uint64_t seed)
    : shape_(shape), key_(random_key(seed, "synthetic tokens")) {
  const uint64_t key = random_key(seed, "synthetic successors");
  next_.resize(static_cast<size_t>(shape_.vocabulary * successors));
  for (size_t i = 0; i < next_.size(); ++i)
    next_[i] = static_cast<int64_t>(random_below(key, i, static_cast<uint64_t>(shape_.vocabulary)));
}

DataContents SyntheticTokens::contents() const {
  return {combined_fingerprint({"tokens", str(key_), str(shape_.rows), str(shape_.vocabulary), str(shape_.length)}),
          shape_.rows,
          {}};
}

Schema SyntheticTokens::schema() const {
  Schema schema;
  schema.fields["tokens"] = {{shape_.length}, at::kLong, shape_.vocabulary};
  schema.fields["target"] = {{shape_.length}, at::kLong, shape_.vocabulary};
  return schema;
}

Batch SyntheticTokens::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, BatchBuffers& buffers) const {
  const int64_t rows = indices.numel();
  at::Tensor tokens = buffers.take("tokens", {rows, shape_.length}, at::kLong);
  at::Tensor target = buffers.take("target", {rows, shape_.length}, at::kLong);
  const int64_t offset = split == Split::train ? 0 : shape_.rows;
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  auto* from = tokens.mutable_data_ptr<int64_t>();
  auto* to = target.mutable_data_ptr<int64_t>();
  for (int64_t r = 0; r < rows; ++r, from += shape_.length, to += shape_.length) {
    const auto row = static_cast<uint64_t>(offset + samples[r]);
    // Draw 0 begins the sequence, draw t + 1 follows token t; each counter gives four draws.
    auto words = philox(key_, row, 0);
    int64_t token = static_cast<int64_t>(uint64_t(words[0]) * static_cast<uint64_t>(shape_.vocabulary) >> 32);
    for (int64_t t = 0; t < shape_.length; ++t) {
      const auto draw = static_cast<uint64_t>(t + 1);
      if (draw % 4 == 0) words = philox(key_, row, draw / 4);
      from[t] = token;
      token = next_[static_cast<size_t>(token * successors + static_cast<int64_t>(words[draw % 4] % successors))];
      to[t] = token;
    }
  }
  return {{{"tokens", tokens}, {"target", target}}, rows};
}

}  // namespace convoy
