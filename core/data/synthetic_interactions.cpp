// Interaction r is a function of (seed, r), so that all are drawn in parallel.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/data/column_cache.h"
#include "core/data/synthetic.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/random_keys.h"

namespace convoy {
namespace {

// Ranks 0 … n−1 with weights near (rank+1)^−exponent: the inverse of the continuous distribution function.
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
        user_(sizes.users, sizes.user_exponent),
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

  // attempt: for whoever needs another item for the same row.
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

// What a cache belongs to. The number in front is that of the formulas here: whoever changes one raises it.
std::string described(const SyntheticInteractions& sizes, uint64_t seed) {
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

// Columns user, item, context, and the numbers of the rows held out, of which all lie behind the training part.
Columns plant_columns(const SyntheticInteractions& sizes, uint64_t seed) {
  const int64_t all = sizes.rows + sizes.users;
  Columns columns{{"user", at::empty({all}, at::kInt)}, {"item", at::empty({all}, at::kInt)}};
  if (sizes.context > 0) columns["context"] = at::empty({all, sizes.context}, at::kFloat);
  auto* user = columns["user"].mutable_data_ptr<int32_t>();
  auto* item = columns["item"].mutable_data_ptr<int32_t>();
  float* context = sizes.context > 0 ? columns["context"].mutable_data_ptr<float>() : nullptr;
  const Planter planter(sizes, seed);

  at::parallel_for(0, sizes.rows, 4096, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      float* own = context + row * sizes.context;
      planter.context(row, own);
      user[row] = planter.user(row);
      item[row] = planter.item(row, user[row], own, 0);
    }
  });

  std::vector<int32_t> trained(size_t(sizes.rows));
  std::iota(trained.begin(), trained.end(), 0);
  const Positives positives(sizes.users, sizes.items, user, item, trained);
  std::vector<char> found(size_t(sizes.users));
  at::parallel_for(0, sizes.users, 1024, [&](int64_t first, int64_t last) {
    for (int64_t u = first; u < last; ++u) {
      const int64_t row = sizes.rows + u;
      float* own = context + row * sizes.context;
      planter.context(row, own);
      user[row] = int32_t(u);
      for (int64_t attempt = 0; attempt < held_out_attempts && !found[size_t(u)]; ++attempt) {
        item[row] = planter.item(row, int32_t(u), own, attempt);
        found[size_t(u)] = !positives.contains(int32_t(u), item[row]);
      }
    }
  });
  columns["held_out"] = at::empty({std::count(found.begin(), found.end(), 1)}, at::kInt);
  auto* held_out = columns["held_out"].mutable_data_ptr<int32_t>();
  for (int64_t u = 0; u < sizes.users; ++u)
    if (found[size_t(u)]) *held_out++ = int32_t(sizes.rows + u);
  return columns;
}

// As plant_columns makes them, with numbers in their ranges.
bool is_sound(const Columns& columns, const SyntheticInteractions& sizes) {
  const int64_t all = sizes.rows + sizes.users;
  const bool whole = has_column(columns, "user", at::kInt, {all}) && has_column(columns, "item", at::kInt, {all}) &&
                     has_column(columns, "held_out", at::kInt, {-1}) &&
                     (sizes.context == 0 || has_column(columns, "context", at::kFloat, {all, sizes.context}));
  return whole && all_below(columns.at("user"), sizes.users) && all_below(columns.at("item"), sizes.items) &&
         all_below(columns.at("held_out"), all);
}

}  // namespace

PlantedInteractions plant_interactions(const SyntheticInteractions& sizes, uint64_t seed, const std::string& cache) {
  const int64_t all = sizes.rows + sizes.users;  // the last `users` rows are the held-out ones
  if (all > std::numeric_limits<int32_t>::max())
    throw Error(Failure::config, str("data.rows and data.users together are ", all, "; 2147483647 are the most"));
  const auto make = [&] { return plant_columns(sizes, seed); };
  const std::string how = described(sizes, seed);
  const auto sound = [&](const Columns& cached) { return is_sound(cached, sizes); };
  const Columns columns = cache.empty() ? make() : made_columns(cache, "synthetic-interactions", how, make, sound);
  PlantedInteractions made;
  made.all.fingerprint = hash_hex(how.data(), how.size());
  made.all.users = sizes.users;
  made.all.items = sizes.items;
  made.all.user = columns.at("user");
  made.all.item = columns.at("item");
  if (sizes.context > 0) made.all.context = columns.at("context");
  made.split.train.resize(size_t(sizes.rows));
  std::iota(made.split.train.begin(), made.split.train.end(), 0);
  const at::Tensor& held_out = columns.at("held_out");
  const auto* first = held_out.const_data_ptr<int32_t>();
  made.split.held_out.assign(first, first + held_out.numel());
  return made;
}

}  // namespace convoy
