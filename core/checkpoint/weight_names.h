// WeightNames: names and layouts of a model's tensors in Python. Export and import use the same table.
//
// Models fill a table (models/weight_names.cpp). Tensors without a line keep their canonical name and layout. A "#" in
// a name stands for one number: "blocks.#.qkv.weight" and "h.#.attn.c_attn.weight" have the same number. Threads: const
// after construction.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/base/options.h"

namespace convoy {

// One tensor of convoy, and its tensors in a Python file. Several are concatenated along dimension 0 of ours. With
// `groups` G, each of them is divided into G equal ranges. Ours has the first range of each, then the second, …
struct WeightName {
  std::string ours;  // canonical: "blocks.#.qkv.weight"
  std::vector<std::string> theirs;
  bool transposed = false;          // the file has [in, out]
  std::vector<int64_t> parts = {};  // relative sizes of `theirs`; empty: equal
  int64_t groups = 1;
};

// Rows [begin, end) of a tensor of ours are rows of theirs[part], starting at `first`.
struct WeightRange {
  size_t part = 0;
  int64_t begin = 0, end = 0, first = 0;
};

// A key of transformers' config.json, and the model's option that must agree with it.
struct PythonKey {
  std::string key;     // "n_head"; "a.b|c": key b in the map a, or c in older files
  Json value;          // value for this model
  Json fallback;       // value that transformers assumes if the file lacks the key
  std::string option;  // "heads"; "": the model has no such option and computes `value`
};

// The data from which transformers creates the model.
struct PythonConfig {
  std::vector<PythonKey> keys;  // compared when a folder is read, and written
  Json rest = Json::object();   // only written: architectures, model_type, …
  // Keys with a size that a tensor determines: key, canonical name, dimension.
  struct Size {
    std::string key, tensor;
    int64_t dimension = 0;
  };
  std::vector<Size> sizes = {};
  std::string length_key = {};  // key for the length of the data's sequences; "": none
};

struct WeightNames {
  std::vector<WeightName> table;
  std::string prefix;                // start of all names ("transformer."); files may lack it
  std::vector<std::string> ignored;  // names in files that the model does not need ("h.#.attn.bias", a mask)
  std::optional<PythonConfig> config;
  std::string no_config;  // reason if transformers has no such model

  // Returns the table's line for a canonical name, with its numbers; for other names, the name itself.
  WeightName of(const std::string& canonical) const;
  // Returns Python's name of the layer that owns NAME.weight ("transformer.h.0.ln_1"), one for each part.
  std::vector<std::string> layers_of(const std::string& canonical_layer) const;
  bool ignores(const std::string& name) const;
};

// "blocks.3.qkv.weight" → "blocks.#.qkv.weight", and 3.
std::pair<std::string, std::vector<std::string>> with_numbers_out(const std::string& name);

// Divides dimension 0 of our tensor with `rows` rows, in order. Error(config) if the sizes do not divide.
std::vector<WeightRange> ranges_of(const WeightName& name, int64_t rows);

// Returns the shapes of the tensors in the file for a tensor of this shape. A transposed tensor has one or two
// dimensions.
std::vector<std::vector<int64_t>> stored_shapes(const WeightName& name, const std::vector<int64_t>& shape);

// Returns the content of config.json. `shape_of`: shape of a tensor by its canonical name.
Json config_json(const PythonConfig& config, const std::function<std::vector<int64_t>(const std::string&)>& shape_of);

// Compares config.json of a folder with the model. Returns a text for each key that differs, with the option to change.
std::vector<std::pair<std::string, std::string>> config_differences(const PythonConfig& config, const Json& file);

}  // namespace convoy
