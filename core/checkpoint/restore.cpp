#include "core/checkpoint/restore.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <iterator>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/stored_files.h"

namespace convoy {
namespace {

std::string hash_of_lists(const Manifest& manifest) {
  const auto file = manifest.files.find(manifest.data.value("file", std::string()));
  return file == manifest.files.end() ? "" : file->second.hash;
}

// Joins the data of the members; their numbering must be equal.
void join_data(Manifest& all, const Manifest& single, const std::string& folder, const std::string& first) {
  if (all.data.is_null() || single.data.is_null()) {
    all.data = nullptr;
    return;
  }
  if (hash_of_lists(all) != hash_of_lists(single))
    throw Error(Failure::config, "train.resume: ", folder, " and ", first,
                " were trained on data with other ids, classes or columns, or with other "
                "numbers for them; members of one ensemble share them");
  if (all.data["fingerprint"] != single.data["fingerprint"]) all.data["fingerprint"] = "several";
}

}  // namespace

Manifest joined(const std::vector<std::string>& step_folders) {
  Manifest all;
  for (size_t member = 0; member < step_folders.size(); ++member) {
    const std::string& folder = step_folders[member];
    Manifest single = read_manifest_file(folder);
    if (member == 0) {
      all.step = single.step;
      all.trainer = single.trainer;
      all.config = single.config;
      all.data = single.data;
      if (single.data.contains("file")) all.data["file"] = folder + "/" + single.data["file"].get<std::string>();
    }
    if (single.step != all.step)
      throw Error(Failure::config, "train.resume: ", folder, " has step ", single.step, ", and ", step_folders.front(),
                  " has step ", all.step, "; members of one ensemble must have the same step");
    if (member > 0) join_data(all, single, folder, step_folders.front());
    for (const auto& [file, stored] : single.files) all.files[folder + "/" + file] = stored;
    for (StoredPiece& piece : single.pieces) {
      if (piece.member >= 0 || piece.replica >= 0)
        throw Error(Failure::config, "train.resume: ", folder, " holds ", piece.key,
                    ", but a member is a single model, the same on all ranks");
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

namespace {

// Returns the name of an optimizer's moment: "exp_avg" for "moment/exp_avg/NAME". Returns "" for other keys, also for
// moments of the outer optimizer and of gradient compression.
std::string moment_in(const std::string& key) {
  const std::string kind = "moment/";
  if (key.rfind(kind, 0) != 0) return "";
  const std::string name = key.substr(kind.size(), key.find('/', kind.size()) - kind.size());
  return name == "left_over" || name.rfind("outer_", 0) == 0 ? "" : name;
}

void add_moments(const std::set<std::string>& keys, std::set<std::string>& names) {
  for (const std::string& key : keys)
    if (const std::string name = moment_in(key); !name.empty()) names.insert(name);
}

std::set<std::string> difference(const std::set<std::string>& all, const std::set<std::string>& others) {
  std::set<std::string> rest;
  std::set_difference(all.begin(), all.end(), others.begin(), others.end(), std::inserter(rest, rest.end()));
  return rest;
}

std::string listed(const std::set<std::string>& names) {
  return join(std::vector<std::string>(names.begin(), names.end()), ", ");
}

}  // namespace

bool MomentChange::resets(const std::string& key) const {
  return missing.count(moment_in(key)) != 0 || (!missing.empty() && key.rfind("counter/updates", 0) == 0);
}

bool MomentChange::ignores(const std::string& key) const { return resets(key) || unused.count(moment_in(key)) != 0; }

void MomentChange::erase_from(std::set<std::string>& wanted) const {
  for (auto key = wanted.begin(); key != wanted.end();) key = resets(*key) ? wanted.erase(key) : std::next(key);
}

std::vector<std::string> MomentChange::notes(const std::string& checkpoint) const {
  std::vector<std::string> notes;
  if (!missing.empty())
    notes.push_back(str("optimizer: ", checkpoint, " has no ", listed(missing),
                        ", which start at zero; updates are counted from zero for the correction of their bias"));
  if (!unused.empty())
    notes.push_back(str("optimizer: ", listed(unused), " of ", checkpoint, " are of another optimizer and not used"));
  return notes;
}

MomentChange moment_change(const std::set<std::string>& stored,
                           const std::vector<const std::set<std::string>*>& wanted) {
  std::set<std::string> there, here;
  add_moments(stored, there);
  for (const std::set<std::string>* keys : wanted) add_moments(*keys, here);
  return {difference(here, there), difference(there, here)};
}

namespace {

std::string first_of(const std::set<std::string>& names) {
  constexpr size_t most = 5;
  const std::vector<std::string> shown(names.begin(), std::next(names.begin(), std::min(names.size(), most)));
  std::string text = join(shown, ", ");
  if (names.size() > most) text += convoy::str(" and ", names.size() - most, " more");
  return text;
}

}  // namespace

void fill_entry(const StateEntry& entry, const std::vector<const StoredPiece*>& stored, StoredFiles& files,
                const std::string& path) {
  CONVOY_CHECK(entry.tensor.sizes() == tensor_shape(entry.piece), "state entry ", entry.key(),
               " shows a tensor of another shape than its piece");
  // Writes to a contiguous CPU tensor directly, and to any other by one copy.
  const bool direct = entry.tensor.is_cpu() && entry.tensor.is_contiguous();
  at::Tensor target =
      direct ? entry.tensor.detach()
             : at::empty(entry.tensor.sizes(), entry.tensor.options().device(at::kCPU).requires_grad(false));
  int64_t copied = 0;
  for (const StoredPiece* piece : stored) {
    if (piece->piece.global_shape != entry.piece.global_shape) {
      throw Error(Failure::config, "checkpoint ", path, ": ", entry.key(), " has shape [",
                  at::IntArrayRef(piece->piece.global_shape), "] there and [",
                  at::IntArrayRef(entry.piece.global_shape),
                  "] in this run; resume with the same "
                  "model and data, or start afresh with --set train.resume=never");
    }
    const at::Tensor values = files.tensor(*piece);
    copied += copy_overlap(entry.piece, target, piece->piece, values.to(target.scalar_type()));
    files.release(values.nbytes());
  }
  if (copied != entry.piece.elements()) {
    throw Error(Failure::corrupt_data, path, "/manifest.json: the pieces of ", entry.key(), " give ", copied, " of ",
                entry.piece.elements(), " elements");
  }
  if (!direct) entry.tensor.detach().copy_(target);
}

const char* dtype_text(at::ScalarType dtype) {
  static const std::map<at::ScalarType, const char*> floats{
      {at::kDouble, "float64"}, {at::kFloat, "float32"}, {at::kHalf, "float16"}, {at::kBFloat16, "bfloat16"}};
  const auto found = floats.find(dtype);
  return found != floats.end() ? found->second : c10::toString(dtype);
}

std::set<std::string> keys_of(const Manifest& manifest) {
  std::set<std::string> keys;
  for (const StoredPiece& piece : manifest.pieces) keys.insert(piece.key);
  return keys;
}

void check_names(const Manifest& manifest, const std::set<std::string>& wanted, const std::string& path) {
  const std::set<std::string> there = keys_of(manifest);
  const std::set<std::string> missing = difference(wanted, there), extra = difference(there, wanted);
  if (missing.empty() && extra.empty()) return;
  std::string message = convoy::str("checkpoint ", path, " does not fit this model and optimizer");
  if (!missing.empty()) message += convoy::str("; it lacks ", first_of(missing));
  if (!extra.empty()) message += convoy::str("; it also has ", first_of(extra));
  throw Error(Failure::config,
              message + "; resume with the same model and optimizer, or start afresh with --set train.resume=never");
}

void restore(const std::vector<StateEntry>& entries, const Manifest& manifest, const std::string& path) {
  std::map<std::string, std::vector<const StoredPiece*>> stored;
  for (const StoredPiece& piece : manifest.pieces) stored[piece.key].push_back(&piece);
  StoredFiles files(manifest, path);
  for (const StateEntry& entry : entries) fill_entry(entry, stored[entry.key()], files, path);
}

}  // namespace convoy
