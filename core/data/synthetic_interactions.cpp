// Interaction r is a function of (seed, r), so that all are drawn in parallel.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/data/synthetic.h"
#include "core/error.h"
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
    for (int64_t c = 0; c < sizes_.context; ++c) {
      out[c] = float(philox(context_key_, uint64_t(row), uint64_t(c))[0] >> 8) * 0x1p-24f;
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

}  // namespace

PlantedInteractions plant_interactions(const SyntheticInteractions& sizes, uint64_t seed) {
  const int64_t all = sizes.rows + sizes.users;  // the last `users` rows are the held-out ones
  if (all > std::numeric_limits<int32_t>::max())
    throw Error(Failure::config, str("data.rows and data.users together are ", all, "; 2147483647 are the most"));
  PlantedInteractions made;
  made.all.users = sizes.users;
  made.all.items = sizes.items;
  made.all.user = at::empty({all}, at::kInt);
  made.all.item = at::empty({all}, at::kInt);
  if (sizes.context > 0) made.all.context = at::empty({all, sizes.context}, at::kFloat);
  auto* user = made.all.user.mutable_data_ptr<int32_t>();
  auto* item = made.all.item.mutable_data_ptr<int32_t>();
  float* context = sizes.context > 0 ? made.all.context.mutable_data_ptr<float>() : nullptr;
  const Planter planter(sizes, seed);

  at::parallel_for(0, sizes.rows, 4096, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      float* own = context + row * sizes.context;
      planter.context(row, own);
      user[row] = planter.user(row);
      item[row] = planter.item(row, user[row], own, 0);
    }
  });
  made.split.train.resize(size_t(sizes.rows));
  for (int64_t row = 0; row < sizes.rows; ++row) made.split.train[size_t(row)] = int32_t(row);

  const Positives positives(sizes.users, sizes.items, user, item, made.split.train);
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
  for (int64_t u = 0; u < sizes.users; ++u) {
    if (found[size_t(u)]) made.split.held_out.push_back(int32_t(sizes.rows + u));
  }
  return made;
}

}  // namespace convoy
