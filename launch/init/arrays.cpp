#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string_view>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/data/formats/npy_header.h"
#include "launch/init/draft.h"

namespace convoy {
namespace {

constexpr int64_t least_rows = 10;

// --- Arrays of both formats ---

// Type of elements, by the names that both formats have for it.
struct ElementType {
  const char* npy;  // "": .npy has none
  const char* safetensors;
  size_t size;
  bool integer;
};
constexpr ElementType element_types[] = {{"<f8", "F64", 8, false}, {"<f4", "F32", 4, false}, {"<f2", "F16", 2, false},
                                         {"", "BF16", 2, false},   {"<i8", "I64", 8, true},  {"<i4", "I32", 4, true},
                                         {"<i2", "I16", 2, true},  {"|i1", "I8", 1, true},   {"|u1", "U8", 1, true},
                                         {"|b1", "BOOL", 1, true}};

struct Array {
  MappedFile file;   // keeps `bytes` valid
  std::string name;  // name of the tensor; .npy: the path
  ElementType type;
  std::vector<int64_t> shape;
  std::string_view bytes;

  int64_t rows() const { return shape.empty() ? 0 : shape[0]; }
  int64_t elements() const { return int64_t(bytes.size() / type.size); }
};

[[noreturn]] void refuse_type(const std::string& name, const std::string& type) {
  throw Error(Failure::corrupt_data, name, ": elements of type ", type,
              " cannot be read; convert them to float32 or int64 in Python");
}

void check_size(const Array& array) {
  uint64_t wanted = array.type.size;
  for (const int64_t size : array.shape) {
    if (size < 0 || (size > 0 && wanted > std::numeric_limits<uint64_t>::max() / uint64_t(size)))
      throw Error(Failure::corrupt_data, array.name, ": has impossible sizes, ", shape_text(array.shape));
    wanted *= uint64_t(size);
  }
  if (wanted != array.bytes.size())
    throw Error(Failure::corrupt_data, array.name, ": holds ", array.bytes.size(), " bytes of data; the shape ",
                shape_text(array.shape), " needs ", wanted);
}

template <class Number>
void for_numbers(std::string_view bytes, const std::function<void(double)>& use) {
  for (size_t at = 0; at + sizeof(Number) <= bytes.size(); at += sizeof(Number)) {
    Number number;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    use(double(number));
  }
}

double half_precision(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 0    ? std::ldexp(fraction, -24)
                      : exponent == 31 ? std::numeric_limits<double>::infinity()
                                       : std::ldexp(fraction + 1024, exponent - 25);
  return bits >> 15 == 1 ? -size : size;
}

double bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float number;
  std::memcpy(&number, &wide, sizeof number);
  return double(number);
}

void for_elements(const Array& array, const std::function<void(double)>& use) {
  const std::string type = array.type.safetensors;
  if (type == "F64") return for_numbers<double>(array.bytes, use);
  if (type == "F32") return for_numbers<float>(array.bytes, use);
  if (type == "I64") return for_numbers<int64_t>(array.bytes, use);
  if (type == "I32") return for_numbers<int32_t>(array.bytes, use);
  if (type == "I16") return for_numbers<int16_t>(array.bytes, use);
  if (type == "I8") return for_numbers<int8_t>(array.bytes, use);
  if (type == "U8" || type == "BOOL") return for_numbers<uint8_t>(array.bytes, use);
  const auto wide = type == "F16" ? half_precision : bfloat16;
  for (size_t at = 0; at + 2 <= array.bytes.size(); at += 2) {
    uint16_t bits;
    std::memcpy(&bits, array.bytes.data() + at, sizeof bits);
    use(wide(bits));
  }
}

Array npy_array(const MappedFile& file) {
  const NpyHeader header = read_npy_header(file.path(), file.text());
  const auto* const type = std::find_if(std::begin(element_types), std::end(element_types),
                                        [&](const ElementType& each) { return header.type == each.npy; });
  if (type == std::end(element_types)) refuse_type(file.path(), header.type);
  if (header.fortran)
    throw Error(Failure::corrupt_data, file.path(),
                ": is in Fortran order; in Python: numpy.save(path, numpy.ascontiguousarray(a))");
  Array array{file, file.path(), *type, header.shape, file.text().substr(header.data)};
  check_size(array);
  return array;
}

// --- .safetensors: an 8-byte length, a map as JSON, the data ---

std::vector<Array> safetensors_arrays(const MappedFile& file) {
  const std::string_view text = file.text();
  const auto fail = [&](const char* reason) {
    throw Error(Failure::corrupt_data, file.path(), ": ", reason, "; write it again with safetensors.numpy.save_file");
  };
  uint64_t length = 0;
  if (text.size() < sizeof length) fail("is too short for a safetensors file");
  std::memcpy(&length, text.data(), sizeof length);
  if (length > text.size() - sizeof length) fail("is not a safetensors file, or is cut off");
  const std::string_view data = text.substr(sizeof length + length);
  std::map<uint64_t, Array> sorted;
  try {
    const auto header = nlohmann::json::parse(text.substr(sizeof length, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto dtype = entry.at("dtype").get<std::string>();
      const auto* const type = std::find_if(std::begin(element_types), std::end(element_types),
                                            [&](const ElementType& each) { return dtype == each.safetensors; });
      if (type == std::end(element_types)) refuse_type(file.path() + ": tensor " + name, dtype);
      const auto begin = entry.at("data_offsets").at(0).get<uint64_t>();
      const auto end = entry.at("data_offsets").at(1).get<uint64_t>();
      if (begin > end || end > data.size()) fail("has tensors outside of the file");
      Array array{file, name, *type, entry.at("shape").get<std::vector<int64_t>>(), data.substr(begin, end - begin)};
      check_size(array);
      sorted.emplace(begin, std::move(array));
    }
  } catch (const nlohmann::json::exception&) {
    fail("has a damaged header");
  }
  std::vector<Array> arrays;
  for (auto& each : sorted) arrays.push_back(std::move(each.second));
  return arrays;
}

// --- The draft ---

// Features and target, and the lines that name them.
struct Pair {
  Array features, target;
  std::vector<DataDraft::Line> lines;
};

Pair npy_pair(const MappedFile& file, const std::string& target) {
  if (!ends_in(target, ".npy"))
    throw Error(Failure::command_line, "convoy init: ", file.path(), ": name the file of targets by --target, as in ",
                "--target y.npy");
  return {npy_array(file), npy_array(MappedFile(target)), {{"target_path: " + yaml_word(target), ""}}};
}

Pair safetensors_pair(const MappedFile& file, const std::string& target) {
  const std::vector<Array> arrays = safetensors_arrays(file);
  std::vector<std::string> names;
  for (const Array& array : arrays) names.push_back(array.name);
  constexpr size_t most_names = 20;
  const bool many = names.size() > most_names;
  const std::string tensors = "the tensors are " +
                              join({names.begin(), many ? names.begin() + most_names : names.end()}, ", ") +
                              (many ? ", …" : "");
  if (target.empty())
    throw Error(Failure::command_line, "convoy init: ", file.path(), ": name the tensor to predict by --target; ",
                tensors);
  const auto found = std::find(names.begin(), names.end(), target);
  if (found == names.end()) {
    const std::string near = nearest(target, names);
    throw Error(Failure::command_line, "convoy init: --target ", target, ": ", file.path(), " has no such tensor; ",
                near.empty() ? "" : "did you mean " + near + "? ", tensors);
  }
  const Array& targets = arrays[size_t(found - names.begin())];
  // Takes the tensor "features", or else the largest other one with as many rows as the target.
  const Array* features = nullptr;
  for (const Array& array : arrays) {
    if (&array == &targets || array.rows() != targets.rows()) continue;
    if (features == nullptr || array.name == "features" ||
        (features->name != "features" && array.elements() > features->elements()))
      features = &array;
  }
  if (features == nullptr)
    throw Error(Failure::config, file.path(), ": no other tensor has the ", targets.rows(), " rows of ", target,
                ", so there is nothing to predict it from; ", tensors);
  return {*features,
          targets,
          {{"features: [" + yaml_word(features->name) + "]", "the tensor of inputs"},
           {"target: " + yaml_word(target), "the tensor to predict"}}};
}

struct TargetValues {
  Moments moments;
  double least = std::numeric_limits<double>::infinity(), most = -least;
};

TargetValues values_of(const Array& target, const std::string& path) {
  TargetValues values;
  int64_t element = 0;
  for_elements(target, [&](double number) {
    if (!std::isfinite(number))
      throw Error(Failure::corrupt_data, path, ": element ", element, " of the targets is ", number,
                  "; remove its row");
    ++element;
    values.moments.add(number);
    values.least = std::min(values.least, number);
    values.most = std::max(values.most, number);
  });
  if (values.least == values.most)
    throw Error(Failure::config, path, ": the target has the same value in every row, so there is nothing to predict; ",
                "choose another --target");
  return values;
}

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.12g", number);
  return text;
}

}  // namespace

double Moments::deviation() const { return count_ > 0 ? std::sqrt(squares_ / double(count_)) : 0; }

void check_rows(const std::string& path, int64_t rows) {
  if (rows < least_rows)
    throw Error(Failure::config, path, ": has ", counted(rows, "row"), "; training needs at least ", least_rows);
}

void set_length(DataDraft& draft, int64_t rows, int64_t most_batch) {
  draft.batch = 8;
  while (draft.batch < most_batch && draft.batch * 50 < rows) draft.batch *= 2;
  const int64_t epochs = std::min<int64_t>(50, std::max<int64_t>(2, 2000 * draft.batch / std::max<int64_t>(rows, 1)));
  draft.length = str("epochs: ", epochs);
  // Epochs of small data take milliseconds, less than a checkpoint.
  if (epochs >= 10) draft.checkpoints = str(epochs / 5, " epochs");
}

void set_mlp(DataDraft& draft, const std::string& path, const Moments* target) {
  draft.model = "mlp";
  draft.model_options = "hidden: [64, 64]";
  draft.optimizer = target == nullptr ? "{name: adam, lr: 3.0e-3}" : "{name: adam, lr: 1.0e-2}";
  if (target == nullptr) return;
  const double largest = std::max(std::fabs(target->mean()), target->deviation());
  if (!(largest < double(std::numeric_limits<float>::max()) / 1e3))
    throw Error(Failure::corrupt_data, path, ": the numbers to predict have mean ", number_text(target->mean()),
                " and deviation ", number_text(target->deviation()),
                ", too large to train on; remove wrong values, or divide all by a constant");
  // A learning rate fits outputs of mean 0 and deviation 1. Three digits of the deviation are enough.
  const double unit = std::pow(10, std::floor(std::log10(target->deviation())) - 2);
  draft.model_options += ", output_mean: " + number_text(std::round(target->mean() / unit) * unit) +
                         ", output_deviation: " + number_text(std::round(target->deviation() / unit) * unit);
  draft.model_comment = "output_*: those of the target; ";
}

std::vector<std::string> tensor_names(const MappedFile& file) {
  std::vector<std::string> names;
  for (const Array& array : safetensors_arrays(file)) names.push_back(array.name);
  return names;
}

DataDraft arrays_draft(const MappedFile& file, const std::string& target) {
  const Pair pair = ends_in(file.path(), ".npy") ? npy_pair(file, target) : safetensors_pair(file, target);
  const std::vector<int64_t>&features = pair.features.shape, &targets = pair.target.shape;
  const int64_t rows = pair.features.rows();
  if (pair.target.rows() != rows)
    throw Error(Failure::config, file.path(), ": has ", rows, " rows of features, and ", pair.target.rows(),
                " of targets");
  check_rows(file.path(), rows);
  const TargetValues values = values_of(pair.target, pair.target.file.path());
  // Whole numbers are classes if each can have five rows on average.
  const bool classes =
      pair.target.type.integer && targets.size() == 1 && values.least >= 0 && (values.most + 1) * 5 <= double(rows);
  DataDraft draft;
  draft.found =
      str("features ", shape_text(features), ", targets ", shape_text(targets), ": ", classes ? "classes" : "numbers");
  draft.lines = {{"name: table", ""},
                 {"path: " + yaml_word(file.path()), "paths start from the folder of the command"}};
  draft.lines.insert(draft.lines.end(), pair.lines.begin(), pair.lines.end());
  draft.lines.push_back({classes ? "task: classification" : "task: regression",
                         classes ? "whole numbers are classes" : "the targets are numbers"});
  if (features.size() == 2) draft.lines.push_back({"scale: standard", "mean 0 and deviation 1, by the training rows"});
  draft.lines.push_back({"evaluate: {fraction: 0.2}", "one fifth of the rows is for evaluation"});
  set_mlp(draft, pair.target.file.path(), classes ? nullptr : &values.moments);
  if (classes && features.size() == 4) {
    draft.model = "convnet";
    draft.model_options = "channels: [16, 32]";
    draft.optimizer = DataDraft().optimizer;
  }
  set_length(draft, rows * 4 / 5, 256);
  return draft;
}

}  // namespace convoy
