#include "core/data/sets/table.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/data/formats/delimited.h"
#include "core/data/formats/npy_header.h"
#include "core/data/readers/column_cache.h"
#include "core/data/rows.h"

namespace convoy {
namespace {

void check_rows(const std::string& path, const TableData& data) {
  if (data.features.dim() < 1 || data.features.size(0) == 0)
    throw Error(Failure::corrupt_data, path, ": holds no rows");
  for (const auto* other : {&data.target, &data.weight}) {
    if (other->defined() && (other->dim() < 1 || other->size(0) != data.rows()))
      throw Error(Failure::corrupt_data, path, ": ", data.rows(), " rows of features, and targets or weights of shape ",
                  other->sizes());
  }
}

// Logs the memory of the part. A tensor that is not aligned in its file cannot be mapped: it was copied.
void log_memory(const std::string& path, const TableData& data) {
  size_t shared = 0, copied = 0;
  for (const at::Tensor& tensor : {data.features, data.target, data.weight}) {
    if (!tensor.defined()) continue;
    (tensor.storage().resizable() ? copied : shared) += tensor.nbytes();
  }
  if (shared > 0) log_mapped(path, path, static_cast<int64_t>(shared));
  if (copied > 0)
    log_in_memory(path, static_cast<int64_t>(copied),
                  "its tensors are not aligned; write those of wide elements first to have them mapped");
}

TableData read_arrays(const std::string& path, const TableOptions& options) {
  TableData data;
  if (ends_in(path, ".npy")) {
    if (options.target_path.empty())
      throw Error(Failure::config, path, " holds features only: name the .npy with the targets by data.target_path");
    data.features = read_npy(path);
    data.target = read_npy(options.target_path);
    data.sources = {MappedFile(path), MappedFile(options.target_path)};
    if (!options.weight.empty())
      throw Error(Failure::config,
                  "data.weight names a column or tensor, which .npy files do not have: put the arrays "
                  "into one .safetensors file");
  } else {
    const SafetensorsFile file(path);
    const auto names = file.names();
    const auto named = [&](const std::string& name, const char* option) {
      if (std::find(names.begin(), names.end(), name) != names.end()) return file.tensor(name).contiguous();
      throw Error(Failure::config, path, ": no tensor '", name, "' (", option, "); the file has ", join(names, ", "));
    };
    if (options.features.size() > 1)
      throw Error(Failure::config, "data.features names one tensor where the data is a .safetensors file");
    data.features = named(options.features.empty() ? "features" : options.features[0], "data.features");
    data.target = named(options.target, "data.target");
    if (!options.weight.empty()) data.weight = named(options.weight, "data.weight");
    data.sources = {MappedFile(path)};
    log_memory(path, data);
  }
  check_rows(path, data);
  if (options.classification) {
    if (!at::isIntegralType(data.target.scalar_type(), true) || data.target.dim() != 1)
      throw Error(Failure::corrupt_data, path, ": classes have to be whole numbers, one per row; the targets are ",
                  data.target.scalar_type(), " of shape ", data.target.sizes());
    if (data.target.min().item<int64_t>() < 0) throw Error(Failure::corrupt_data, path, ": a class is negative");
  }
  return data;
}

// Converts the classes and columns of `part` to numbers of `labels` and to the order of `columns`. Error(corrupt_data)
// names `path` and the unknown name.
void renumber(TableData& data, const std::vector<std::string>& labels, const std::vector<std::string>& columns,
              const std::string& path) {
  const auto numbers = [&](const std::vector<std::string>& names, const std::vector<std::string>& in, const char* what,
                           const char* where) {
    const NameList list(in);
    std::vector<int64_t> found = NameNumbers(list).find_all(NameList(names));
    for (size_t i = 0; i < found.size(); ++i)
      if (found[i] < 0) throw Error(Failure::corrupt_data, path, ": ", what, " '", names[i], where, join(in, ", "));
    return found;
  };
  if (data.labels.empty() != labels.empty())
    throw Error(Failure::corrupt_data, path, ": has classes by ", labels.empty() ? "name" : "number",
                ", and the training data by ", labels.empty() ? "number" : "name");
  if (data.labels != labels) {
    const std::vector<int64_t> code =
        numbers(data.labels, labels, "class", "' does not occur in the training data, which has ");
    data.target = data.target.clone();
    auto* target = data.target.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < data.rows(); ++row) target[row] = code[size_t(target[row])];
    data.labels = labels;
  }
  if (!data.columns.empty() && !columns.empty() && data.columns != columns) {
    const std::vector<int64_t> order = numbers(columns, data.columns, "column", "' of the training data is not among ");
    data.features = data.features.index_select(1, at::tensor(order));
    data.columns = columns;
  }
}

// --- CSV: columns of numbers and a target, through the column cache ---

bool is_number(const std::string& text, double& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size();
}

// Sorted class names: by value if all are numbers, else by text.
std::vector<std::string> sorted_labels(const std::map<std::string, int64_t>& seen) {
  std::vector<std::pair<double, std::string>> numbered;
  bool numbers = true;
  for (const auto& entry : seen) {
    double value = 0;
    numbers = numbers && is_number(entry.first, value);
    numbered.emplace_back(value, entry.first);
  }
  if (!numbers) {
    for (auto& entry : numbered) entry.first = 0;
  }
  std::sort(numbered.begin(), numbered.end());
  std::vector<std::string> labels;
  for (auto& entry : numbered) labels.push_back(entry.second);
  return labels;
}

template <class Values>
at::Tensor tensor_of(const Values& values, at::IntArrayRef shape, at::ScalarType dtype) {
  auto tensor = at::empty(shape, dtype);
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof values[0]);
  return tensor;
}

Columns parse(const MappedFile& file, const TableOptions& options) {
  DelimitedReader reader(file.path(), file.text(), options.delimiter);
  const Header header(reader, false, options.header);
  const size_t target_column = header.number(options.target, "data.target");
  const bool weighted = !options.weight.empty();
  const size_t weight_column = weighted ? header.number(options.weight, "data.weight") : 0;
  std::vector<size_t> feature_columns;
  for (const auto& name : options.features) feature_columns.push_back(header.number(name, "data.features"));
  for (size_t column = 0; options.features.empty() && column < reader.columns(); ++column) {
    if (column != target_column && !(weighted && column == weight_column)) feature_columns.push_back(column);
  }

  std::vector<float> features, target, weight;
  std::vector<int64_t> code;
  std::map<std::string, int64_t> seen;  // class → number by first appearance
  int64_t rows = 0;
  for (bool more = header.first_row_read() || reader.next(); more; more = reader.next(), ++rows) {
    for (size_t column : feature_columns) features.push_back(float(reader.number(column)));
    if (weighted) weight.push_back(float(reader.number(weight_column)));
    if (options.classification) {
      const std::string label(reader.field(target_column));
      if (label.empty()) reader.fail(target_column, "the class is missing");
      code.push_back(seen.try_emplace(label, int64_t(seen.size())).first->second);
    } else {
      target.push_back(float(reader.number(target_column)));
    }
  }

  std::vector<std::string> names;
  for (size_t column : feature_columns) names.push_back(header.names()[column]);
  Columns columns;
  columns["name_bytes"] = NameList(names).bytes();
  columns["name_ends"] = NameList(names).ends();
  columns["features"] = tensor_of(features, {rows, int64_t(feature_columns.size())}, at::kFloat);
  if (weighted) columns["weight"] = tensor_of(weight, {rows}, at::kFloat);
  if (options.classification) {
    const auto labels = sorted_labels(seen);
    std::vector<int64_t> sorted_index(labels.size());
    for (size_t i = 0; i < labels.size(); ++i) sorted_index[size_t(seen.at(labels[i]))] = int64_t(i);
    for (auto& value : code) value = sorted_index[size_t(value)];
    columns["target"] = tensor_of(code, {rows}, at::kLong);
    const std::string text = join(labels, "\n");
    columns["labels"] = tensor_of(text, {int64_t(text.size())}, at::kByte);
  } else {
    columns["target"] = tensor_of(target, {rows}, at::kFloat);
  }
  return columns;
}

std::vector<std::string> lines_of(const at::Tensor& bytes) {
  return split({static_cast<const char*>(bytes.const_data_ptr()), size_t(bytes.numel())}, '\n');
}

std::vector<std::string> names_of(const Columns& columns) {
  return NameList(columns.at("name_bytes"), columns.at("name_ends")).strings();
}

// True if they are as parse makes them, with classes within their range.
bool are_valid_columns(const Columns& columns, const TableOptions& options) {
  if (!has_column(columns, "features", at::kFloat, {-1, -1})) return false;
  const int64_t rows = columns.at("features").size(0), width = columns.at("features").size(1);
  if (!has_column(columns, "name_bytes", at::kByte, {-1}) || !has_column(columns, "name_ends", at::kLong, {width}))
    return false;
  names_of(columns);
  if (options.weight.empty() ? columns.count("weight") != 0 : !has_column(columns, "weight", at::kFloat, {rows}))
    return false;
  if (!options.classification) return has_column(columns, "target", at::kFloat, {rows}) && columns.count("labels") == 0;
  return has_column(columns, "target", at::kLong, {rows}) && has_column(columns, "labels", at::kByte, {-1}) &&
         all_below(columns.at("target"), int64_t(lines_of(columns.at("labels")).size()));
}

std::string cache_key(const TableOptions& options) {
  return Json{{"delimiter", std::string(1, options.delimiter)},
              {"header", options.header},
              {"features", options.features},
              {"target", options.target},
              {"weight", options.weight},
              {"classification", options.classification}}
      .dump();
}

at::ScalarType dtype_of(const std::string& path, const std::string& described) {
  static const std::map<std::string, at::ScalarType> known{
      {"<f8", at::kDouble}, {"<f4", at::kFloat}, {"<f2", at::kHalf}, {"<i8", at::kLong}, {"<i4", at::kInt},
      {"<i2", at::kShort},  {"|i1", at::kChar},  {"|u1", at::kByte}, {"|b1", at::kBool}};
  const auto found = known.find(described);
  if (found != known.end()) return found->second;
  throw Error(Failure::corrupt_data, path, ": elements of type ", described,
              " cannot be read; in Python: numpy.save(path, a.astype('float32'))");
}

}  // namespace

TableOptions TableOptions::from(const Options& options) {
  TableOptions result;
  if (options.has("target_path")) result.target_path = options.text("target_path");
  result.delimiter = delimiter_of(options);
  result.header = options.boolean("header");
  result.features = options.texts("features");
  result.target = options.text("target");
  if (options.has("weight")) result.weight = options.text("weight");
  result.classification = options.text("task") == "classification";
  return result;
}

TableData read_table(const std::string& path, const TableOptions& options) {
  if (ends_in(path, ".npy") || ends_in(path, ".safetensors")) return read_arrays(path, options);
  TableData data = read_table_csv(path, options);
  check_rows(path, data);
  return data;
}

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
    renumber(*other, train.labels, train.columns, evaluate.text("path"));
  }
  return std::make_shared<Table>(std::move(train), std::move(other), evaluate.real("fraction"), table.classification,
                                 options.has("classes") ? options.integer("classes") : 0, seed);
}

Table::Table(TableData train, std::optional<TableData> evaluate, double fraction, bool classification, int64_t classes,
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
    throw Error(Failure::config, "data.classes is ", classes, ", and the data has ", classes_, " classes");
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
  const auto numbered = [&](TableData data) {
    renumber(data, data.labels.empty() ? data.labels : classes, columns, "data.path");
    return data;
  };
  std::optional<TableData> evaluate;
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
  add("features", data.features, at::kFloat);
  add("target", data.target, classification_ ? at::kLong : at::kFloat);
  if (data.weight.defined()) add("weight", data.weight, at::kFloat);
  return batch;
}

TableData read_table_csv(const std::string& path, const TableOptions& options) {
  const MappedFile file(path);
  const Columns columns = cached_columns(
      file, "table " + cache_key(options), [&] { return parse(file, options); },
      [&](const Columns& cached) { return are_valid_columns(cached, options); });
  TableData data;
  data.features = columns.at("features");
  data.target = columns.at("target");
  if (columns.count("weight") != 0) data.weight = columns.at("weight");
  if (columns.count("labels") != 0) data.labels = lines_of(columns.at("labels"));
  data.columns = names_of(columns);
  data.fingerprint = file.hash();
  return data;
}

at::Tensor read_npy(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  const auto fail = [&](const std::string& reason) { throw Error(Failure::corrupt_data, path, ": ", reason); };
  const NpyHeader header = read_npy_header(path, text);
  const std::vector<int64_t>& sizes = header.shape;
  const size_t data = header.data;
  if (header.fortran) fail("is in Fortran order; in Python: numpy.save(path, numpy.ascontiguousarray(a))");

  const at::ScalarType dtype = dtype_of(path, header.type);
  auto bytes = int64_t(at::elementSize(dtype));
  for (int64_t size : sizes) {
    if (size > 0 && bytes > std::numeric_limits<int64_t>::max() / size) fail("has impossible sizes");
    bytes *= size;
  }
  if (sizes.empty()) fail("holds a single number and no rows");
  if (size_t(bytes) != text.size() - data) {
    fail(str("holds ", text.size() - data, " bytes of data where its header says ", bytes));
  }
  log_mapped(path, path, bytes);
  // The mapping is read-only; convoy never writes to data.
  void* start = const_cast<char*>(text.data() + data);
  return at::from_blob(
      start, sizes, [file](void*) {}, at::TensorOptions(dtype));
}

}  // namespace convoy
