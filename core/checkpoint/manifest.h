// manifest.json of one checkpoint: which piece of which tensor lies in which file, and what the trainer wants back.
//
// Its first line holds the hash of all that follows, so that a changed byte anywhere is found, in the trainer's figures
// as well as in the list. Files are named without folders; a name that would leave the checkpoint is refused.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/options.h"
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
  std::string dtype;   // "float32", for readers of the manifest; the file's own counts
  std::string file;    // "rank-0.safetensors"
  std::string tensor;  // its name there
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
  Json data = nullptr;  // of core/checkpoint/stored_contents.h; null: made without
};

Json to_json(const StoredPiece& piece);
StoredPiece stored_piece_from_json(const Json& json);  // Error(corrupt_data) with the reason
std::string to_text(const Manifest& manifest);
// What a model by itself would have written that is this member of an ensemble. Error(config) naming the members that there are;
// `path` only for messages.
Manifest of_member(Manifest manifest, int member, const std::string& path);
// `path` only for messages. Error(corrupt_data) naming it.
Manifest manifest_from_text(const std::string& text, const std::string& path);
Manifest read_manifest_file(const std::string& step_folder);

}  // namespace convoy
