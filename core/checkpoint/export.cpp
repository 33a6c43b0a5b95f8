#include "core/checkpoint/export.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "core/base/ensemble_members.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/stored_files.h"
#include "core/checkpoint/weight_source.h"
#include "core/data/formats/bpe_trainer.h"
#include "core/data/formats/token_file.h"
#include "core/files/run_files.h"
#include "core/files/weight_files.h"
#include "core/tensors/safetensors.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr char config_file[] = "config.json";
constexpr char tokenizer_file[] = "tokenizer.json";

// --- Tensors ---

// One tensor of the file, made from some rows of one tensor of the checkpoint.
at::Tensor values_of(WeightSource& source, const SourceTensor& tensor, const WeightName& name, size_t part) {
  const std::vector<int64_t> shape = tensor.shape;
  if (name.theirs.size() == 1 && !name.transposed) {
    at::Tensor whole = at::empty(shape, tensor.dtype);
    source.read({tensor.name, {tensor.name}}, {tensor.name}, Piece::whole(shape), whole);
    return whole;
  }
  std::vector<int64_t> rows = stored_shapes(name, shape)[part];
  if (name.transposed) std::reverse(rows.begin(), rows.end());
  at::Tensor values = at::empty(rows, tensor.dtype);
  int64_t filled = 0;
  for (const WeightRange& range : ranges_of(name, shape.empty() ? 1 : shape[0])) {
    if (range.part != part) continue;
    Piece piece = Piece::whole(shape);
    piece.offset[0] = range.begin;
    piece.length[0] = range.end - range.begin;
    source.read({tensor.name, {tensor.name}}, {tensor.name}, piece, values.narrow(0, filled, piece.length[0]));
    filled += piece.length[0];
  }
  return name.transposed && values.dim() == 2 ? values.t() : values;
}

std::vector<TensorToWrite> tensors_of(WeightSource& source, const WeightNames& names) {
  std::vector<TensorToWrite> tensors;
  std::set<std::string> known;
  for (const SourceTensor& tensor : source.tensors()) {
    const WeightName name = names.of(tensor.name);
    const std::vector<std::vector<int64_t>> shapes = stored_shapes(name, tensor.shape);
    for (size_t part = 0; part < name.theirs.size(); ++part) {
      CONVOY_CHECK(known.insert(name.theirs[part]).second, "two tensors are exported as ", name.theirs[part]);
      tensors.push_back({name.theirs[part], tensor.dtype, shapes[part],
                         [&source, tensor, name, part] { return values_of(source, tensor, name, part); }});
    }
  }
  return tensors;
}

int64_t bytes_of(const TensorToWrite& tensor) {
  return c10::multiply_integers(tensor.shape) * int64_t(c10::elementSize(tensor.dtype));
}

// Divides the tensors into files of at most `most` bytes, in order.
std::vector<std::vector<TensorToWrite>> divided(std::vector<TensorToWrite> tensors, int64_t most) {
  std::vector<std::vector<TensorToWrite>> files(1);
  int64_t bytes = 0;
  for (TensorToWrite& tensor : tensors) {
    const int64_t more = bytes_of(tensor);
    if (!files.back().empty() && bytes + more > most) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += more;
    files.back().push_back(std::move(tensor));
  }
  return files;
}

// "model-00001-of-00003.safetensors", as transformers calls them.
std::string numbered_file(size_t index, size_t count) {
  const auto digits = [](size_t number) {
    const std::string text = std::to_string(number);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  return str("model-", digits(index + 1), "-of-", digits(count), ".safetensors");
}

// --- The destination ---

bool is_exported_file(const std::string& name) {
  static const std::set<std::string> others{
      config_file,  weights_index, "generation_config.json", tokenizer_file,
      "vocab.json", "merges.txt",  "tokenizer_config.json",  "special_tokens_map.json"};
  return others.count(name) != 0 || ends_in(name, ".safetensors");
}

// The path that is checked and renamed: absolute, without "..", and without a slash at the end.
std::string destination_path(const std::string& to) {
  std::string path = absolute_path(to);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Refuses a destination that must not be replaced.
void check_destination(const ExportRequest& request, const std::string& path) {
  std::error_code none;
  const fs::file_status there = fs::symlink_status(path, none);
  if (!fs::exists(there)) return;
  if (fs::is_symlink(there))
    throw Error(Failure::output, request.to, " is a symbolic link, which would be replaced; ",
                "give the folder that it names, or another --to");
  if (!fs::is_directory(there))
    throw Error(Failure::output, request.to, " exists and is no folder; choose another --to");
  const std::vector<std::string> names = names_in(path);
  if (names.empty()) return;
  const auto other = std::find_if(names.begin(), names.end(), [](const auto& name) { return !is_exported_file(name); });
  if (other != names.end())
    throw Error(Failure::output, request.to, " has other files, such as ", *other, "; choose another --to");
  if (!request.replace)
    throw Error(Failure::output, request.to, " has an export already; choose another --to, or replace it with --force");
}

// Files of an export, written to a temporary folder until `publish`.
class Destination {
 public:
  // `path`: the result of destination_path.
  Destination(std::string path, FileSystem& files)
      : files_(files), token_(random_token()), final_(std::move(path)), temporary_(temporary_path("tmp")) {
    remove_leftovers();
    files_.make_folder(temporary_);
  }
  ~Destination() {
    try {
      files_.remove_all(temporary_);
    } catch (const Error&) {  // the first cause is reported
    }
  }
  Destination(const Destination&) = delete;
  Destination& operator=(const Destination&) = delete;

  std::string path(const std::string& name) const { return temporary_ + "/" + name; }
  // Calls `work`; a failure names the folder that the user asked for, not the temporary one.
  template <class Work>
  void naming_result(Work work) const {
    try {
      work();
    } catch (const Error& error) {
      throw renamed(error, temporary_, final_);
    }
  }
  void write(const std::string& name, const std::string& text) {
    const auto file = files_.create(path(name));
    file->write(text.data(), text.size());
    file->close();
  }
  void publish() {
    files_.sync_folder(temporary_);
    std::error_code none;
    const bool replaces = fs::exists(final_, none);
    const std::string old = temporary_path("old");
    if (replaces) files_.rename(final_, old);
    try {
      files_.rename(temporary_, final_);
    } catch (const Error&) {
      if (replaces) files_.rename(old, final_);
      throw;
    }
    files_.sync_folder(parent());
    if (replaces) files_.remove_all(old);
  }

 private:
  std::string parent() const { return fs::path(final_).parent_path().string(); }
  std::string prefix(const char* what) const { return str(".", fs::path(final_).filename().string(), ".", what, "-"); }
  std::string temporary_path(const char* what) const { return str(parent(), "/", prefix(what), token_); }
  // Removes what a killed export left.
  void remove_leftovers() {
    for (const std::string& name : names_in(parent()))
      if (begins_with(name, prefix("tmp"))) files_.remove_all(parent() + "/" + name);
  }

  FileSystem& files_;
  std::string token_, final_, temporary_;
};

// --- Files for transformers ---

RunConfig config_of(const Manifest& manifest, const std::string& folder) {
  try {
    return RunConfig::from_resolved(manifest.config);
  } catch (const std::exception& error) {
    throw Error(Failure::corrupt_data, folder,
                "/manifest.json: its configuration is not one of this version: ", error.what());
  }
}

std::string config_text(const WeightNames& names, const WeightSource& source, const RunConfig& config) {
  const auto shape_of = [&source](const std::string& ours) {
    for (const SourceTensor& tensor : source.tensors())
      if (tensor.name == ours) return tensor.shape;
    throw Error(Failure::config, source.path(), " has no tensor ", ours, ", which config.json needs");
  };
  Json json = config_json(*names.config, shape_of);
  const std::string length = names.config->length_key;
  const Json& data = config.data.options.json();
  if (!length.empty() && data.contains("length") && data["length"].is_number()) json[length] = data["length"];
  json["dtype"] = source.tensors().front().dtype == at::kDouble ? "float64" : "float32";
  return json.dump(2) + "\n";
}

// Content of tokenizer.json for `vocabulary: bytes`, where token n is byte n: byte-level BPE without merges, with the
// alphabet of GPT-2.
std::string byte_tokenizer() {
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  for (size_t byte = 0; byte < 256; ++byte) vocabulary.emplace_back(byte_letters()[byte], int64_t(byte));
  return byte_level_tokenizer(vocabulary, {}, {}, false);
}

// Files of the tokenizer, by name. Empty if the data has none that transformers knows.
std::map<std::string, std::string> tokenizer_of(const Manifest& manifest, const std::string& folder,
                                                const RunConfig& config) {
  std::map<std::string, std::string> files;
  if (const std::optional<DataContents> contents = stored_contents(manifest, folder)) {
    const auto found = contents->lists.find("tokenizer");
    std::vector<std::string> pairs;
    if (found != contents->lists.end()) pairs = found->second.names.strings();
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      // A whole tokenizer may have any name that ends in .json; transformers knows only tokenizer.json.
      const bool whole = !is_exported_file(pairs[i]) && ends_in(pairs[i], ".json");
      if (!whole && !is_exported_file(pairs[i]))
        throw Error(Failure::corrupt_data, folder, ": ", pairs[i], " is no file of a tokenizer");
      files[whole ? tokenizer_file : pairs[i]] = pairs[i + 1];
    }
  }
  const Options& data = config.data.options;
  if (files.empty() && config.data.name == "text" && data.text("vocabulary") == "bytes" &&
      !holds_tokens(data.text("format"), data.text("path")))
    return {{tokenizer_file, byte_tokenizer()}};
  return files;
}

// Writes the tokenizer; returns a note if there is none.
std::string write_tokenizer(std::map<std::string, std::string> tokenizer, const RunConfig& config,
                            Destination& destination, std::vector<std::string>& written) {
  if (tokenizer.empty())
    return str("no tokenizer is written: ",
               config.data.name == "text" ? "transformers has none for a vocabulary file, whose longest token wins"
                                          : "the data set " + config.data.name + " has none");
  // By default transformers takes the kind of tokenizer from the kind of model.
  const char* kind = tokenizer.count(tokenizer_file) != 0 ? "PreTrainedTokenizerFast" : "GPT2Tokenizer";
  tokenizer["tokenizer_config.json"] =
      Json{{"tokenizer_class", kind}, {"clean_up_tokenization_spaces", false}}.dump(1) + "\n";
  for (const auto& [name, text] : tokenizer) {
    destination.write(name, text);
    written.push_back(name);
  }
  return "";
}

}  // namespace

Json export_weights(const ExportRequest& request, const std::function<WeightNames(const Component& model)>& names_of,
                    FileSystem& files) {
  const std::string path = destination_path(request.to);
  check_destination(request, path);
  const MemberPath named = checkpoint_path(request.run, "convoy export");
  const std::string folder = named_checkpoint(named.path, "convoy export");
  const auto source = open_weights(named.member < 0 ? folder : str(folder, "@member", named.member), false);
  const Manifest manifest = read_manifest_file(folder);
  const RunConfig config = config_of(manifest, folder);
  const WeightNames names = names_of(config.model);
  if (request.with_config && !config.program.empty())
    throw Error(Failure::config, "convoy export: --format hf: ", request.run,
                " is a run of a program, whose model is in its code; type --format safetensors");
  if (request.with_config && !names.config)
    throw Error(Failure::config, "convoy export: --format hf: ", request.run, " is of model ", config.model.name, ": ",
                names.no_config);

  std::vector<TensorToWrite> tensors = tensors_of(*source, names);
  int64_t total = 0;
  for (const TensorToWrite& tensor : tensors) total += bytes_of(tensor);
  const size_t count = tensors.size();
  const auto shares = divided(std::move(tensors), request.file_bytes);

  Destination destination(path, files);
  std::vector<std::string> written, notes;
  Json map = Json::object();
  destination.naming_result([&] {
    for (size_t i = 0; i < shares.size(); ++i) {
      const std::string name = shares.size() == 1 ? weights_file : numbered_file(i, shares.size());
      stream_safetensors(destination.path(name), shares[i], {{"format", "pt"}}, files);
      for (const TensorToWrite& tensor : shares[i]) map[tensor.name] = name;
      written.push_back(name);
    }
    if (shares.size() > 1) {
      destination.write(weights_index, Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
      written.emplace_back(weights_index);
    }
    if (request.with_config) {
      destination.write(config_file, config_text(names, *source, config));
      written.emplace_back(config_file);
      const std::string note = write_tokenizer(tokenizer_of(manifest, folder, config), config, destination, written);
      if (!note.empty()) notes.push_back(note);
    }
    destination.publish();
  });
  return {{"checkpoint", folder}, {"step", manifest.step}, {"tensors", count},
          {"bytes", total},       {"files", written},      {"notes", notes}};
}

}  // namespace convoy
