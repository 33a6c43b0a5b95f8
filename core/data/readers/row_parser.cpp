#include "core/data/readers/row_parser.h"

#include <ATen/ops/empty.h>

#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/data/preparation.h"
#include "core/data/readers/name_list.h"
#include "core/data/rows.h"
#include "core/data/sets/features.h"

namespace convoy {
namespace {

// Columns of numbers and words for one field of a batch.
class ColumnParser {
 public:
  ColumnParser(Preparation preparation, std::vector<size_t> columns, const char* option)
      : preparation_(std::move(preparation)), raw_(preparation_), columns_(std::move(columns)), option_(option) {}
  int64_t width() const { return preparation_.width(); }
  int64_t raw_width() const { return preparation_.raw_width(); }

  // `raw` has raw_width() elements of memory.
  std::optional<UnknownValue> parse(const DelimitedReader& reader, float* raw, float* to) const {
    const bool direct = preparation_.is_identity();
    float* values = direct ? to : raw;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::optional<float> value = raw_.read(reader, columns_[i], i, option_);
      if (!value)
        return UnknownValue{columns_[i], str("category '", reader.field(columns_[i]), "' of column '",
                                             preparation_.columns()[i].name, "' does not occur in the training data")};
      values[i] = *value;
    }
    if (!direct) preparation_.apply(raw, 1, to);
    return std::nullopt;
  }

 private:
  const Preparation preparation_;
  const RawValues raw_;
  const std::vector<size_t> columns_;
  const char* const option_;
};

class TableParser : public RowParser {
 public:
  TableParser(const TrainedData& trained, ColumnParser features) : trained_(trained), features_(std::move(features)) {}
  Batch make_batch(int64_t rows) const override {
    Batch batch;
    batch.rows = rows;
    batch.tensors = {{"features", at::empty({rows, features_.width()}, at::kFloat)}};
    return batch;
  }
  int64_t scratch() const override { return features_.raw_width(); }
  std::optional<UnknownValue> parse(const DelimitedReader& reader, int64_t r, Batch& batch,
                                    float* scratch) const override {
    float* to = batch.tensors[0].second.mutable_data_ptr<float>() + r * features_.width();
    return features_.parse(reader, scratch, to);
  }
  void finish(Batch& batch) const override {
    batch.tensors.emplace_back("target",
                               trained_.zero_target(batch.rows, trained_.schema.at("target", "convoy predict").shape));
  }

 private:
  const TrainedData trained_;
  const ColumnParser features_;
};

class InteractionParser : public RowParser {
 public:
  InteractionParser(const TrainedData& trained, size_t user, size_t item, ColumnParser context)
      : trained_(trained),
        user_column_(user),
        item_column_(item),
        users_(trained.list("users")),
        items_(trained.list("items")),
        user_numbers_(users_),
        item_numbers_(items_),
        context_(std::move(context)),
        user_features_(stored_features(trained, "user")),
        item_features_(stored_features(trained, "item")) {
    if (users_.size() == 0 || items_.size() == 0)
      throw Error(Failure::config,
                  "the checkpoint has no ids of users and items: it is of synthetic data, or of an earlier version");
  }
  Batch make_batch(int64_t rows) const override {
    Batch batch;
    batch.rows = rows;
    batch.tensors = {{"user", at::empty({rows}, at::kLong)}, {"item", at::empty({rows, 1}, at::kLong)}};
    if (context_.width() > 0) batch.tensors.emplace_back("context", at::empty({rows, context_.width()}, at::kFloat));
    return batch;
  }
  int64_t scratch() const override { return context_.raw_width(); }
  std::optional<UnknownValue> parse(const DelimitedReader& reader, int64_t r, Batch& batch,
                                    float* scratch) const override {
    const auto number = [&](const NameNumbers& numbers, size_t column, const char* what,
                            int64_t& to) -> std::optional<UnknownValue> {
      to = numbers.find(reader.field(column));
      if (to >= 0) return std::nullopt;
      if (reader.field(column).empty()) reader.fail(column, str("the ", what, " is missing"));
      return UnknownValue{column, str(what, " '", reader.field(column), "' does not occur in the training data")};
    };
    auto unknown = number(user_numbers_, user_column_, "user", batch.tensors[0].second.mutable_data_ptr<int64_t>()[r]);
    if (!unknown)
      unknown = number(item_numbers_, item_column_, "item", batch.tensors[1].second.mutable_data_ptr<int64_t>()[r]);
    if (unknown || context_.width() == 0) return unknown;
    return context_.parse(reader, scratch, batch.tensors[2].second.mutable_data_ptr<float>() + r * context_.width());
  }
  void finish(Batch& batch) const override {
    const at::Tensor user = batch.tensors[0].second, item = batch.tensors[1].second;
    if (user_features_.defined()) batch.tensors.emplace_back("user_features", user_features_.index_select(0, user));
    if (item_features_.defined())
      batch.tensors.emplace_back("item_features", item_features_.index_select(0, item.flatten()).unsqueeze(1));
    batch.tensors.emplace_back("target", trained_.zero_target(batch.rows, {1}));
  }

 private:
  const TrainedData trained_;
  const size_t user_column_, item_column_;
  const NameList users_, items_;
  const NameNumbers user_numbers_, item_numbers_;
  const ColumnParser context_;
  const at::Tensor user_features_, item_features_;
};

}  // namespace

at::Tensor stored_features(const TrainedData& trained, const std::string& entity) {
  const std::vector<std::string> columns = trained.list(entity + "_feature_columns").strings();
  if (columns.empty()) return {};
  const at::Tensor raw = rows_from_bytes(trained.list(entity + "_features"), int64_t(columns.size()));
  if (!raw.defined())
    throw Error(Failure::config, "the checkpoint, of an earlier version, has no features of ", entity,
                "s; train a new one to predict");
  return trained.preparation(entity + "_features", columns).applied(raw);
}

std::unique_ptr<RowParser> table_row_parser(const TrainedData& trained, std::vector<size_t> columns) {
  return std::make_unique<TableParser>(
      trained, ColumnParser(trained.preparation("features", trained.list("columns").strings()), std::move(columns),
                            "data.features"));
}

std::unique_ptr<RowParser> interaction_row_parser(const TrainedData& trained, const PairColumns& columns) {
  const std::vector<std::string> names = trained.list("context_columns").strings();
  return std::make_unique<InteractionParser>(
      trained, columns.user, columns.item,
      ColumnParser(trained.preparation("context", names), columns.context, "data.columns.context"));
}

}  // namespace convoy
