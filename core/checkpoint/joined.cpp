#include "core/checkpoint/joined.h"

#include "core/error.h"

namespace convoy {
namespace {

std::string hash_of_lists(const Manifest& manifest) {
  const auto file = manifest.files.find(manifest.data.value("file", std::string()));
  return file == manifest.files.end() ? "" : file->second.hash;
}

// Joins the members' data; their numbering must be equal.
void join_data(Manifest& all, const Manifest& own, const std::string& folder, const std::string& first) {
  if (all.data.is_null() || own.data.is_null()) {
    all.data = nullptr;
    return;
  }
  if (hash_of_lists(all) != hash_of_lists(own))
    throw Error(Failure::config, str("train.resume: ", folder, " and ", first,
                                     " were trained on data with other ids, classes or columns, or with other "
                                     "numbers for them; members of one ensemble share them"));
  if (all.data["fingerprint"] != own.data["fingerprint"]) all.data["fingerprint"] = "several";
}

}  // namespace

Manifest joined(const std::vector<std::string>& step_folders) {
  Manifest all;
  for (size_t member = 0; member < step_folders.size(); ++member) {
    const std::string& folder = step_folders[member];
    Manifest own = read_manifest_file(folder);
    if (member == 0) {
      all.step = own.step;
      all.trainer = own.trainer;
      all.config = own.config;
      all.data = own.data;
      if (own.data.contains("file")) all.data["file"] = folder + "/" + own.data["file"].get<std::string>();
    }
    if (own.step != all.step)
      throw Error(Failure::config,
                  str("train.resume: ", folder, " is of step ", own.step, " and ", step_folders.front(), " of step ",
                      all.step, "; members of one ensemble have made as many steps"));
    if (member > 0) join_data(all, own, folder, step_folders.front());
    for (const auto& [file, stored] : own.files) all.files[folder + "/" + file] = stored;
    for (StoredPiece& piece : own.pieces) {
      if (piece.member >= 0 || piece.replica >= 0)
        throw Error(Failure::config, str("train.resume: ", folder, " holds ", piece.key,
                                         ", and a member is a model by itself, the same on all ranks"));
      piece.member = static_cast<int>(member);
      piece.key += str("@member", member);
      piece.file = folder + "/" + piece.file;
      all.pieces.push_back(std::move(piece));
    }
  }
  if (all.trainer.contains("rows"))
    all.trainer["rows"] = all.trainer["rows"].get<int64_t>() * static_cast<int64_t>(step_folders.size());
  all.trainer["metrics"] = Json::object();
  all.trainer["evaluation_owed"] = true;
  return all;
}

}  // namespace convoy
