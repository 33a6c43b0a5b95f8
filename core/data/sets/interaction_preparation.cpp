#include "core/data/sets/interaction_preparation.h"

#include <ATen/ops/empty.h>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/data/sampler.h"
#include "core/data/sets/interactions.h"

namespace convoy {
namespace {

void check_categories(const Preparation& preparation) {
  for (const PreparedColumn& column : preparation.columns())
    if (int64_t(column.categories.size()) > most_categories)
      throw Error(Failure::config, "data.categorical: column '", column.name, "' has ", column.categories.size(),
                  " categories, and each becomes an input of the model; the maximum is ", most_categories,
                  ": leave the column out of data.columns.context, or group its categories");
}

std::vector<std::string> named_columns_of(const std::vector<std::string>& names, int64_t columns) {
  std::vector<std::string> all = names;
  while (int64_t(all.size()) < columns) all.push_back(std::to_string(all.size() + 1));
  return all;
}

const Preparation* find_preparation(const Preparations* stored, const char* field) {
  if (stored == nullptr) return nullptr;
  const auto found = stored->find(field);
  return found == stored->end() ? nullptr : &found->second;
}

Preparation context_preparation(const Interactions& all, const std::vector<int32_t>& train,
                                const PreparationOptions& options, const Preparation* stored) {
  if (all.contexts() == 0) return {};
  if (stored != nullptr) {
    stored->check_words(all.context_words);
    return *stored;
  }
  // Without scaling and filling, the statistics serve the hint alone.
  constexpr size_t for_hint = 4096;
  const size_t count = options.scale || options.fill ? train.size() : std::min(train.size(), for_hint);
  const std::vector<int64_t> rows(train.begin(), train.begin() + std::ptrdiff_t(count));
  Preparation made(named_columns_of(all.context_names, all.contexts()), all.context_words, all.context, &rows, options);
  check_categories(made);
  if (const std::string hint = made.scale_hint(); !hint.empty()) log::warning(str("data: ", hint));
  return made;
}

Preparation features_preparation(const at::Tensor& features, const std::vector<std::string>& names,
                                 PreparationOptions options, const Preparation* stored) {
  if (!features.defined()) return {};
  if (stored != nullptr) return *stored;
  if (!options.scale && !options.fill) return {};
  return {named_columns_of(names, features.size(1)), {}, features, nullptr, options};
}

at::Tensor prepared_features(const Preparation& preparation, const at::Tensor& features) {
  return features.defined() ? preparation.applied(features) : features;
}

}  // namespace

PreparedInteractions::PreparedInteractions(const Interactions& all, const std::vector<int32_t>& train,
                                           PreparationOptions wanted, const Preparations* stored)
    : options(std::move(wanted)),
      context(context_preparation(all, train, options, find_preparation(stored, "context"))),
      item(features_preparation(all.item_features, all.item_feature_names, options,
                                find_preparation(stored, "item_features"))),
      user(features_preparation(all.user_features, all.user_feature_names, options,
                                find_preparation(stored, "user_features"))),
      item_features(prepared_features(item, all.item_features)),
      user_features(prepared_features(user, all.user_features)) {}

Preparations PreparedInteractions::preparations() const {
  Preparations all;
  if (!context.is_identity()) all["context"] = context;
  if (!item.is_identity()) all["item_features"] = item;
  if (!user.is_identity()) all["user_features"] = user;
  return all;
}

void number_context_words(Interactions& all, const Preparation& stored) {
  bool copied = false;
  for (size_t column = 0; column < all.context_words.size(); ++column) {
    ColumnWords& words = all.context_words[column];
    const ColumnWords& known = stored.columns()[column].categories;
    if (words == known) continue;
    std::vector<float> number;
    for (const std::string& word : words) {
      const auto found = std::find(known.begin(), known.end(), word);
      if (found == known.end())
        throw Error(Failure::corrupt_data, "category '", word, "' of context column '", all.context_names[column],
                    "' is not in the checkpoint; leave its lines out, or start anew with --set train.resume=never");
      number.push_back(float(found - known.begin()));
    }
    if (!copied) all.context = all.context.clone();
    copied = true;
    float* value = all.context.mutable_data_ptr<float>() + column;
    for (int64_t row = 0; row < all.size(); ++row, value += all.contexts()) *value = number[size_t(*value)];
    words = known;
  }
}

// Divides interactions into training rows and held-out rows.

namespace {

// The row to hold out for each user, or −1.
std::vector<int32_t> chosen_rows(const Interactions& all, Holdout holdout, uint64_t seed) {
  const int32_t* user = all.user.const_data_ptr<int32_t>();
  std::vector<int32_t> chosen(size_t(all.users), -1);
  std::vector<int32_t> count(size_t(all.users));
  if (holdout == Holdout::latest) {
    const double* time = all.time.const_data_ptr<double>();
    for (int64_t row = 0; row < all.size(); ++row) {
      auto& best = chosen[size_t(user[row])];
      if (best < 0 || time[row] >= time[best]) best = int32_t(row);
      ++count[size_t(user[row])];
    }
  } else {
    const uint64_t key = random_key(seed, "holdout");
    for (int64_t row = 0; row < all.size(); ++row) ++count[size_t(user[row])];
    std::vector<int32_t> left(size_t(all.users));
    for (size_t u = 0; u < left.size(); ++u) left[u] = int32_t(random_below(key, u, uint64_t(count[u])));
    for (int64_t row = 0; row < all.size(); ++row) {
      if (left[size_t(user[row])]-- == 0) chosen[size_t(user[row])] = int32_t(row);
    }
  }
  for (size_t u = 0; u < chosen.size(); ++u) {
    if (count[u] < 2) chosen[u] = -1;
  }
  return chosen;
}

std::vector<int32_t> rows_in_order(const Interactions& all, bool in_time) {
  std::vector<int32_t> rows(size_t(all.size()));
  std::iota(rows.begin(), rows.end(), 0);
  if (!in_time) return rows;
  const double* time = all.time.const_data_ptr<double>();
  std::stable_sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) { return time[a] < time[b]; });
  return rows;
}

// Marks the share `fraction` of each user's rows: the latest, or drawn ones.
std::vector<bool> chosen_fraction(const Interactions& all, const std::vector<int32_t>& order, bool drawn, uint64_t seed,
                                  double fraction) {
  const int32_t* user = all.user.const_data_ptr<int32_t>();
  std::vector<int64_t> left(size_t(all.users)), wanted(left.size());  // rows not yet seen; rows to choose from these
  for (int64_t row = 0; row < all.size(); ++row) ++left[size_t(user[row])];
  for (size_t u = 0; u < left.size(); ++u)
    if (left[u] > 1) wanted[u] = std::clamp<int64_t>(std::llround(fraction * double(left[u])), 1, left[u] - 1);
  const uint64_t key = random_key(seed, "holdout");
  std::vector<bool> chosen(size_t(all.size()));
  for (const int32_t row : order) {
    int64_t &rest = left[size_t(user[row])], &more = wanted[size_t(user[row])];
    // Each choice of `more` rows out of `rest` is equally likely.
    const bool take = drawn ? int64_t(random_below(key, uint64_t(row), uint64_t(rest))) < more : rest <= more;
    chosen[size_t(row)] = take;
    --rest;
    more -= take ? 1 : 0;
  }
  return chosen;
}

// Marks the last share `fraction` of all rows.
std::vector<bool> chosen_after(const Interactions& all, const std::vector<int32_t>& order, double fraction) {
  const int64_t held_out = std::clamp<int64_t>(std::llround(fraction * double(all.size())), 1, all.size());
  std::vector<bool> chosen(size_t(all.size()));
  for (size_t i = order.size() - size_t(held_out); i < order.size(); ++i) chosen[size_t(order[i])] = true;
  return chosen;
}

// Train rows in the order of the source; held-out rows by user, in `order`. Leaves out held-out rows of users without a
// training row.
InteractionSplit split_by(const Interactions& all, const std::vector<int32_t>& order, const std::vector<bool>& chosen) {
  const int32_t* user = all.user.const_data_ptr<int32_t>();
  InteractionSplit split;
  std::vector<int64_t> begin(size_t(all.users) + 1);
  std::vector<bool> trained(size_t(all.users));
  for (int64_t row = 0; row < all.size(); ++row) {
    if (chosen[size_t(row)]) continue;
    split.train.push_back(int32_t(row));
    trained[size_t(user[row])] = true;
  }
  const auto counts = [&](int32_t row) { return chosen[size_t(row)] && trained[size_t(user[row])]; };
  for (const int32_t row : order)
    if (counts(row)) ++begin[size_t(user[row]) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  split.held_out.resize(size_t(begin.back()));
  for (const int32_t row : order)
    if (counts(row)) split.held_out[size_t(begin[size_t(user[row])]++)] = row;
  return split;
}

}  // namespace

InteractionSplit split_interactions(const Interactions& all, Holdout holdout, uint64_t seed, double fraction) {
  InteractionSplit split;
  if (holdout == Holdout::none) {
    split.train.resize(size_t(all.size()));
    std::iota(split.train.begin(), split.train.end(), 0);
    return split;
  }
  if (holdout != Holdout::random && !all.time.defined()) {
    throw Error(Failure::config, "holdout: ", holdout == Holdout::time ? "time" : "latest",
                " needs a time for each interaction: name its column by "
                "data.columns.time, or set holdout: random");
  }
  if (fraction > 0) {
    const std::vector<int32_t> order = rows_in_order(all, holdout != Holdout::random);
    return split_by(all, order,
                    holdout == Holdout::time ? chosen_after(all, order, fraction)
                                             : chosen_fraction(all, order, holdout == Holdout::random, seed, fraction));
  }
  CONVOY_CHECK(holdout != Holdout::time, "a split by time needs a fraction");
  const auto chosen = chosen_rows(all, holdout, seed);
  const int32_t* user = all.user.const_data_ptr<int32_t>();
  split.train.reserve(size_t(all.size()));
  for (int64_t row = 0; row < all.size(); ++row) {
    if (chosen[size_t(user[row])] != row) split.train.push_back(int32_t(row));
  }
  for (int32_t row : chosen) {
    if (row >= 0) split.held_out.push_back(row);
  }
  return split;
}

}  // namespace convoy
