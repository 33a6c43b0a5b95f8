#include "core/data/sets/interaction_preparation.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/data/sets/interactions.h"

namespace convoy {
namespace {

void check_categories(const Preparation& preparation) {
  for (const PreparedColumn& column : preparation.columns())
    if (int64_t(column.categories.size()) > most_categories)
      throw Error(Failure::config, "data.categorical: column '", column.name, "' has ", column.categories.size(),
                  " categories, and each becomes an input of the model; ", most_categories,
                  " are the most: leave the column out of data.columns.context, or group its categories");
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

}  // namespace convoy
