#include "core/data/sets/interactions.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/data/rows.h"
#include "core/data/sampler.h"

namespace convoy {

// --- Prepared columns ---

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

namespace {

// Gives the words of the context columns the numbers of the stored preparation. Error(corrupt_data) for a word that it
// lacks.
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
                    "' is not in the checkpoint; leave its lines out, or start again with --set train.resume=never");
      number.push_back(float(found - known.begin()));
    }
    if (!copied) all.context = all.context.clone();
    copied = true;
    float* value = all.context.mutable_data_ptr<float>() + column;
    for (int64_t row = 0; row < all.size(); ++row, value += all.contexts()) *value = number[size_t(*value)];
    words = known;
  }
}

}  // namespace

// --- Split: training rows and held-out rows ---

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

// --- The numbers of a checkpoint ---

namespace {

at::Tensor mapped_ids(const at::Tensor& ids, const std::vector<int64_t>& numbers) {
  at::Tensor mapped = at::empty_like(ids);
  const int32_t* from = ids.const_data_ptr<int32_t>();
  auto* to = mapped.mutable_data_ptr<int32_t>();
  for (int64_t row = 0; row < ids.numel(); ++row) to[row] = int32_t(numbers[size_t(from[row])]);
  return mapped;
}

const NameList& names_in(const DataContents& stored, const char* list) {
  const auto found = stored.lists.find(list);
  CONVOY_CHECK(found != stored.lists.end(), "no ", list, " to number interactions by");
  return found->second.names;
}

std::vector<int64_t> numbers_in(const NameList& stored, const NameList& names) {
  std::vector<int64_t> numbers = NameNumbers(stored).find_all(names);
  CONVOY_CHECK(std::find(numbers.begin(), numbers.end(), -1) == numbers.end(), "a name without a stored number");
  return numbers;
}

// Features of all stored ids: those of this data, and the stored ones of ids that this data lacks.
at::Tensor renumbered_features(const std::vector<Features>& sources, const NameList& ids, const std::string& entity,
                               const DataContents& stored) {
  const NameList& columns = names_in(stored, (entity + "_feature_columns").c_str());
  std::vector<int64_t> here, missing;
  for (int64_t id = 0; id < ids.size(); ++id) here.push_back(id);
  for (const Features& source : sources) {
    const std::vector<int64_t> found = NameNumbers(source.ids).find_all(ids);
    const auto is_missing = [&](int64_t id) { return found[size_t(id)] < 0; };
    std::copy_if(here.begin(), here.end(), std::back_inserter(missing), is_missing);
    here.erase(std::remove_if(here.begin(), here.end(), is_missing), here.end());
  }
  at::Tensor features;
  if (const auto stored_features = stored.lists.find(entity + "_features"); stored_features != stored.lists.end())
    features = rows_from_bytes(stored_features->second.names, columns.size());
  if (!features.defined() || features.size(0) != ids.size()) {
    if (!missing.empty())
      throw Error(Failure::config, "data.changed: allow is not possible: this data has no features of ", entity, " '",
                  ids[missing.front()], "'", missing.size() > 1 ? str(" and ", missing.size() - 1, " more") : "",
                  ", and the checkpoint, from an earlier version, has none either; give data in which each ", entity,
                  " of the checkpoint has its features, or start again with --set train.resume=never");
    features = at::empty({ids.size(), columns.size()}, at::kFloat);
  }
  std::vector<std::string_view> names;
  for (int64_t id : here) names.push_back(ids[id]);
  const std::vector<int64_t> order = numbers_in(NameList(feature_names(sources)), columns);
  const at::Tensor local = features_of(sources, NameList(names), entity).index_select(1, at::tensor(order));
  return features.index_copy_(0, at::tensor(here), local);
}

void renumber_features(Interactions& result, const DataContents& stored) {
  const auto renumber = [&](const std::vector<Features>& sources, const NameList& ids, const std::string& entity,
                            at::Tensor& features, std::vector<std::string>& names) {
    if (sources.empty()) return;
    features = renumbered_features(sources, ids, entity, stored);
    names = names_in(stored, (entity + "_feature_columns").c_str()).strings();
  };
  renumber(result.item_sources, result.item_names, "item", result.item_features, result.item_feature_names);
  renumber(result.user_sources, result.user_names, "user", result.user_features, result.user_feature_names);
}

}  // namespace

Interactions renumbered(const Interactions& all, const DataContents& stored) {
  Interactions result = all;
  result.user_names = names_in(stored, "users");
  result.item_names = names_in(stored, "items");
  result.users = result.user_names.size();
  result.items = result.item_names.size();
  result.user = mapped_ids(all.user, numbers_in(result.user_names, all.user_names));
  result.item = mapped_ids(all.item, numbers_in(result.item_names, all.item_names));
  renumber_features(result, stored);
  if (all.context_names.empty()) return result;
  const NameList& columns = names_in(stored, "context_columns");
  const std::vector<int64_t> order = numbers_in(NameList(all.context_names), columns);
  result.context = all.context.index_select(1, at::tensor(order));
  result.context_names = columns.strings();
  result.context_words.clear();
  for (int64_t column : order)
    if (!all.context_words.empty()) result.context_words.push_back(all.context_words[size_t(column)]);
  if (all.context_kinds.defined()) result.context_kinds = all.context_kinds.index_select(0, at::tensor(order));
  return result;
}

// --- InteractionsDataset ---

RankingOptions RankingOptions::from(const Options& options) {
  RankingOptions result;
  result.negatives = options.integer("negatives");
  result.full = options.text("ranking") == "full";
  result.candidates = options.integer("candidates");
  const auto evaluate = options.section("evaluate");
  if (evaluate.has("users")) result.evaluate_users = evaluate.integer("users");
  if (evaluate.has("fraction")) result.fraction = evaluate.real("fraction");
  return result;
}

InteractionsDataset::InteractionsDataset(Interactions all, InteractionSplit split, const RankingOptions& options,
                                         uint64_t seed, const PreparationOptions& prepare, const Preparations* stored)
    : all_(std::move(all)), split_(std::move(split)), options_(options), seed_(seed) {
  CONVOY_CHECK(!all_.item_features.defined() || all_.item_features.size(0) == all_.items, "features of other items");
  CONVOY_CHECK(!all_.user_features.defined() || all_.user_features.size(0) == all_.users, "features of other users");
  if (split_.train.empty()) throw Error(Failure::corrupt_data, "no interaction is left to train on");
  choose_evaluated_users();
  // Users without an interaction take no memory: planted data may declare many more than it has.
  positives_ = Positives(all_.user.max().item<int64_t>() + 1, all_.items, all_.user.const_data_ptr<int32_t>(),
                         all_.item.const_data_ptr<int32_t>(), split_.train);
  check_drawable();
  prepared_ = PreparedInteractions(all_, split_.train, prepare, stored);
}

InteractionsDataset::InteractionsDataset(Interactions all, Holdout holdout, const RankingOptions& options,
                                         uint64_t seed, const PreparationOptions& prepare, const Preparations* stored)
    : InteractionsDataset(all, split_interactions(all, holdout, seed, options.fraction), options, seed, prepare,
                          stored) {
  holdout_ = holdout;
}

// Groups the held-out rows by user, and draws users if not all are evaluated.
void InteractionsDataset::choose_evaluated_users() {
  const int32_t* user = all_.user.const_data_ptr<int32_t>();
  std::vector<int32_t>& rows = split_.held_out;
  std::vector<int64_t> begin;
  for (size_t i = 0; i < rows.size(); ++i)
    if (i == 0 || user[rows[i]] != user[rows[i - 1]]) begin.push_back(int64_t(i));
  begin.push_back(int64_t(rows.size()));
  const auto users = int64_t(begin.size()) - 1;
  std::vector<int64_t> chosen(static_cast<size_t>(users));
  std::iota(chosen.begin(), chosen.end(), 0);
  if (options_.evaluate_users > 0 && options_.evaluate_users < users) {
    const Permutation drawn(users, seed_, "evaluated users");
    chosen.resize(size_t(options_.evaluate_users));
    for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = drawn.at(int64_t(i));
    std::sort(chosen.begin(), chosen.end());
  }
  std::vector<int32_t> kept;
  for (const int64_t number : chosen) {
    held_out_begin_.push_back(int64_t(kept.size()));
    first_held_out_.push_back(rows[size_t(begin[size_t(number)])]);
    kept.insert(kept.end(), rows.begin() + begin[size_t(number)], rows.begin() + begin[size_t(number) + 1]);
  }
  held_out_begin_.push_back(int64_t(kept.size()));
  rows = std::move(kept);
}

DataContents InteractionsDataset::contents() const {
  DataContents contents{all_.fingerprint, all_.size(), {}};
  if (!holdout_) return contents;
  contents.lists["users"] = {all_.user_names};
  contents.lists["items"] = {all_.item_names};
  contents.lists["context_columns"] = {NameList(all_.context_names), true};
  const auto add = [&](const std::string& entity, const std::vector<std::string>& names, const at::Tensor& features) {
    if (names.empty()) return;
    contents.lists[entity + "_feature_columns"] = {NameList(names), true};
    contents.lists[entity + "_features"] = {rows_as_bytes(features)};
  };
  add("item", all_.item_feature_names, all_.item_features);
  add("user", all_.user_feature_names, all_.user_features);
  if (const Preparations made = prepared_.preparations(); !made.empty())
    contents.lists["preparation"] = stored_preparations(made);
  return contents;
}

DatasetPtr InteractionsDataset::numbered_as(const DataContents& stored) const {
  if (!holdout_) return nullptr;
  Interactions all = renumbered(all_, stored);
  const Preparations preparations = preparations_of(stored);
  const auto context = preparations.find("context");
  if (context != preparations.end()) context->second.check_words(all.context_words);
  if (context != preparations.end()) number_context_words(all, context->second);
  return std::make_shared<InteractionsDataset>(std::move(all), *holdout_, options_, seed_, prepared_.options,
                                               &preparations);
}

void InteractionsDataset::check_drawable() const {
  const int32_t* user = all_.user.const_data_ptr<int32_t>();
  const auto check = [&](int32_t row, int64_t others, int64_t wanted, const char* what) {
    const int64_t left = all_.items - positives_.count(user[row]) - others;
    if (left >= wanted) return;
    throw Error(Failure::config, "the user of interaction ", row + 1, " has touched all but ", left, " of ", all_.items,
                " items, so that ", wanted, " cannot be drawn as ", what);
  };
  if (options_.negatives > 0) {
    for (int32_t row : split_.train) check(row, 0, 1, "a negative: leave that user out, or set data.negatives: 0");
  }
  if (!options_.full) {
    for (int32_t row : split_.held_out)
      check(row, 1, options_.candidates, "candidates: lower data.candidates, or set data.ranking: full");
  }
}

Schema InteractionsDataset::schema() const {
  Schema schema;
  schema.fields["user"] = {{}, at::kLong, all_.users};
  schema.fields["item"] = {{1 + options_.negatives}, at::kLong, all_.items};
  schema.fields["target"] = {{1 + options_.negatives}, at::kFloat, 0};
  if (all_.contexts() > 0) schema.fields["context"] = {{prepared_.contexts()}, at::kFloat, 0};
  if (all_.weight.defined()) schema.fields["weight"] = {{}, at::kFloat, 0};
  if (all_.user_features.defined()) schema.fields["user_features"] = {{prepared_.user_features.size(1)}, at::kFloat, 0};
  if (all_.item_features.defined())
    schema.fields["item_features"] = {{1 + options_.negatives, prepared_.item_features.size(1)}, at::kFloat, 0};
  return schema;
}

int64_t InteractionsDataset::size(Split split) const {
  return int64_t(split == Split::train ? split_.train.size() : first_held_out_.size());
}

Batch InteractionsDataset::gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const {
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  return split == Split::train ? gather_train(samples, indices.numel(), epoch, buffers)
                               : gather_evaluate(samples, indices.numel(), buffers);
}

// Sets user, positive item and its target 1 for each sample; the caller sets the other `width` - 1 items.
Batch InteractionsDataset::gather_positives(const std::string& buffer, const int32_t* table_rows,
                                            const int64_t* samples, int64_t rows, int64_t width,
                                            BatchBuffers& buffers) const {
  auto user = buffers.take(buffer + "user", {rows}, at::kLong);
  auto item = buffers.take(buffer + "item", {rows, width}, at::kLong);
  auto target = buffers.take(buffer + "target", {rows, width}, at::kFloat);
  int64_t* to_user = user.mutable_data_ptr<int64_t>();
  int64_t* to_item = item.mutable_data_ptr<int64_t>();
  float* to_target = target.mutable_data_ptr<float>();
  const int32_t* from_user = all_.user.const_data_ptr<int32_t>();
  const int32_t* from_item = all_.item.const_data_ptr<int32_t>();

  std::fill_n(to_target, rows * width, 0.0F);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t row = table_rows[samples[r]];
    to_user[r] = from_user[row];
    to_item[r * width] = from_item[row];
    to_target[r * width] = 1;
  }
  return {{{"user", user}, {"item", item}, {"target", target}}, rows};
}

Batch InteractionsDataset::gather_train(const int64_t* samples, int64_t rows, int64_t epoch,
                                        BatchBuffers& buffers) const {
  const int64_t width = 1 + options_.negatives;
  const uint64_t key = random_key(seed_, "negatives", uint64_t(epoch));
  Batch batch = gather_positives("", split_.train.data(), samples, rows, width, buffers);
  const int64_t* user = batch.at("user").const_data_ptr<int64_t>();
  int64_t* item = batch.at("item").mutable_data_ptr<int64_t>();
  draw_negatives(positives_, all_.items, user, key, samples, rows, options_.negatives, item + 1, width);
  gather_columns(batch, split_.train.data(), samples, rows, buffers);
  gather_features(batch, "", buffers);
  return batch;
}

Batch InteractionsDataset::gather_evaluate(const int64_t* samples, int64_t rows, BatchBuffers& buffers) const {
  const int64_t width = options_.full ? all_.items : 1 + options_.candidates;
  Batch batch = gather_positives("evaluate.", first_held_out_.data(), samples, rows, width, buffers);
  const int64_t* user = batch.at("user").const_data_ptr<int64_t>();
  int64_t* item = batch.at("item").mutable_data_ptr<int64_t>();
  if (options_.full) {
    gather_all_items(batch, samples, buffers);
  } else {
    Candidates candidates(positives_, all_.items, options_.candidates, random_key(seed_, "candidates"));
    for (int64_t r = 0; r < rows; ++r)
      candidates.draw(int32_t(user[r]), int32_t(item[r * width]), item + r * width + 1);
  }
  gather_columns(batch, first_held_out_.data(), samples, rows, buffers);
  gather_features(batch, "evaluate.", buffers);
  return batch;
}

// Sets all items of each row, their targets, and which of them the user has.
void InteractionsDataset::gather_all_items(Batch& batch, const int64_t* samples, BatchBuffers& buffers) const {
  const int64_t rows = batch.rows, width = all_.items;
  const int64_t* user = batch.at("user").const_data_ptr<int64_t>();
  int64_t* item = batch.at("item").mutable_data_ptr<int64_t>();
  float* target = batch.at("target").mutable_data_ptr<float>();
  const int32_t* item_of = all_.item.const_data_ptr<int32_t>();
  auto mask = buffers.take("evaluate.excluded", {rows, width}, at::kBool);
  bool* excluded = mask.mutable_data_ptr<bool>();
  batch.tensors.emplace_back("excluded", mask);
  int64_t* counts = nullptr;
  if (holds_out_several()) {
    auto held_out = buffers.take("evaluate.held_out", {rows}, at::kLong);
    counts = held_out.mutable_data_ptr<int64_t>();
    batch.tensors.emplace_back("held_out", held_out);
  }
  std::vector<int32_t> items;
  for (int64_t r = 0; r < rows; ++r) {
    items.clear();
    for (int64_t i = held_out_begin_[size_t(samples[r])]; i < held_out_begin_[size_t(samples[r]) + 1]; ++i)
      items.push_back(item_of[split_.held_out[size_t(i)]]);
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
    all_items(positives_, all_.items, int32_t(user[r]), items, item + r * width, excluded + r * width);
    std::fill_n(target + r * width, items.size(), 1.f);
    if (counts != nullptr) counts[r] = int64_t(items.size());
  }
}

void InteractionsDataset::gather_columns(Batch& batch, const int32_t* table_rows, const int64_t* samples, int64_t rows,
                                         BatchBuffers& buffers) const {
  if (const int64_t width = all_.contexts(); width > 0) {
    const bool raw = prepared_.context.is_identity();
    auto context = buffers.take(raw ? "context" : "raw context", {rows, width}, at::kFloat);
    float* to = context.mutable_data_ptr<float>();
    const float* from = all_.context.const_data_ptr<float>();
    // Rows are random accesses into hundreds of megabytes, so later rows are prefetched while earlier ones are copied.
    constexpr int64_t ahead = 16;
    for (int64_t r = 0; r < rows; ++r) {
      if (r + ahead < rows) {
        const float* next = from + table_rows[samples[r + ahead]] * width;
        __builtin_prefetch(next);
        __builtin_prefetch(next + width - 1);
      }
      std::copy_n(from + table_rows[samples[r]] * width, width, to + r * width);
    }
    if (!raw) {
      auto prepared = buffers.take("context", {rows, prepared_.contexts()}, at::kFloat);
      prepared_.context.apply(context.const_data_ptr<float>(), rows, prepared.mutable_data_ptr<float>());
      context = prepared;
    }
    batch.tensors.emplace_back("context", context);
  }
  if (all_.weight.defined()) {
    auto weight = buffers.take("weight", {rows}, at::kFloat);
    float* to = weight.mutable_data_ptr<float>();
    const float* from = all_.weight.const_data_ptr<float>();
    for (int64_t r = 0; r < rows; ++r) to[r] = from[table_rows[samples[r]]];
    batch.tensors.emplace_back("weight", weight);
  }
}

// Each item of a row has its features, drawn ones too; user features are per row.
void InteractionsDataset::gather_features(Batch& batch, const std::string& buffer, BatchBuffers& buffers) const {
  const auto gather = [&](const std::string& name, const at::Tensor& table, const at::Tensor& ids) {
    std::vector<int64_t> shape = ids.sizes().vec();
    shape.push_back(table.size(1));
    at::Tensor features = buffers.take(buffer + name, shape, at::kFloat);
    gather_rows(table, ids.const_data_ptr<int64_t>(), ids.numel(), features);
    batch.tensors.emplace_back(name, features);
  };
  if (all_.user_features.defined()) gather("user_features", prepared_.user_features, at::Tensor(batch.at("user")));
  if (all_.item_features.defined()) gather("item_features", prepared_.item_features, at::Tensor(batch.at("item")));
}

}  // namespace convoy
