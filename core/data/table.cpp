// Which rows are whose, checks that parts fit together, and gathering.
#include "core/data/table.h"

#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "core/checkpoint/safetensors.h"
#include "core/data/npy.h"
#include "core/data/residence.h"
#include "core/data/rows.h"
#include "core/error.h"

namespace convoy {
namespace {

bool ends_in(const std::string& path, const std::string& end) {
  return path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
}

void check_rows(const std::string& path, const TablePart& part) {
  if (part.features.dim() < 1 || part.features.size(0) == 0)
    throw Error(Failure::corrupt_data, str(path, ": holds no rows"));
  for (const auto* other : {&part.target, &part.weight}) {
    if (other->defined() && (other->dim() < 1 || other->size(0) != part.rows()))
      throw Error(
          Failure::corrupt_data,
          convoy::str(path, ": ", part.rows(), " rows of features, and targets or weights of shape ", other->sizes()));
  }
}

// A tensor that does not stand at a multiple of its elements' size cannot be used where it lies: it was copied.
void tell_where(const std::string& path, const TablePart& part) {
  size_t shared = 0, copied = 0;
  for (const at::Tensor& tensor : {part.features, part.target, part.weight}) {
    if (!tensor.defined()) continue;
    (tensor.storage().resizable() ? copied : shared) += tensor.nbytes();
  }
  if (shared > 0) tell_mapped(path, path, static_cast<int64_t>(shared));
  if (copied > 0)
    tell_in_memory(path, static_cast<int64_t>(copied),
                   "its tensors are not aligned; write those of wide elements first to have them mapped");
}

TablePart read_arrays(const std::string& path, const TableOptions& options) {
  TablePart part;
  if (ends_in(path, ".npy")) {
    if (options.target_path.empty())
      throw Error(Failure::config,
                  str(path, " holds features only: name the .npy with the targets by data.target_path"));
    part.features = read_npy(path);
    part.target = read_npy(options.target_path);
    part.sources = {MappedFile(path), MappedFile(options.target_path)};
    if (!options.weight.empty())
      throw Error(Failure::config,
                  "data.weight names a column or tensor, which .npy files do not have: put the arrays "
                  "into one .safetensors file");
  } else {
    const SafetensorsFile file(path);
    const auto names = file.names();
    const auto named = [&](const std::string& name, const char* option) {
      if (std::find(names.begin(), names.end(), name) != names.end()) return file.tensor(name).contiguous();
      throw Error(Failure::config,
                  str(path, ": no tensor '", name, "' (", option, "); the file has ", join(names, ", ")));
    };
    if (options.features.size() > 1)
      throw Error(Failure::config, "data.features names one tensor where the data is a .safetensors file");
    part.features = named(options.features.empty() ? "features" : options.features[0], "data.features");
    part.target = named(options.target, "data.target");
    if (!options.weight.empty()) part.weight = named(options.weight, "data.weight");
    part.sources = {MappedFile(path)};
    tell_where(path, part);
  }
  check_rows(path, part);
  if (options.classification) {
    if (!at::isIntegralType(part.target.scalar_type(), true) || part.target.dim() != 1)
      throw Error(Failure::corrupt_data,
                  convoy::str(path, ": classes have to be whole numbers, one per row; the targets are ",
                              part.target.scalar_type(), " of shape ", part.target.sizes()));
    if (part.target.min().item<int64_t>() < 0) throw Error(Failure::corrupt_data, str(path, ": a class is negative"));
  }
  return part;
}

// The classes and columns of `part` as numbers of `labels` and in the order of `columns`. Error(corrupt_data) naming `path`
// and what is not in there.
void renumber(TablePart& part, const std::vector<std::string>& labels, const std::vector<std::string>& columns,
              const std::string& path) {
  const auto numbers = [&](const std::vector<std::string>& names, const std::vector<std::string>& in, const char* what,
                           const char* where) {
    const NameList list(in);
    std::vector<int64_t> found = NameNumbers(list).find_all(NameList(names));
    for (size_t i = 0; i < found.size(); ++i)
      if (found[i] < 0)
        throw Error(Failure::corrupt_data, str(path, ": ", what, " '", names[i], where, join(in, ", ")));
    return found;
  };
  if (part.labels.empty() != labels.empty())
    throw Error(Failure::corrupt_data, str(path, ": has classes by ", labels.empty() ? "name" : "number",
                                           ", and the training data by ", labels.empty() ? "number" : "name"));
  if (part.labels != labels) {
    const std::vector<int64_t> code =
        numbers(part.labels, labels, "class", "' does not occur in the training data, which has ");
    part.target = part.target.clone();
    auto* target = part.target.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < part.rows(); ++row) target[row] = code[size_t(target[row])];
    part.labels = labels;
  }
  if (!part.columns.empty() && !columns.empty() && part.columns != columns) {
    const std::vector<int64_t> order = numbers(columns, part.columns, "column", "' of the training data is not among ");
    part.features = part.features.index_select(1, at::tensor(order));
    part.columns = columns;
  }
}

}  // namespace

TableOptions TableOptions::from(const Options& options) {
  TableOptions made;
  if (options.has("target_path")) made.target_path = options.text("target_path");
  const std::string& delimiter = options.text("delimiter");
  if (delimiter.size() != 1 && delimiter != "tab")
    options.fail("delimiter", "has to be one character, or the word tab");
  made.delimiter = delimiter == "tab" ? '\t' : delimiter[0];
  made.header = options.boolean("header");
  made.features = options.texts("features");
  made.target = options.text("target");
  if (options.has("weight")) made.weight = options.text("weight");
  made.classification = options.text("task") == "classification";
  return made;
}

TablePart read_table(const std::string& path, const TableOptions& options) {
  if (ends_in(path, ".npy") || ends_in(path, ".safetensors")) return read_arrays(path, options);
  TablePart part = read_table_csv(path, options);
  check_rows(path, part);
  return part;
}

DatasetPtr make_table(const Options& options, uint64_t seed) {
  const std::string& path = options.text("path");
  TableOptions table = TableOptions::from(options);
  TablePart train = read_table(path, table);
  const auto evaluate = options.section("evaluate");
  std::optional<TablePart> other;
  if (evaluate.has("path")) {
    if (evaluate.has("target_path")) table.target_path = evaluate.text("target_path");
    other = read_table(evaluate.text("path"), table);
    if (other->features.sizes().slice(1) != train.features.sizes().slice(1))
      throw Error(Failure::corrupt_data,
                  convoy::str(evaluate.text("path"), ": features of shape ", other->features.sizes(),
                              " do not fit those of ", path, ", ", train.features.sizes()));
    renumber(*other, train.labels, train.columns, evaluate.text("path"));
  }
  return std::make_shared<Table>(std::move(train), std::move(other), evaluate.real("fraction"), table.classification,
                                 options.has("classes") ? options.integer("classes") : 0, seed);
}

Table::Table(TablePart train, std::optional<TablePart> evaluate, double fraction, bool classification, int64_t classes,
             uint64_t seed)
    : train_(std::move(train)),
      evaluate_(std::move(evaluate)),
      fraction_(fraction),
      classification_(classification),
      seed_(seed),
      order_(train_.rows(), seed, "table split") {
  if (!evaluate_) {
    split_off_ = int64_t(std::llround(fraction * double(train_.rows())));
    if (split_off_ >= train_.rows()) throw Error(Failure::config, "data.evaluate.fraction leaves no row to train on");
  }
  if (!classification_) return;
  classes_ = train_.labels.empty() ? 1 + train_.target.max().item<int64_t>() : int64_t(train_.labels.size());
  if (evaluate_ && train_.labels.empty()) classes_ = std::max(classes_, 1 + evaluate_->target.max().item<int64_t>());
  if (classes > 0 && classes_ > classes)
    throw Error(Failure::config, str("data.classes is ", classes, ", and the data has ", classes_, " classes"));
  classes_ = std::max(classes_, classes);
}

DataContents Table::contents() const {
  std::vector<std::string> hashes;
  for (const MappedFile& file : train_.sources) hashes.push_back(file.fingerprint());
  DataContents contents{hashes.empty() ? train_.fingerprint : combined_fingerprint(hashes), train_.rows(), {}};
  if (!train_.columns.empty()) contents.lists["columns"] = {NameList(train_.columns), true};
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
  const std::vector<std::string> classes = list("classes"), columns = list("columns");
  const auto numbered = [&](TablePart part) {
    renumber(part, part.labels.empty() ? part.labels : classes, columns, "data.path");
    return part;
  };
  std::optional<TablePart> evaluate;
  if (evaluate_) evaluate = numbered(*evaluate_);
  return std::make_shared<Table>(numbered(train_), std::move(evaluate), fraction_, classification_,
                                 std::max(classes_, int64_t(classes.size())), seed_);
}

Schema Table::schema() const {
  Schema schema;
  schema.fields["features"] = {train_.features.sizes().slice(1).vec(), at::kFloat, 0};
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

Batch Table::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, Buffers& buffers) const {
  const bool own_part = split == Split::evaluate && evaluate_;
  const TablePart& part = own_part ? *evaluate_ : train_;
  const int64_t rows = indices.numel();
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  std::vector<int64_t> chosen(samples, samples + rows);
  if (!own_part && split_off_ > 0) {
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
  add("features", part.features, at::kFloat);
  add("target", part.target, classification_ ? at::kLong : at::kFloat);
  if (part.weight.defined()) add("weight", part.weight, at::kFloat);
  return batch;
}

}  // namespace convoy
