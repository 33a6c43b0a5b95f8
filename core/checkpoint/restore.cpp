#include "core/checkpoint/restore.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "core/checkpoint/stored_files.h"
#include "core/error.h"

namespace convoy {
namespace {

std::string first_of(const std::vector<std::string>& names) {
  constexpr size_t most = 5;
  std::vector<std::string> shown(names.begin(), names.begin() + std::min(names.size(), most));
  std::string text = join(shown, ", ");
  if (names.size() > most) text += convoy::str(" and ", names.size() - most, " more");
  return text;
}

void fill(const StateEntry& entry, const std::vector<const StoredPiece*>& stored, StoredFiles& files,
          const std::string& path) {
  CONVOY_CHECK(entry.tensor.sizes() == tensor_shape(entry.piece), "state entry ", entry.key(),
               " shows a tensor of another shape than its piece");
  // A contiguous CPU tensor is written to directly, any other by one copy.
  const bool direct = entry.tensor.is_cpu() && entry.tensor.is_contiguous();
  at::Tensor target =
      direct ? entry.tensor.detach()
             : at::empty(entry.tensor.sizes(), entry.tensor.options().device(at::kCPU).requires_grad(false));
  int64_t copied = 0;
  for (const StoredPiece* piece : stored) {
    if (piece->piece.global_shape != entry.piece.global_shape) {
      throw Error(Failure::config, convoy::str("checkpoint ", path, ": ", entry.key(), " has shape [",
                                               at::IntArrayRef(piece->piece.global_shape), "] there and [",
                                               at::IntArrayRef(entry.piece.global_shape),
                                               "] in this run; resume with the same "
                                               "model and data, or start afresh with --set train.resume=never"));
    }
    copied += copy_overlap(entry.piece, target, piece->piece, files.tensor(*piece).to(target.scalar_type()));
  }
  if (copied != entry.piece.elements()) {
    throw Error(Failure::corrupt_data, convoy::str(path, "/manifest.json: the pieces of ", entry.key(), " give ",
                                                   copied, " of ", entry.piece.elements(), " elements"));
  }
  if (!direct) entry.tensor.detach().copy_(target);
}

}  // namespace

const char* dtype_text(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return c10::toString(dtype);
  }
}

void check_names(const Manifest& manifest, const std::set<std::string>& wanted, const std::string& path) {
  std::set<std::string> there;
  for (const StoredPiece& piece : manifest.pieces) there.insert(piece.key);
  std::vector<std::string> missing, extra;
  for (const std::string& key : wanted) {
    if (there.count(key) == 0) missing.push_back(key);
  }
  for (const std::string& key : there) {
    if (wanted.count(key) == 0) extra.push_back(key);
  }
  if (missing.empty() && extra.empty()) return;
  std::string message = convoy::str("checkpoint ", path, " does not fit this model and optimizer");
  if (!missing.empty()) message += convoy::str("; it lacks ", first_of(missing));
  if (!extra.empty()) message += convoy::str("; it has besides ", first_of(extra));
  throw Error(Failure::config,
              message + "; resume with the same model and optimizer, or start afresh with --set train.resume=never");
}

void restore(const std::vector<StateEntry>& entries, const Manifest& manifest, const std::string& path) {
  std::map<std::string, std::vector<const StoredPiece*>> stored;
  for (const StoredPiece& piece : manifest.pieces) stored[piece.key].push_back(&piece);
  StoredFiles files(manifest, path);
  for (const StateEntry& entry : entries) fill(entry, stored[entry.key()], files, path);
}

}  // namespace convoy
