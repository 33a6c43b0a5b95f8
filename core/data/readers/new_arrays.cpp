// New rows from arrays: .npy and .safetensors.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"
#include "core/data/preparation.h"
#include "core/data/readers/new_rows.h"
#include "core/data/readers/table_reader.h"

namespace convoy {
namespace {

class ArrayRows : public NewRows {
 public:
  ArrayRows(const std::string& path, const TrainedData& trained, const NewRowsOptions& options)
      : options_(options), trained_(trained), schema_(trained.schema) {
    if (ends_in(path, ".npy")) {
      fields_.emplace_back("features", read_npy(path));
    } else {
      file_.emplace(path);
      const Options& data = trained.data.options;
      const bool renamed = trained.data.name == "table" && !data.texts("features").empty();
      for (const std::string& name : file_->names()) {
        const std::string field = renamed && name == data.texts("features").front() ? "features" : name;
        if (schema_.fields.count(field) != 0 && field != "target") fields_.emplace_back(field, file_->tensor(name));
      }
      if (fields_.empty())
        throw Error(Failure::corrupt_data, path, ": has no tensor of the fields that the model was trained on (",
                    join(field_names(), ", "), "); it has ", join(file_->names(), ", "));
    }
    preparation_ = trained.preparation("features", {});
    if (preparation_.columns().empty()) preparation_ = Preparation();
    for (const auto& [name, tensor] : fields_) check(path, name, tensor);
  }

  int64_t rows() const override { return fields_.front().second.size(0); }

  bool next(RowBlock& block) override {
    const int64_t count = std::min(options_.block, rows() - done_);
    if (count <= 0) return false;
    Batch batch;
    batch.rows = batch.global_rows = batch.nominal_rows = count;
    for (const auto& [name, tensor] : fields_) {
      const at::Tensor part = tensor.narrow(0, done_, count);
      const Field& field = schema_.at(name, "convoy predict");
      at::Tensor values = part.scalar_type() == at::kByte ? part.clone() : part.to(field.dtype).contiguous();
      if (name == "features" && !preparation_.is_identity())
        values = preparation_.applied(part.to(at::kFloat).contiguous());
      batch.tensors.emplace_back(name, values);
    }
    batch.tensors.emplace_back("target", trained_.zero_target(count, schema_.at("target", "convoy predict").shape));
    block.batch = std::move(batch);
    block.lines.clear();
    block.read = count;
    done_ += count;
    return true;
  }

 private:
  std::vector<std::string> field_names() const {
    std::vector<std::string> names;
    for (const auto& [name, field] : schema_.fields)
      if (name != "target" && name != "weight") names.push_back(name);
    return names;
  }
  void check(const std::string& path, const std::string& name, const at::Tensor& tensor) const {
    std::vector<int64_t> wanted = schema_.at(name, "convoy predict").shape;
    if (name == "features" && !preparation_.is_identity()) wanted = {preparation_.raw_width()};
    if (tensor.dim() == 0 || tensor.sizes().slice(1) != at::IntArrayRef(wanted))
      throw Error(Failure::corrupt_data, path, ": rows of ", name, " have the shape ", tensor.sizes().slice(1),
                  ", and the model was trained on ", at::IntArrayRef(wanted));
    if (tensor.size(0) != rows())
      throw Error(Failure::corrupt_data, path, ": has ", tensor.size(0), " rows of ", name, " and ", rows(), " of ",
                  fields_.front().first);
  }

  const NewRowsOptions options_;
  const TrainedData trained_;
  const Schema& schema_;
  std::optional<SafetensorsFile> file_;
  std::vector<std::pair<std::string, at::Tensor>> fields_;
  Preparation preparation_;
  int64_t done_ = 0;
};

}  // namespace

std::unique_ptr<NewRows> open_new_arrays(const std::string& path, const TrainedData& trained,
                                         const NewRowsOptions& options) {
  return std::make_unique<ArrayRows>(path, trained, options);
}

}  // namespace convoy
