#include "core/ranking/recommender.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/base/error.h"
#include "core/data/rows.h"
#include "core/ranking/item_ranking.h"
#include "core/ranking/recommendation_files.h"

namespace convoy {
namespace {

// The items of each user, sorted, each once; and the user's last interaction.
class Histories {
 public:
  explicit Histories(const Interactions& all)
      : begin_(size_t(all.users) + 1), count_(size_t(all.users)), last_(size_t(all.users), -1) {
    const int32_t *user = all.user.const_data_ptr<int32_t>(), *item = all.item.const_data_ptr<int32_t>();
    const double* time = all.time.defined() ? all.time.const_data_ptr<double>() : nullptr;
    for (int64_t row = 0; row < all.size(); ++row) {
      ++count_[size_t(user[row])];
      int32_t& last = last_[size_t(user[row])];
      if (last < 0 || time == nullptr || time[row] >= time[last]) last = int32_t(row);
    }
    for (size_t u = 0; u < count_.size(); ++u) begin_[u + 1] = begin_[u] + count_[u];
    items_.resize(size_t(all.size()));
    std::fill(count_.begin(), count_.end(), 0);
    for (int64_t row = 0; row < all.size(); ++row)
      items_[size_t(begin_[size_t(user[row])] + count_[size_t(user[row])]++)] = item[row];
    for (size_t u = 0; u < count_.size(); ++u) {
      const auto from = items_.begin() + begin_[u], to = from + count_[u];
      std::sort(from, to);
      count_[u] = int32_t(std::unique(from, to) - from);
    }
  }

  ItemRanking::Seen of(int64_t user) const {
    const int32_t* from = items_.data() + begin_[size_t(user)];
    return {from, from + count_[size_t(user)]};
  }
  int64_t count(int64_t user) const { return count_[size_t(user)]; }
  int32_t last(int64_t user) const { return last_[size_t(user)]; }  // row; −1: the user has none

 private:
  std::vector<int64_t> begin_;
  std::vector<int32_t> count_, last_, items_;
};

class Recommending {
 public:
  Recommending(const Interactions& all, PairScorer& scorer, const RecommendOptions& options)
      : all_(all),
        options_(options),
        ranking_(scorer, all.items, options.prepared ? options.prepared->item_features : all.item_features),
        histories_(all) {
    if (options.k < 1) throw Error(Failure::command_line, "--k: is ", options.k, ", must be at least 1");
    if (options.k > all.items)
      throw Error(Failure::command_line, "--k: is ", options.k, ", and the run has ", all.items,
                  " items; give at most ", all.items);
    if (!options.users.empty()) {
      file_.emplace(options.users, options.user_column, all.user_names, all.users, all.context_names,
                    options.prepared ? &options.prepared->context : nullptr);
      users_ = file_->numbers();
    } else {
      for (int64_t user = 0; user < all.users; ++user)
        if (histories_.last(user) >= 0) users_.push_back(int32_t(user));
    }
    check_contexts();
  }

  const std::vector<int32_t>& users() const { return users_; }
  const std::optional<UserFile>& file() const { return file_; }

  // The lists of users [begin, begin + rows). Batches come in order.
  TopItems lists(int64_t begin, int64_t rows, std::vector<int64_t>& numbers,
                 const std::function<void(int64_t items)>& progress) {
    numbers.assign(users_.begin() + begin, users_.begin() + begin + rows);
    const Batch batch = batch_of(numbers);
    std::vector<ItemRanking::Seen> seen;
    if (!options_.include_seen)
      for (const int64_t user : numbers) seen.push_back(histories_.of(user));
    TopItems top = ranking_.best(batch, options_.k, seen, progress);
    for (int64_t row = 0; row < rows; ++row) check_list(numbers[size_t(row)], top.counts[row].item<int64_t>());
    return top;
  }

 private:
  bool has_contexts() const { return file_ && file_->has_contexts(); }
  std::string name_of(int64_t user) const {
    return all_.user_names.size() == 0 ? std::to_string(user) : std::string(all_.user_names[user]);
  }

  void check_contexts() const {
    if (all_.contexts() == 0 || has_contexts()) return;
    for (const int32_t user : users_)
      if (histories_.last(user) < 0)
        throw Error(Failure::corrupt_data, "user '", name_of(user),
                    "' has no interaction, so there is no context; add the context columns to --users");
  }

  // A list is shorter only if the user already has nearly all items.
  void check_list(int64_t user, int64_t count) const {
    const int64_t left = all_.items - (options_.include_seen ? 0 : histories_.count(user));
    if (count >= std::min(left, options_.k)) return;
    throw Error(Failure::training, "the model's scores for user ", name_of(user),
                " are not numbers (NaN); train again with a smaller rate, or take an earlier checkpoint");
  }

  at::Tensor prepared_contexts(const at::Tensor& raw) const {
    return options_.prepared ? options_.prepared->context.applied(raw) : raw;
  }

  Batch batch_of(const std::vector<int64_t>& numbers) {
    const auto rows = int64_t(numbers.size());
    Batch batch;
    batch.rows = batch.global_rows = batch.nominal_rows = rows;
    const at::Tensor ids =
        at::from_blob(const_cast<int64_t*>(numbers.data()), {rows}, at::TensorOptions(at::kLong)).clone();
    batch.tensors.emplace_back("user", ids);
    if (has_contexts()) {
      batch.tensors.emplace_back("context", prepared_contexts(file_->next_contexts(rows)));
    } else if (all_.contexts() > 0) {
      at::Tensor last = ids.clone();
      auto* row = last.mutable_data_ptr<int64_t>();
      for (int64_t i = 0; i < rows; ++i) row[i] = histories_.last(row[i]);
      batch.tensors.emplace_back("context", prepared_contexts(all_.context.index_select(0, last)));
    }
    if (const at::Tensor& features = options_.prepared ? options_.prepared->user_features : all_.user_features;
        features.defined())
      batch.tensors.emplace_back("user_features", features.index_select(0, ids));
    return batch;
  }

  const Interactions& all_;
  const RecommendOptions& options_;
  ItemRanking ranking_;
  const Histories histories_;
  std::optional<UserFile> file_;
  std::vector<int32_t> users_;
};

}  // namespace

RecommendReport recommend(const Interactions& all, PairScorer& scorer, const RecommendOptions& options, OutputFile& out,
                          const std::function<void(const RecommendProgress&)>& progress) {
  Recommending recommending(all, scorer, options);
  const auto total = int64_t(recommending.users().size());
  RecommendationFormat format;
  format.user = options.user_column;
  format.item = options.item_column;
  format.user_names = all.user_names;
  format.item_names = all.item_names;
  format.users = total;
  format.k = options.k;
  format.dtype = scorer.dtype();
  const auto writer = make_recommendation_writer(out, format);
  RecommendReport report;
  std::vector<int64_t> numbers;
  // Many items make a block smaller, because its lists are written at its end. The items' own part of the first layer
  // is computed once in a block and pays from a few users on.
  constexpr int64_t least = 16;
  const int64_t together = std::clamp(most_pairs_together / std::max<int64_t>(all.items, 1), least, users_together);
  for (int64_t begin = 0; begin < total; begin += together) {
    const int64_t rows = std::min(together, total - begin);
    const TopItems top = recommending.lists(begin, rows, numbers, [&](int64_t items) {
      if (progress) progress({begin, total, rows, items, all.items});
    });
    report.shorter += top.counts.lt(options.k).sum().item<int64_t>();
    writer->write(numbers.data(), top);
    if (progress) progress({begin + rows, total, 0, 0, all.items});
  }
  out.commit();
  report.users = total;
  if (recommending.file()) {
    report.ignored_columns = recommending.file()->ignored();
    report.contexts_from_file = recommending.file()->has_contexts();
  }
  return report;
}

}  // namespace convoy
