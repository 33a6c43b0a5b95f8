#include "core/checkpoint/joined.h"

#include "core/error.h"

namespace convoy {
Manifest joined(const std::vector<std::string>& step_folders) {
  Manifest all;
  for (size_t member = 0; member < step_folders.size(); ++member) {
    const std::string& folder = step_folders[member];
    Manifest own = read_manifest_file(folder);
    if (member == 0) {
      all.step = own.step;
      all.trainer = own.trainer;
      all.config = own.config;
    }
    if (own.step != all.step)
      throw Error(Failure::config,
                  str("train.resume: ", folder, " is of step ", own.step, " and ", step_folders.front(), " of step ",
                      all.step, "; members of one ensemble have made as many steps"));
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
