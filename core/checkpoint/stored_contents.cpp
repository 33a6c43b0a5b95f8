#include "core/checkpoint/stored_contents.h"

#include <sys/stat.h>

#include <algorithm>

#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/shelf.h"
#include "core/checkpoint/stored_files.h"
#include "core/error.h"
#include "core/farm_folder.h"
#include "core/member_path.h"

namespace convoy {
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
  const Shelf shelf(folder, system_files());
  std::vector<int64_t> steps = shelf.steps();
  std::reverse(steps.begin(), steps.end());
  for (int64_t step : steps)
    if (auto found = data_of(shelf.step_path(step))) return found;
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
    return Error(Failure::corrupt_data, str(folder, "/manifest.json: its entry 'data' ", reason));
  };
  DataContents contents{data["fingerprint"].get<std::string>(), data["rows"].get<int64_t>(), {}};
  const std::string name_of_file = data.value("file", std::string());
  StoredFiles files(manifest, folder);
  for (const auto& [name, size] : data["lists"].items()) {
    contents.lists[name];
    if (size == 0) continue;
    const SafetensorsFile& file = files.open(name_of_file);
    for (const char* part : {".bytes", ".ends"})
      if (!file.has(name + part)) throw corrupt(str("has a list ", name, " that its file lacks"));
    contents.lists[name].names = NameList(file.tensor(name + ".bytes"), file.tensor(name + ".ends"));
    if (size != contents.lists[name].names.size()) throw corrupt(str("has another size of ", name, " than its file"));
  }
  return contents;
}

std::optional<ResumedData> resumed_data(const std::string& resume, const std::string& folder) {
  if (resume == "never") return std::nullopt;
  if (resume == "auto") return newest_data(folder + "/checkpoints");
  const std::string path = member_path(resume).path;
  if (const auto pipelines = pipeline_folders(path); !pipelines.empty())
    return newest_data(pipelines.front() + "/checkpoints");
  struct stat status {};
  if (stat((path + "/manifest.json").c_str(), &status) == 0) return data_of(path);
  for (const std::string& place : {path + "/checkpoints", path})
    if (auto found = newest_data(place)) return found;
  return std::nullopt;
}

}  // namespace convoy
