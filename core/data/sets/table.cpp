#include "core/data/sets/table.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/log.h"
#include "core/data/rows.h"

namespace convoy {

DatasetPtr make_table(const Options& options, uint64_t seed) {
  const std::string& path = options.text("path");
  TableOptions table = TableOptions::from(options);
  TableData train = read_table(path, table);
  const auto evaluate = options.section("evaluate");
  std::optional<TableData> other;
  if (evaluate.has("path")) {
    if (evaluate.has("target_path")) table.target_path = evaluate.text("target_path");
    other = read_table(evaluate.text("path"), table);
    if (other->features.sizes().slice(1) != train.features.sizes().slice(1))
      throw Error(Failure::corrupt_data, evaluate.text("path"), ": features of shape ", other->features.sizes(),
                  " do not fit those of ", path, ", ", train.features.sizes());
    number_as(*other, train, evaluate.text("path"));
  }
  return std::make_shared<Table>(std::move(train), std::move(other), evaluate.real("fraction"), table.classification,
                                 options.has("classes") ? options.integer("classes") : 0, seed, table.prepare);
}

Table::Table(TableData train, std::optional<TableData> evaluate, double fraction, bool classification, int64_t classes,
             uint64_t seed, const PreparationOptions& options, std::optional<Preparation> preparation)
    : train_(std::move(train)),
      evaluate_(std::move(evaluate)),
      fraction_(fraction),
      classification_(classification),
      seed_(seed),
      options_(options),
      order_(train_.rows(), seed, "table split") {
  if (!evaluate_) {
    split_off_ = int64_t(std::llround(fraction * double(train_.rows())));
    if (split_off_ >= train_.rows()) throw Error(Failure::config, "data.evaluate.fraction leaves no row to train on");
  }
  preparation_ = preparation ? std::move(*preparation) : computed_preparation();
  if (!classification_) return;
  classes_ = train_.labels.empty() ? 1 + train_.target.max().item<int64_t>() : int64_t(train_.labels.size());
  if (evaluate_ && train_.labels.empty()) classes_ = std::max(classes_, 1 + evaluate_->target.max().item<int64_t>());
  if (classes > 0 && classes_ > classes)
    throw Error(Failure::config, "data.classes is ", classes, ", and the data has ", classes_, " classes");
  classes_ = std::max(classes_, classes);
}

Preparation Table::computed_preparation() const {
  const at::Tensor& features = train_.features;
  const bool flat = features.dim() == 2;
  if (!flat && options_.scale)
    throw Error(Failure::config, "data.scale: standard takes rows of single features, and these have the shape ",
                features.sizes().slice(1), "; leave it out, or normalise by data.transforms");
  if (train_.columns.empty() && !options_.categorical.empty())
    throw Error(Failure::config,
                "data.categorical names columns of text such as .csv, and arrays have none; give the "
                "categories as numbers, one column each");
  if (!flat) return {};
  std::vector<std::string> names = train_.columns;
  for (int64_t column = 0; train_.columns.empty() && column < features.size(1); ++column)
    names.push_back(std::to_string(column + 1));
  // Without scaling and filling, the statistics serve the hint alone.
  constexpr int64_t for_hint = 4096;
  const int64_t wanted =
      options_.scale || options_.fill ? train_.rows() : std::min(train_.rows(), split_off_ + for_hint);
  std::vector<int64_t> rows;
  for (int64_t row = split_off_; row < wanted; ++row) rows.push_back(order_.at(row));
  Preparation made(names, train_.words, features, &rows, options_);
  for (const PreparedColumn& column : made.columns())
    if (int64_t(column.categories.size()) > most_categories)
      throw Error(Failure::config, "data.categorical: column '", column.name, "' has ", column.categories.size(),
                  " categories, and each becomes an input of the model; the maximum is ", most_categories,
                  ": leave the column out by data.features, or group its categories");
  if (const std::string hint = made.scale_hint(); !hint.empty()) log::warning(str("data: ", hint));
  return made;
}

DataContents Table::contents() const {
  std::vector<std::string> hashes;
  for (const MappedFile& file : train_.sources) hashes.push_back(file.fingerprint());
  DataContents contents{hashes.empty() ? train_.fingerprint : combined_fingerprint(hashes), train_.rows(), {}};
  if (!train_.columns.empty()) contents.lists["columns"] = {NameList(train_.columns), true};
  if (!preparation_.is_identity()) contents.lists["preparation"] = stored_preparations({{"features", preparation_}});
  if (!classification_) return contents;
  std::vector<std::string> classes = train_.labels;
  for (auto number = int64_t(classes.size()); train_.labels.empty() && number < classes_; ++number)
    classes.push_back(std::to_string(number));
  contents.lists["classes"] = {NameList(classes)};
  return contents;
}

DatasetPtr Table::numbered_as(const DataContents& stored) const {
  const auto list = [&](const char* name) {
    const auto found = stored.lists.find(name);
    return found == stored.lists.end() ? std::vector<std::string>() : found->second.names.strings();
  };
  TableNames names{list("classes"), list("columns"), {}};
  const Preparations prepared = preparations_of(stored);
  std::optional<Preparation> preparation;
  if (const auto found = prepared.find("features"); found != prepared.end()) {
    preparation = found->second;
    std::vector<ColumnWords> words;
    for (const std::string& column : names.columns) {
      const auto at = std::find(train_.columns.begin(), train_.columns.end(), column) - train_.columns.begin();
      words.push_back(size_t(at) < train_.words.size() ? train_.words[size_t(at)] : ColumnWords());
    }
    preparation->check_words(words);
    for (const PreparedColumn& column : preparation->columns()) names.words.push_back(column.categories);
  }
  const size_t classes = names.labels.size();
  const auto numbered = [&](TableData data) {
    if (data.labels.empty()) names.labels.clear();
    if (data.words.empty()) names.words.clear();
    number_as(data, names, "data.path");
    return data;
  };
  std::optional<TableData> evaluate;
  if (evaluate_) evaluate = numbered(*evaluate_);
  return std::make_shared<Table>(numbered(train_), std::move(evaluate), fraction_, classification_,
                                 std::max(classes_, int64_t(classes)), seed_, options_, std::move(preparation));
}

Schema Table::schema() const {
  Schema schema;
  schema.fields["features"] = {train_.features.sizes().slice(1).vec(), at::kFloat, 0};
  if (!preparation_.is_identity()) schema.fields["features"].shape = {preparation_.width()};
  if (classification_) {
    schema.fields["target"] = {{}, at::kLong, classes_};
  } else {
    schema.fields["target"] = {train_.target.sizes().slice(1).vec(), at::kFloat, 0};
  }
  if (train_.weight.defined()) schema.fields["weight"] = {{}, at::kFloat, 0};
  return schema;
}

int64_t Table::size(Split split) const {
  if (split == Split::train) return train_.rows() - split_off_;
  return evaluate_ ? evaluate_->rows() : split_off_;
}

Batch Table::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, BatchBuffers& buffers) const {
  const bool separate = split == Split::evaluate && evaluate_;
  const TableData& data = separate ? *evaluate_ : train_;
  const int64_t rows = indices.numel();
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  std::vector<int64_t> chosen(samples, samples + rows);
  if (!separate && split_off_ > 0) {
    const int64_t offset = split == Split::train ? split_off_ : 0;
    for (auto& row : chosen) row = order_.at(offset + row);
  }

  Batch batch;
  batch.rows = rows;
  const auto add = [&](const char* name, const at::Tensor& source, at::ScalarType dtype) {
    auto sizes = source.sizes().vec();
    sizes[0] = rows;
    auto out = buffers.take(name, sizes, dtype);
    gather_rows(source, chosen.data(), rows, out);
    batch.tensors.emplace_back(name, out);
  };
  if (preparation_.is_identity())
    add("features", data.features, at::kFloat);
  else
    batch.tensors.emplace_back("features", prepared(data.features, chosen, buffers));
  add("target", data.target, classification_ ? at::kLong : at::kFloat);
  if (data.weight.defined()) add("weight", data.weight, at::kFloat);
  return batch;
}

at::Tensor Table::prepared(const at::Tensor& features, const std::vector<int64_t>& chosen,
                           BatchBuffers& buffers) const {
  const auto rows = int64_t(chosen.size());
  const bool in_place = preparation_.width() == preparation_.raw_width();
  at::Tensor out = buffers.take("features", {rows, preparation_.width()}, at::kFloat);
  at::Tensor raw = in_place ? out : buffers.take("raw features", {rows, preparation_.raw_width()}, at::kFloat);
  gather_rows(features, chosen.data(), rows, raw);
  preparation_.apply(raw.const_data_ptr<float>(), rows, out.mutable_data_ptr<float>());
  return out;
}

}  // namespace convoy
