#include "core/data/readers/table_reader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "core/data/formats/delimited.h"
#include "core/data/formats/input_files.h"
#include "core/data/formats/npy_header.h"
#include "core/data/readers/column_cache.h"
#include "core/data/rows.h"
#include "core/tensors/safetensors.h"

namespace convoy {
namespace {

void check_rows(const std::string& path, const TableData& data) {
  if (data.features.dim() < 1 || data.features.size(0) == 0)
    throw Error(Failure::corrupt_data, path, ": holds no rows");
  for (const auto* other : {&data.target, &data.weight}) {
    if (other->defined() && (other->dim() < 1 || other->size(0) != data.rows()))
      throw Error(Failure::corrupt_data, path, ": features have ", data.rows(),
                  " rows, but targets or weights have shape ", other->sizes(), "; give one for each row");
  }
}

// Logs the memory of a file's tensors. A tensor that is not aligned in its file cannot be mapped: it was copied.
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

// --- CSV: columns of numbers and a target, through the column cache ---

template <class Values>
at::Tensor tensor_of(const Values& values, at::IntArrayRef shape, at::ScalarType dtype) {
  auto tensor = at::empty(shape, dtype);
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof values[0]);
  return tensor;
}

void add_names(Columns& columns, const std::string& prefix, const NameList& names) {
  columns[prefix + "_bytes"] = names.bytes();
  columns[prefix + "_ends"] = names.ends();
}

// By feature: 1 for a column of words.
std::vector<char> word_columns(const std::vector<std::string>& names, const TableOptions& options,
                               const std::string& path) {
  for (const std::string& column : options.prepare.categorical)
    if (std::find(names.begin(), names.end(), column) == names.end()) {
      const std::string near = nearest(column, names);
      throw Error(Failure::config, path, ":1: no feature '", column, "' (data.categorical); the features are ",
                  join(names, ", "), near.empty() ? std::string() : "; did you mean " + near + "?");
    }
  std::vector<char> has_words;
  for (const std::string& name : names) has_words.push_back(options.prepare.is_categorical(name) ? 1 : 0);
  return has_words;
}

// Sorts the words of each column, and renumbers the features of the column.
std::vector<ColumnWords> sorted_words(std::vector<WordNumbers>& words, std::vector<float>& features) {
  std::vector<ColumnWords> sorted;
  for (size_t column = 0; column < words.size(); ++column) {
    const std::vector<int64_t> becomes = words[column].sort();
    for (size_t at = column; !becomes.empty() && at < features.size(); at += words.size())
      features[at] = float(becomes[size_t(features[at])]);
    sorted.push_back(words[column].words());
  }
  return sorted;
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

  std::vector<std::string> names;
  for (size_t column : feature_columns) names.push_back(header.names()[column]);
  const std::vector<char> has_words = word_columns(names, options, file.path());
  std::vector<WordNumbers> words(names.size());
  std::vector<float> features, target, weight;
  std::vector<int64_t> code;
  WordNumbers classes;
  int64_t rows = 0;
  for (bool more = header.first_row_read() || reader.next(); more; more = reader.next(), ++rows) {
    for (size_t i = 0; i < feature_columns.size(); ++i)
      features.push_back(has_words[i] ? float(words[i](raw_word(reader, feature_columns[i], options.prepare.fill)))
                                      : raw_number(reader, feature_columns[i], options.prepare.fill, "data.features"));
    if (weighted) weight.push_back(float(reader.number(weight_column)));
    if (options.classification) {
      const std::string label(reader.field(target_column));
      if (label.empty()) reader.fail(target_column, "the class is missing");
      code.push_back(classes(label));
    } else {
      target.push_back(float(reader.number(target_column)));
    }
  }

  Columns columns;
  add_names(columns, "name", NameList(names));
  if (std::count(has_words.begin(), has_words.end(), 1) > 0) add_words(columns, sorted_words(words, features));
  columns["features"] = tensor_of(features, {rows, int64_t(feature_columns.size())}, at::kFloat);
  if (weighted) columns["weight"] = tensor_of(weight, {rows}, at::kFloat);
  if (options.classification) {
    const std::vector<int64_t> sorted_number = classes.sort();
    for (auto& value : code) value = sorted_number[size_t(value)];
    columns["target"] = tensor_of(code, {rows}, at::kLong);
    const std::string text = join(classes.words(), "\n");
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

// True if `columns` has the form that `parse` makes, with classes within their range.
bool are_valid_columns(const Columns& columns, const TableOptions& options) {
  if (!has_column(columns, "features", at::kFloat, {-1, -1})) return false;
  const int64_t rows = columns.at("features").size(0), width = columns.at("features").size(1);
  if (!has_column(columns, "name_bytes", at::kByte, {-1}) || !has_column(columns, "name_ends", at::kLong, {width}))
    return false;
  names_of(columns);
  if (!are_valid_words(columns, !options.prepare.categorical.empty(), columns.at("features"))) return false;
  if (options.weight.empty() ? columns.count("weight") != 0 : !has_column(columns, "weight", at::kFloat, {rows}))
    return false;
  if (!options.classification) return has_column(columns, "target", at::kFloat, {rows}) && columns.count("labels") == 0;
  return has_column(columns, "target", at::kLong, {rows}) && has_column(columns, "labels", at::kByte, {-1}) &&
         all_below(columns.at("target"), int64_t(lines_of(columns.at("labels")).size()));
}

std::string cache_key(const TableOptions& options) {
  Json key{{"delimiter", std::string(1, options.delimiter)},
           {"header", options.header},
           {"features", options.features},
           {"target", options.target},
           {"weight", options.weight},
           {"classification", options.classification}};
  // The key contains these two only if they are set, so that caches of earlier versions stay valid.
  if (options.prepare.fill) key["fill"] = true;
  if (!options.prepare.categorical.empty()) key["categorical"] = options.prepare.categorical;
  return key.dump();
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
  result.prepare = PreparationOptions::from(options);
  return result;
}

namespace {

TableData read_one_table(const std::string& path, const TableOptions& options) {
  if (ends_in(path, ".npy") || ends_in(path, ".safetensors")) return read_arrays(path, options);
  TableData data = read_table_csv(path, options);
  check_rows(path, data);
  return data;
}

}  // namespace

TableData read_table(const std::string& path, const TableOptions& options) {
  const std::vector<std::string> paths = files_of(path);
  const std::vector<std::string> targets =
      options.target_path.empty() ? std::vector<std::string>(paths.size()) : files_of(options.target_path);
  if (targets.size() != paths.size())
    throw Error(Failure::config, "data.path matches ", counted(int64_t(paths.size()), "file"),
                ", and data.target_path ", targets.size(), "; give one file of targets for each");
  std::vector<TableData> parts;
  for (size_t i = 0; i < paths.size(); ++i) {
    TableOptions one = options;
    one.target_path = targets[i];
    parts.push_back(read_one_table(paths[i], one));
  }
  return joined_tables(std::move(parts), paths);
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
  data.words = words_of(columns, data.columns.size());
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
    fail(str("holds ", text.size() - data, " bytes of data; the shape and type in its header need ", bytes));
  }
  log_mapped(path, path, bytes);
  // The mapping is read-only; convoy never writes to data.
  void* start = const_cast<char*>(text.data() + data);
  return at::from_blob(
      start, sizes, [file](void*) {}, at::TensorOptions(dtype));
}

}  // namespace convoy
