#include "core/checkpoint/weight_names.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"

namespace convoy {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::string with_numbers_in(const std::string& pattern, const std::vector<std::string>& numbers) {
  std::string name;
  size_t next = 0;
  for (char c : pattern) {
    if (c == '#' && next < numbers.size())
      name += numbers[next++];
    else
      name += c;
  }
  return name;
}

bool equal_values(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    const double x = a.get<double>(), y = b.get<double>();
    return std::abs(x - y) <= 1e-9 * std::max(std::abs(x), std::abs(y));
  }
  return a == b;
}

Json value_at(const Json& file, const std::string& key, const Json& fallback) {
  for (const std::string& path : split(key, '|')) {
    const Json* value = &file;
    for (const std::string& part : split(path, '.'))
      value = value != nullptr && value->is_object() && value->contains(part) ? &value->at(part) : nullptr;
    if (value != nullptr && !value->is_null()) return *value;
  }
  return fallback;
}

}  // namespace

std::pair<std::string, std::vector<std::string>> with_numbers_out(const std::string& name) {
  std::vector<std::string> parts = split(name, '.'), numbers;
  for (std::string& part : parts) {
    if (!is_number(part)) continue;
    numbers.push_back(part);
    part = "#";
  }
  return {join(parts, "."), numbers};
}

WeightName WeightNames::of(const std::string& canonical) const {
  const auto [pattern, numbers] = with_numbers_out(canonical);
  for (const WeightName& line : table) {
    const bool literal = line.ours == canonical;
    if (!literal && line.ours != pattern) continue;
    WeightName found = line;
    found.ours = canonical;
    for (std::string& name : found.theirs) name = with_numbers_in(name, numbers);
    return found;
  }
  return {canonical, {canonical}};
}

std::vector<std::string> WeightNames::layers_of(const std::string& canonical_layer) const {
  const std::string weight = ".weight";
  std::vector<std::string> layers;
  for (std::string name : of(canonical_layer + weight).theirs) {
    if (ends_in(name, weight)) name.resize(name.size() - weight.size());
    layers.push_back(std::move(name));
  }
  return layers;
}

bool WeightNames::ignores(const std::string& name) const {
  const std::string pattern = with_numbers_out(name).first;
  return std::any_of(ignored.begin(), ignored.end(), [&](const std::string& known) {
    return pattern == known || pattern == prefix + known || name == known;
  });
}

std::vector<WeightRange> ranges_of(const WeightName& name, int64_t rows) {
  std::vector<int64_t> parts = name.parts;
  if (parts.empty()) parts.assign(name.theirs.size(), 1);
  int64_t all = 0;
  for (int64_t part : parts) all += part * name.groups;
  if (all == 0 || rows % all != 0)
    throw Error(Failure::config, name.ours, " has ", rows, " rows, which its parts ", join(name.theirs, ", "),
                " do not divide");
  std::vector<WeightRange> ranges;
  int64_t begin = 0;
  for (int64_t group = 0; group < name.groups; ++group)
    for (size_t part = 0; part < parts.size(); ++part) {
      const int64_t size = parts[part] * (rows / all);
      ranges.push_back({part, begin, begin + size, group * size});
      begin += size;
    }
  return ranges;
}

std::vector<std::vector<int64_t>> stored_shapes(const WeightName& name, const std::vector<int64_t>& shape) {
  std::vector<std::vector<int64_t>> shapes(name.theirs.size(), shape);
  for (std::vector<int64_t>& part : shapes)
    if (!part.empty()) part[0] = 0;
  for (const WeightRange& range : ranges_of(name, shape.empty() ? 1 : shape[0]))
    if (!shape.empty()) shapes[range.part][0] += range.end - range.begin;
  if (name.transposed)
    for (std::vector<int64_t>& part : shapes) std::reverse(part.begin(), part.end());
  return shapes;
}

Json config_json(const PythonConfig& config, const std::function<std::vector<int64_t>(const std::string&)>& shape_of) {
  Json file = Json::object();
  for (const PythonKey& key : config.keys) {
    Json* entry = &file;
    for (const std::string& part : split(split(key.key, '|').front(), '.')) entry = &(*entry)[part];
    *entry = key.value;
  }
  for (const PythonConfig::Size& size : config.sizes) file[size.key] = shape_of(size.tensor)[size_t(size.dimension)];
  file.update(config.rest);
  return file;
}

std::vector<std::pair<std::string, std::string>> config_differences(const PythonConfig& config, const Json& file) {
  std::vector<std::pair<std::string, std::string>> differences;
  for (const PythonKey& key : config.keys) {
    const Json there = value_at(file, key.key, key.fallback);
    if (equal_values(there, key.value)) continue;
    differences.emplace_back(
        key.option,
        key.option.empty()
            ? str(key.key, " = ", there.dump(), ", but this model supports only ", key.value.dump())
            : str(key.key, " = ", there.dump(), " conflicts with model.", key.option, " = ", key.value.dump()));
  }
  return differences;
}

}  // namespace convoy
