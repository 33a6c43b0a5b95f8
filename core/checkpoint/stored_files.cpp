#include "core/checkpoint/stored_files.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_directory.h"
#include "core/checkpoint/restore.h"
#include "core/files/run_files.h"
#include "core/state.h"
#include "core/tensors/safetensors.h"

namespace convoy {
namespace {

// A manifest with its files open, and the pieces of each key.
struct StoredState {
  StoredState(const std::string& folder, int member)
      : path(folder),
        manifest(member < 0 ? read_manifest_file(folder) : of_member(read_manifest_file(folder), member, folder)),
        files(manifest, folder) {
    for (const StoredPiece& piece : manifest.pieces) pieces[piece.key].push_back(&piece);
  }

  at::Tensor whole(const std::string& key) {
    const std::vector<const StoredPiece*>& stored_pieces = pieces.at(key);
    const Piece all = Piece::whole(stored_pieces.front()->piece.global_shape);
    if (stored_pieces.size() == 1 && stored_pieces.front()->piece.is_whole())
      return files.tensor(*stored_pieces.front()).reshape(all.global_shape);
    at::Tensor tensor;
    int64_t copied = 0;
    for (const StoredPiece* piece : stored_pieces) {
      const at::Tensor values = files.tensor(*piece).contiguous();
      if (!tensor.defined()) tensor = at::empty(all.global_shape, values.options());
      if (piece->piece.global_shape != all.global_shape || values.scalar_type() != tensor.scalar_type())
        throw Error(Failure::corrupt_data, path, "/manifest.json: the pieces of ", key,
                    " are not of one shape and dtype");
      copied += copy_overlap(all, tensor, piece->piece, values);
    }
    if (copied != all.elements())
      throw Error(Failure::corrupt_data, path, "/manifest.json: the pieces of ", key, " give ", copied, " of ",
                  all.elements(), " elements");
    return tensor;
  }

  std::string path;
  Manifest manifest;
  StoredFiles files;
  std::map<std::string, std::vector<const StoredPiece*>> pieces;
};

at::ScalarType row_dtype(const std::string& text, const std::string& manifest) {
  for (const at::ScalarType dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kBool, at::kHalf,
                                     at::kBFloat16, at::kFloat, at::kDouble})
    if (text == dtype_text(dtype)) return dtype;
  throw Error(Failure::corrupt_data, manifest, ": 'schema' has the unknown dtype ", text);
}

}  // namespace

at::Tensor StoredFiles::tensor(const StoredPiece& stored) {
  const SafetensorsFile& file = open(stored.file);
  const auto corrupt = [&](const char* reason) {
    return Error(Failure::corrupt_data, folder_, "/", stored.file, ": ", stored.tensor, " ", reason);
  };
  if (!file.has(stored.tensor)) throw corrupt("is not there, though the manifest lists it");
  if (file.shape(stored.tensor) != tensor_shape(stored.piece)) throw corrupt("has another shape than in the manifest");
  return file.tensor(stored.tensor);
}

void StoredFiles::release(size_t bytes) {
  constexpr size_t most = size_t{4} << 20;
  if ((unreleased_ += bytes) < most) return;
  unreleased_ = 0;
  for (const auto& [name, file] : files_) file.release();
}

const SafetensorsFile& StoredFiles::open(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  // Pieces of a joined checkpoint name their file with its folder (restore.h); a manifest's names have no folder.
  const std::string path = name.find('/') != std::string::npos ? name : folder_ + "/" + name;
  SafetensorsFile file(path);
  const StoredFile& expected = manifest_.files.at(name);
  if (file.bytes() != expected.bytes || (verify_ && file.hash() != expected.hash)) {
    throw Error(Failure::corrupt_data, path, " is not as it was saved: its hash differs from the manifest's");
  }
  return files_.emplace(name, std::move(file)).first->second;
}

StateView stored_state(const std::string& step_folder, int member) {
  auto state = std::make_shared<StoredState>(step_folder, member);
  StateView view;
  for (const auto& entry : state->pieces) view.keys.push_back(entry.first);
  view.tensor = [state](const std::string& key) { return state->whole(key); };
  return view;
}

namespace {

constexpr char lists_file[] = "data.safetensors";

std::optional<ResumedData> data_of(const std::string& step_folder) {
  try {
    const Manifest manifest = read_manifest_file(step_folder);
    return ResumedData{step_folder, stored_contents(manifest, step_folder)};
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<ResumedData> newest_data(const std::string& folder) {
  const CheckpointDirectory directory(folder, system_files());
  std::vector<int64_t> steps = directory.steps();
  std::reverse(steps.begin(), steps.end());
  for (int64_t step : steps)
    if (auto found = data_of(directory.step_path(step))) return found;
  return std::nullopt;
}

}  // namespace

void store_contents(const DataContents& contents, const std::string& folder, Manifest& manifest, FileSystem& files) {
  if (contents.fingerprint.empty()) return;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  Json lists = Json::object();
  for (const auto& [name, list] : contents.lists) {
    lists[name] = list.names.size();
    if (list.names.size() == 0) continue;
    tensors.emplace_back(name + ".ends", list.names.ends());
    tensors.emplace_back(name + ".bytes", list.names.bytes());
  }
  manifest.data = {{"fingerprint", contents.fingerprint}, {"rows", contents.rows}, {"lists", lists}};
  if (tensors.empty()) return;
  // Wide elements first, so that all of them are aligned.
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  const WrittenFile written = write_safetensors(folder + "/" + lists_file, tensors, {{"format", "pt"}}, files);
  manifest.files[lists_file] = {written.bytes, written.hash};
  manifest.data["file"] = lists_file;
}

std::optional<DataContents> stored_contents(const Manifest& manifest, const std::string& folder) {
  const Json& data = manifest.data;
  if (data.is_null()) return std::nullopt;
  const auto corrupt = [&](const std::string& reason) {
    return Error(Failure::corrupt_data, folder, "/manifest.json: its entry 'data' ", reason);
  };
  DataContents contents{data["fingerprint"].get<std::string>(), data["rows"].get<int64_t>(), {}};
  const std::string name_of_file = data.value("file", std::string());
  StoredFiles files(manifest, folder);
  for (const auto& [name, size] : data["lists"].items()) {
    contents.lists[name];
    if (size == 0) continue;
    const SafetensorsFile& file = files.open(name_of_file);
    for (const char* ending : {".bytes", ".ends"})
      if (!file.has(name + ending)) throw corrupt(str("has a list ", name, " that its file lacks"));
    contents.lists[name].names = NameList(file.tensor(name + ".bytes"), file.tensor(name + ".ends"));
    if (size != contents.lists[name].names.size()) throw corrupt(str("has another size of ", name, " than its file"));
  }
  return contents;
}

Json to_json(const Schema& schema) {
  Json json = Json::object();
  for (const auto& [name, field] : schema.fields)
    json[name] = {{"shape", field.shape}, {"dtype", dtype_text(field.dtype)}, {"cardinality", field.cardinality}};
  return json;
}

Schema schema_from_json(const Json& json, const std::string& manifest) {
  Schema schema;
  try {
    for (const auto& [name, entry] : json.items()) {
      Field field;
      field.shape = entry.at("shape").get<std::vector<int64_t>>();
      field.dtype = row_dtype(entry.at("dtype").get<std::string>(), manifest);
      field.cardinality = entry.at("cardinality").get<int64_t>();
      schema.fields[name] = field;
    }
  } catch (const Json::exception& error) {
    throw Error(Failure::corrupt_data, manifest, ": 'schema' does not describe rows: ", error.what());
  }
  return schema;
}

std::optional<ResumedData> resumed_data(const std::string& resume, const std::string& folder) {
  if (resume == "never") return std::nullopt;
  if (resume == "auto") return newest_data(folder + "/checkpoints");
  const std::string path = checkpoint_path(resume, "train.resume").path;
  if (const auto pipelines = pipeline_folders(path); !pipelines.empty())
    return newest_data(pipelines.front() + "/checkpoints");
  std::error_code none;
  if (std::filesystem::exists(path + "/manifest.json", none)) return data_of(path);
  for (const std::string& candidate : {path + "/checkpoints", path})
    if (auto found = newest_data(candidate)) return found;
  return std::nullopt;
}

}  // namespace convoy
