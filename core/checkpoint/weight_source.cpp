#include "core/checkpoint/weight_source.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/restore.h"
#include "core/checkpoint/stored_files.h"
#include "core/files/files.h"
#include "core/files/run_files.h"
#include "core/files/weight_files.h"
#include "core/tensors/safetensors.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// Copies elements [begin, end) of a tensor, row-major, into a flat one.
void copy_range(const at::Tensor& from, int64_t begin, int64_t end, const at::Tensor& out) {
  if (begin >= end) return;
  if (begin == 0 && end == from.numel()) {
    out.view(from.sizes()).copy_(from);
    return;
  }
  if (from.dim() == 1) {
    out.copy_(from.narrow(0, begin, end - begin));
    return;
  }
  const int64_t row = from.numel() / from.size(0);
  int64_t next = begin;
  const auto part_of_row = [&](int64_t stop) {
    const int64_t index = next / row;
    copy_range(from.select(0, index), next - index * row, stop - index * row, out.narrow(0, next - begin, stop - next));
    next = stop;
  };
  if (next % row != 0) part_of_row(std::min(end, (next / row + 1) * row));
  if (const int64_t rows = (end - next) / row; rows > 0) {
    copy_range(from.narrow(0, next / row, rows), 0, rows * row, out.narrow(0, next - begin, rows * row));
    next += rows * row;
  }
  if (next < end) part_of_row(end);
}

// --- Files of Python ---

class FileWeights : public WeightSource {
 public:
  explicit FileWeights(std::string path) : path_(std::move(path)) {
    const WeightFiles found = weight_files(path_);
    folder_ = found.folder;
    for (const std::string& name : found.files) {
      const std::string whole = (fs::path(folder_) / name).string();
      const SafetensorsFile& file = *files_.emplace_back(std::make_unique<SafetensorsFile>(whole));
      for (const std::string& tensor : file.names()) {
        if (!where_.emplace(tensor, &file).second)
          throw Error(Failure::corrupt_data, whole, ": ", tensor, " is also in another file of ", path_);
        tensors_.push_back({tensor, file.shape(tensor), whole, file.dtype(tensor)});
      }
    }
    for (const auto& [tensor, file] : found.listed)
      if (where_.count(tensor) == 0)
        throw Error(Failure::corrupt_data, found.index, ": ", tensor, " is not in ", file, ", which the index names");
  }

  const std::string& path() const override { return path_; }
  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  bool canonical() const override { return false; }
  Json config() const override {
    const std::string text = read_file_if_any((fs::path(folder_) / "config.json").string());
    const Json json = parsed_json(text);
    return json.is_object() ? json : Json();
  }
  void read(const WeightName& name, const std::vector<std::string>& stored, const Piece& piece,
            const at::Tensor& out) override {
    std::vector<at::Tensor> views;
    for (const std::string& part : stored) {
      at::Tensor view = where_.at(part)->tensor(part);
      if (name.transposed && view.dim() == 2) view = view.t();
      views.push_back(view.dim() == 0 ? view.reshape({1}) : view);
    }
    int64_t copied = 0;
    for (const WeightRange& range : ranges_of(name, piece.global_shape.empty() ? 1 : piece.global_shape[0]))
      copied += copy_rows(piece, out, views[range.part].narrow(0, range.first, range.end - range.begin), range.begin);
    for (const std::string& part : stored) where_.at(part)->release();
    CONVOY_CHECK(copied == piece.elements(), join(stored, ", "), " gave ", copied, " of ", piece.elements(),
                 " elements");
  }

 private:
  std::string path_, folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> where_;
  std::vector<SourceTensor> tensors_;
};

// --- Checkpoints ---

class CheckpointWeights : public WeightSource {
 public:
  CheckpointWeights(std::string path, std::string folder, int member, bool verify)
      : path_(std::move(path)),
        folder_(std::move(folder)),
        manifest_(read_manifest_file(folder_)),
        files_(manifest_, folder_, /*verify=*/false) {
    if (member >= 0) manifest_ = of_member(std::move(manifest_), member, folder_);
    if (verify) check_files(folder_, manifest_);
    for (const StoredPiece& piece : manifest_.pieces) {
      const bool weight = piece.kind == name_of(StateKind::parameter) || piece.kind == name_of(StateKind::buffer);
      if (!weight || piece.replica >= 0) continue;
      if (piece.member >= 0)
        throw Error(Failure::config, path_, " is of an ensemble; name one of its members, as in ", path_, "@member0");
      std::vector<const StoredPiece*>& pieces = pieces_[piece.name];
      if (pieces.empty())
        tensors_.push_back(
            {piece.name, piece.piece.global_shape, folder_, files_.open(piece.file).dtype(piece.tensor)});
      pieces.push_back(&piece);
    }
    if (tensors_.empty())
      throw Error(Failure::config, folder_, " has no parameter that all of its ranks have in common");
  }

  const std::string& path() const override { return path_; }
  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  bool canonical() const override { return true; }
  void read(const WeightName&, const std::vector<std::string>& stored, const Piece& piece,
            const at::Tensor& out) override {
    CONVOY_CHECK(stored.size() == 1, "a checkpoint has convoy's own layouts");
    StateEntry entry;
    entry.name = stored.front();
    entry.piece = piece;
    entry.tensor = out;
    fill_entry(entry, pieces_.at(entry.name), files_, folder_);
  }

 private:
  std::string path_, folder_;
  Manifest manifest_;
  StoredFiles files_;
  std::map<std::string, std::vector<const StoredPiece*>> pieces_;  // by canonical name
  std::vector<SourceTensor> tensors_;
};

}  // namespace

int64_t copy_rows(const Piece& piece, const at::Tensor& out, const at::Tensor& view, int64_t first) {
  const bool scalar = piece.global_shape.empty();
  const int64_t offset = scalar ? 0 : piece.offset[0], length = scalar ? 1 : piece.length[0];
  const int64_t low = std::max(offset, first), high = std::min(offset + length, first + view.size(0));
  if (low >= high) return 0;
  at::Tensor part = view.narrow(0, low - first, high - low);
  int64_t row = 1;  // elements of a row of the box
  for (int64_t d = 1; d < part.dim(); ++d) {
    part = part.narrow(d, piece.offset[size_t(d)], piece.length[size_t(d)]);
    row *= part.size(d);
  }
  // Elements of the box that are in these rows, and those of them that the piece has.
  const int64_t begin = (low - offset) * row, end = (high - offset) * row;
  const int64_t base = piece.flat ? piece.flat->first : 0;
  const int64_t from = std::max(begin, base), to = piece.flat ? std::min(end, piece.flat->second) : end;
  if (from >= to) return 0;
  copy_range(part, from - begin, to - begin, out.view({-1}).narrow(0, from - base, to - from));
  return to - from;
}

std::unique_ptr<WeightSource> open_weights(const std::string& path, bool verify) {
  const MemberPath named = checkpoint_path(path, "model.init_from");
  if (is_checkpoint_path(named.path))
    return std::make_unique<CheckpointWeights>(path, intact_checkpoint(named.path, "model.init_from"), named.member,
                                               verify);
  if (named.member >= 0)
    throw Error(Failure::config, path, " names a member of an ensemble, but ", named.path,
                " is neither a run nor a checkpoint");
  return std::make_unique<FileWeights>(path);
}

}  // namespace convoy
