// New rows from arrays: .npy, .safetensors, and tensors of a program.
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"
#include "core/data/readers/new_rows.h"
#include "core/data/readers/row_parser.h"
#include "core/data/readers/table_reader.h"

namespace convoy {
namespace {

class ArrayRows : public NewRows {
 public:
  ArrayRows(std::string name, NamedTensors tensors, const TrainedData& trained, const NewRowsOptions& options)
      : name_(std::move(name)), options_(options), trained_(trained) {
    numbered_ = options.skip_unknown;
    choose(std::move(tensors));
    for (auto& [field, tensor] : fields_) check_shape(field, tensor);
  }

  int64_t rows() const override { return fields_.front().second.size(0); }

  bool next(RowBlock& block) override {
    const int64_t count = std::min(options_.block, rows() - done_);
    if (count <= 0) return false;
    std::vector<at::Tensor> parts;
    at::Tensor unknown = at::zeros({count}, at::TensorOptions(at::kBool));
    for (const auto& [name, tensor] : fields_) {
      parts.push_back(tensor.narrow(0, done_, count));
      unknown.logical_or_(unknown_rows(name, parts.back()));
    }
    const at::Tensor kept = unknown.logical_not().nonzero().flatten();
    Batch batch;
    batch.rows = batch.global_rows = batch.nominal_rows = kept.numel();
    for (size_t i = 0; i < fields_.size(); ++i) {
      const at::Tensor part = kept.numel() < count ? parts[i].index_select(0, kept) : parts[i];
      batch.tensors.emplace_back(fields_[i].first, prepared(fields_[i].first, part));
    }
    add_stored(batch);
    block.numbers.clear();
    if (numbered_)
      for (int64_t i = 0; i < kept.numel(); ++i) block.numbers.push_back(done_ + kept[i].item<int64_t>());
    block.batch = std::move(batch);
    block.lines.clear();
    block.read = count;
    skipped_ += count - kept.numel();
    done_ += count;
    return true;
  }

 private:
  // Chooses the tensors of the model's fields. Fields of users and items that the checkpoint stores may be missing.
  void choose(NamedTensors tensors) {
    const Options& data = trained_.data.options;
    const bool renamed = trained_.data.name == "table" && !data.texts("features").empty();
    std::vector<std::string> given, ignored, missing, wanted;
    for (const auto& [name, field] : trained_.schema.fields)
      if (name != "target" && name != "weight") wanted.push_back(name);
    for (auto& [name, tensor] : tensors) {
      const std::string field = renamed && name == data.texts("features").front() ? "features" : name;
      given.push_back(name);
      if (std::find(wanted.begin(), wanted.end(), field) != wanted.end())
        fields_.emplace_back(field, std::move(tensor));
      else
        ignored.push_back(name);
    }
    for (const std::string& name : wanted) {
      preparations_[name] = trained_.preparation(name, {});
      if (preparations_[name].columns().empty()) preparations_[name] = Preparation();
      if (std::any_of(fields_.begin(), fields_.end(), [&](const auto& field) { return field.first == name; })) continue;
      const std::string entity = name == "user_features" ? "user" : name == "item_features" ? "item" : "";
      if (!entity.empty()) stored_[entity] = stored_features(trained_, entity);
      if (entity.empty() || !stored_[entity].defined()) missing.push_back(name);
    }
    if (fields_.empty() || !missing.empty())
      throw Error(Failure::corrupt_data, name_, ": has no tensor ", join(missing, ", "), "; the model was trained on ",
                  join(wanted, ", "), ", and it has ", join(given, ", "));
    if (!ignored.empty())
      notes_.push_back(str("tensors that the model does not read are ignored: ", join(ignored, ", ")));
  }

  // True for `item` of interactions: new rows may have any number of items.
  bool is_any_number_of_items(const std::string& name) const {
    return trained_.data.name == "interactions" && name == "item" &&
           trained_.schema.at(name, "convoy predict").shape.size() == 1;
  }

  void check_shape(const std::string& name, at::Tensor& tensor) const {
    std::vector<int64_t> wanted = trained_.schema.at(name, "convoy predict").shape;
    const Preparation& preparation = preparations_.at(name);
    if (!preparation.is_identity()) wanted.back() = preparation.raw_width();
    if (is_any_number_of_items(name)) {
      if (tensor.dim() == 1) tensor = tensor.unsqueeze(1);
      if (tensor.dim() == 2) wanted = {tensor.size(1)};
    }
    if (tensor.dim() == 0 || tensor.sizes().slice(1) != at::IntArrayRef(wanted))
      throw Error(Failure::corrupt_data, name_, ": rows of ", name, " have the shape ",
                  tensor.dim() == 0 ? at::IntArrayRef() : tensor.sizes().slice(1), ", and the model was trained on ",
                  at::IntArrayRef(wanted));
    if (tensor.size(0) != rows())
      throw Error(Failure::corrupt_data, name_, ": has ", tensor.size(0), " rows of ", name, " and ", rows(), " of ",
                  fields_.front().first);
  }

  at::Tensor prepared(const std::string& name, const at::Tensor& part) const {
    const Preparation& preparation = preparations_.at(name);
    if (!preparation.is_identity()) {
      const at::Tensor raw = part.to(at::kFloat).contiguous();
      const at::Tensor flat = preparation.applied(raw.view({-1, preparation.raw_width()}));
      std::vector<int64_t> shape = raw.sizes().vec();
      shape.back() = preparation.width();
      return flat.view(shape);
    }
    return part.scalar_type() == at::kByte ? part.clone()
                                           : part.to(trained_.schema.at(name, "convoy predict").dtype).contiguous();
  }

  // Adds the features of users and items that the checkpoint stores, and the target.
  void add_stored(Batch& batch) const {
    std::vector<int64_t> target = trained_.schema.at("target", "convoy predict").shape;
    if (const at::Tensor* item = batch.find("item"); item != nullptr && is_any_number_of_items("item")) {
      target = {item->size(1)};
      if (const auto found = stored_.find("item"); found != stored_.end())
        batch.tensors.emplace_back(
            "item_features",
            found->second.index_select(0, item->flatten()).view({item->size(0), item->size(1), found->second.size(1)}));
    }
    if (const auto found = stored_.find("user"); found != stored_.end())
      batch.tensors.emplace_back("user_features", found->second.index_select(0, batch.at("user")));
    batch.tensors.emplace_back("target", trained_.zero_target(batch.rows, target));
  }

  // --- Ids, categories and numbers must be such as the model was trained on: an id out of range would read other
  // memory ---

  // True for rows of `part`, the block from `done_` on, with an unknown id or category. Throws for other values, and
  // for unknown ones too unless they are left out.
  at::Tensor unknown_rows(const std::string& name, const at::Tensor& part) const {
    const Field& field = trained_.schema.at(name, "convoy predict");
    const std::vector<PreparedColumn>& columns = preparations_.at(name).columns();
    const bool whole = !at::isFloatingType(field.dtype) && field.dtype != at::kByte;
    if (part.scalar_type() == at::kByte && !whole && columns.empty())
      return at::zeros({part.size(0)}, at::TensorOptions(at::kBool));
    const at::Tensor values = part.to(at::kDouble).reshape({part.size(0), -1});
    at::Tensor wrong = values.isfinite().logical_not();
    at::Tensor unknown = at::zeros_like(wrong);
    const auto check_number = [&](const at::Tensor& some, int64_t count, at::Tensor some_wrong,
                                  at::Tensor some_unknown) {
      some_wrong.logical_or_(some.floor().ne(some));
      some_unknown.logical_or_(some.lt(0));
      if (count > 0) some_unknown.logical_or_(some.ge(double(count)));
    };
    if (whole) check_number(values, field.cardinality, wrong, unknown);
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto column = int64_t(i);
      if (columns[i].categorical)
        check_number(values.select(1, column), int64_t(columns[i].categories.size()), wrong.select(1, column),
                     unknown.select(1, column));
      else if (columns[i].fills)
        wrong.select(1, column).logical_and_(values.select(1, column).isnan().logical_not());
    }
    if (wrong.any().item<bool>())
      refuse(name, values, wrong,
             whole ? "is no whole number" : "is not finite, or no whole number where training had categories", "");
    if (!options_.skip_unknown && unknown.any().item<bool>())
      refuse(name, values, unknown,
             whole ? str("is no number of an id or token from 0 to ", field.cardinality - 1)
                   : "is no number of a category that was seen in training",
             "; leave its row out, or type --unknown skip");
    return unknown.any(1);
  }

  [[noreturn]] void refuse(const std::string& name, const at::Tensor& values, const at::Tensor& wrong,
                           const std::string& reason, const std::string& advice) const {
    const at::Tensor place = wrong.nonzero()[0];
    const int64_t row = place[0].item<int64_t>(), column = place[1].item<int64_t>();
    throw Error(Failure::corrupt_data, name_, ": ", name, ", row ", done_ + row, ", value ", column, ": is ",
                values[row][column].item<double>(), ", which ", reason, advice);
  }

  const std::string name_;
  const NewRowsOptions options_;
  const TrainedData trained_;
  NamedTensors fields_;
  std::map<std::string, Preparation> preparations_;  // by field
  std::map<std::string, at::Tensor> stored_;         // features of each "user" and "item", where no tensor has them
  int64_t done_ = 0;
};

}  // namespace

std::unique_ptr<NewRows> new_array_rows(NamedTensors tensors, const std::string& name, const TrainedData& trained,
                                        const NewRowsOptions& options) {
  return std::make_unique<ArrayRows>(name, std::move(tensors), trained, options);
}

std::unique_ptr<NewRows> open_new_arrays(const std::string& path, const TrainedData& trained,
                                         const NewRowsOptions& options) {
  NamedTensors tensors;
  if (ends_in(path, ".npy")) {
    tensors.emplace_back("features", read_npy(path));
  } else {
    const SafetensorsFile file(path);
    for (const std::string& name : file.names()) tensors.emplace_back(name, file.tensor(name));
  }
  return new_array_rows(std::move(tensors), path, trained, options);
}

}  // namespace convoy
