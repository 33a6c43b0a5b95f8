#include "core/files/weight_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/options.h"
#include "core/files/files.h"
#include "core/files/run_files.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr char ending[] = ".safetensors";

bool is_pickled(const std::string& name) {
  const std::string extension = fs::path(name).extension().string();
  return extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt";
}

[[noreturn]] void refuse_pickle(const std::string& path) {
  throw Error(Failure::config, path,
              " is a pickled file, and reading one runs code from it, so convoy does not; convert it in Python: "
              "save_file(torch.load(\"",
              fs::path(path).filename().string(),
              "\", weights_only=True), \"model.safetensors\"), with save_file from ", "safetensors.torch");
}

WeightFiles by_index(const std::string& folder, const std::string& index) {
  WeightFiles found{folder, {}, index, {}};
  const Json json = parsed_json(read_file(index));
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    throw Error(Failure::corrupt_data, index, ": is no index: it has no map weight_map from tensors to files");
  std::set<std::string> files;
  for (const auto& item : json["weight_map"].items()) {
    if (!item.value().is_string())
      throw Error(Failure::corrupt_data, index, ": the file of ", item.key(), " is no name");
    const auto name = item.value().get<std::string>();
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
      throw Error(Failure::corrupt_data, index, ": the file name '", name, "' leaves the folder");
    std::error_code none;
    if (!fs::is_regular_file(fs::path(folder) / name, none))
      throw Error(Failure::corrupt_data, index, ": names ", name, ", which is not there; copy it again");
    files.insert(name);
    found.listed[item.key()] = name;
  }
  found.files.assign(files.begin(), files.end());
  return found;
}

}  // namespace

bool is_checkpoint_path(const std::string& path) {
  std::error_code none;
  if (!fs::is_directory(path, none)) return false;
  for (const char* sign : {"manifest.json", "checkpoints", "summary.json", "pipelines"})
    if (fs::exists(fs::path(path) / sign, none)) return true;
  const std::vector<std::string> names = names_in(path);
  return std::any_of(names.begin(), names.end(), [](const std::string& name) { return begins_with(name, "step-"); });
}

WeightFiles weight_files(const std::string& path) {
  std::error_code none;
  if (!fs::exists(path, none))
    throw Error(Failure::config, path,
                " does not exist; give a file in safetensors, a folder with such files, a run folder or a checkpoint");
  if (!fs::is_directory(path, none)) {
    if (is_pickled(path)) refuse_pickle(path);
    const fs::path file(path);
    if (ends_in(path, ".index.json")) return by_index(file.parent_path().string(), path);
    return {file.parent_path().string(), {file.filename().string()}, "", {}};
  }
  const std::vector<std::string> names = names_in(path);
  std::vector<std::string> files;
  std::string index, pickled;
  for (const std::string& name : names) {
    if (ends_in(name, ending)) files.push_back(name);
    if (ends_in(name, ".safetensors.index.json") && (index.empty() || name == weights_index)) index = name;
    if (is_pickled(name) && pickled.empty()) pickled = name;
  }
  if (std::find(files.begin(), files.end(), weights_file) != files.end()) return {path, {weights_file}, "", {}};
  if (!index.empty()) return by_index(path, (fs::path(path) / index).string());
  if (files.size() == 1) return {path, files, "", {}};
  if (files.size() > 1)
    throw Error(Failure::config, path, " has several files in safetensors, none is ", weights_file,
                ", but there is no index (", weights_index, "); name one of them: ", join(files, ", "));
  if (!pickled.empty()) refuse_pickle((fs::path(path) / pickled).string());
  throw Error(Failure::config, path,
              " has no weights: neither files in safetensors nor checkpoints of a run; give another folder, or a file");
}

void check_weight_path(const std::string& path) {
  const MemberPath named = checkpoint_path(path, "model.init_from");
  if (is_checkpoint_path(named.path)) return;
  weight_files(named.member < 0 ? path : named.path);
}

}  // namespace convoy
