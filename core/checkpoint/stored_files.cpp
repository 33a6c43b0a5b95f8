#include "core/checkpoint/stored_files.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <memory>

#include "core/checkpoint/pieces.h"
#include "core/error.h"

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
    const std::vector<const StoredPiece*>& held = pieces.at(key);
    const Piece all = Piece::whole(held.front()->piece.global_shape);
    if (held.size() == 1 && held.front()->piece.is_whole())
      return files.tensor(*held.front()).reshape(all.global_shape);
    at::Tensor tensor;
    int64_t copied = 0;
    for (const StoredPiece* piece : held) {
      const at::Tensor part = files.tensor(*piece).contiguous();
      if (!tensor.defined()) tensor = at::empty(all.global_shape, part.options());
      if (piece->piece.global_shape != all.global_shape || part.scalar_type() != tensor.scalar_type())
        throw Error(Failure::corrupt_data,
                    convoy::str(path, "/manifest.json: the pieces of ", key, " are not of one shape and dtype"));
      copied += copy_overlap(all, tensor, piece->piece, part);
    }
    if (copied != all.elements())
      throw Error(Failure::corrupt_data, convoy::str(path, "/manifest.json: the pieces of ", key, " give ", copied,
                                                     " of ", all.elements(), " elements"));
    return tensor;
  }

  std::string path;
  Manifest manifest;
  StoredFiles files;
  std::map<std::string, std::vector<const StoredPiece*>> pieces;
};

}  // namespace

at::Tensor StoredFiles::tensor(const StoredPiece& stored) {
  const SafetensorsFile& file = open(stored.file);
  const auto corrupt = [&](const char* reason) {
    return Error(Failure::corrupt_data, convoy::str(folder_, "/", stored.file, ": ", stored.tensor, " ", reason));
  };
  if (!file.has(stored.tensor)) throw corrupt("is not there, though the manifest lists it");
  if (file.shape(stored.tensor) != tensor_shape(stored.piece))
    throw corrupt("has another shape than the manifest says");
  return file.tensor(stored.tensor);
}

const SafetensorsFile& StoredFiles::open(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  // Pieces of several checkpoints say where each is (joined.h); a manifest's names have no folder.
  const std::string path = name.find('/') != std::string::npos ? name : folder_ + "/" + name;
  SafetensorsFile file(path);
  const StoredFile& expected = manifest_.files.at(name);
  if (file.bytes() != expected.bytes || file.hash() != expected.hash) {
    throw Error(Failure::corrupt_data,
                convoy::str(path, " is not as it was saved: its hash differs from the manifest's"));
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

}  // namespace convoy
