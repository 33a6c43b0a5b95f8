// manifest.json of one checkpoint: the file of each piece of each tensor, and the trainer's state.
//
// The first line has the hash of all later lines, so a changed byte anywhere is found, also in the trainer's metrics.
// File names have no folders; a name with a folder is refused.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/state.h"

namespace convoy {

constexpr int64_t checkpoint_format = 1;

struct StoredPiece {
  std::string key;  // StateEntry::key
  std::string name;
  std::string kind;
  std::string moment;
  int member = -1;
  int replica = -1;
  Piece piece;
  std::string dtype;   // "float32", for readers of the manifest; the dtype in the file decides
  std::string file;    // "rank-0.safetensors"
  std::string tensor;  // name of the tensor in the file
};

struct StoredFile {
  int64_t bytes = 0;
  std::string hash;  // XXH3-128
};

struct Manifest {
  int64_t step = 0;
  Json trainer;
  Json config;
  std::map<std::string, StoredFile> files;
  std::vector<StoredPiece> pieces;
  Json data = nullptr;    // written by core/checkpoint/stored_files.h; null: no data contents recorded
  Json schema = nullptr;  // fields of the rows (core/checkpoint/stored_files.h); null: an earlier version
};

Json to_json(const StoredPiece& piece);
StoredPiece stored_piece_from_json(const Json& json);  // Error(corrupt_data) with the reason
std::string to_text(const Manifest& manifest);
// Returns the manifest that member `member` of an ensemble would have as a single model. Error(config) names the
// existing members. `path` is for messages only.
Manifest of_member(Manifest manifest, int member, const std::string& path);
// `path` is for messages only. Throws Error(corrupt_data) naming it.
Manifest manifest_from_text(const std::string& text, const std::string& path);
// Reads manifest.json of `step_folder`. Throws Error(corrupt_data) with the path if the file is missing, unreadable or
// malformed, or if its step differs from the number in the folder's name.
Manifest read_manifest_file(const std::string& step_folder);

}  // namespace convoy
