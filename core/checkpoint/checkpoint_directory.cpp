#include "core/checkpoint/checkpoint_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/checkpoint/restore.h"
#include "core/files/run_files.h"
#include "core/state.h"
#include "core/tensors/safetensors.h"

namespace convoy {
namespace {

constexpr char step_prefix[] = "step-";

}  // namespace

std::string CheckpointDirectory::step_path(int64_t step) const { return str(folder_, "/", step_prefix, step); }

std::string CheckpointDirectory::temporary_path(int64_t step, const std::string& token) const {
  return str(folder_, "/.", step_prefix, step, ".tmp-", token);
}

std::vector<int64_t> CheckpointDirectory::steps() const { return checkpoint_steps(folder_); }

void CheckpointDirectory::open_temporary(int64_t step, const std::string& token) {
  files_.make_folder(folder_);
  files_.make_folder(temporary_path(step, token));
}

void CheckpointDirectory::publish(int64_t step, const std::string& token) {
  const std::string temporary = temporary_path(step, token), final = step_path(step);
  const std::string replaced = str(folder_, "/.old-", step_prefix, step, "-", token);
  const std::string pointer = str(folder_, "/.latest-", token);
  files_.sync_folder(temporary);
  sync_parents();
  // Written before any rename, so that a full disk is noticed while everything can be undone.
  write_pointer(pointer, step);

  const std::vector<int64_t> before = steps();
  const bool replaces = std::find(before.begin(), before.end(), step) != before.end();
  if (replaces) files_.rename(final, replaced);
  try {
    files_.rename(temporary, final);
    try {
      files_.sync_folder(folder_);
      files_.rename(pointer, folder_ + "/" + latest_file);
      files_.sync_folder(folder_);
    } catch (const Error&) {
      files_.rename(final, temporary);
      throw;
    }
  } catch (const Error&) {
    if (replaces) files_.rename(replaced, final);
    throw;
  }
  if (replaces) files_.remove_all(replaced);
}

// A checkpoint is lost if the name of a folder above it is lost. The run may just have created some of these folders. A
// folder of another file system, or one that cannot be flushed, is older than the run.
void CheckpointDirectory::sync_parents() {
  if (parents_synced_) return;
  std::filesystem::path folder = absolute_path(folder_);
  const auto device_of = [](const std::filesystem::path& path) {
    struct stat status {};
    return stat(path.c_str(), &status) == 0 ? std::optional<dev_t>(status.st_dev) : std::nullopt;
  };
  const std::optional<dev_t> device = device_of(folder);
  files_.sync_folder((folder = folder.parent_path()).string());
  while (folder.has_relative_path() && device_of(folder = folder.parent_path()) == device) {
    try {
      if (access(folder.c_str(), R_OK) == 0) files_.sync_folder(folder.string());
    } catch (const Error&) {
      break;
    }
  }
  parents_synced_ = true;
}

void CheckpointDirectory::write_pointer(const std::string& temporary, int64_t step) {
  const auto file = files_.create(temporary);
  const std::string line = str(step_prefix, step, "\n");
  file->write(line.data(), line.size());
  file->close();
}

void CheckpointDirectory::mark_best(int64_t step, const std::string& token) {
  const std::string pointer = str(folder_, "/.best-", token);
  write_pointer(pointer, step);
  files_.rename(pointer, str(folder_, "/", best_file));
  files_.sync_folder(folder_);
}

void CheckpointDirectory::remove_step(int64_t step) {
  // Renames first: a partly removed checkpoint must never have a checkpoint's name.
  const std::string removed_path = str(folder_, "/.old-", step_prefix, step, "-", random_token());
  files_.rename(step_path(step), removed_path);
  files_.remove_all(removed_path);
}

void CheckpointDirectory::prune(int64_t keep_last, int64_t newest) noexcept {
  try {
    if (keep_last <= 0) return;
    // A run that resumed from an older checkpoint leaves later ones in the folder. They do not count here and stay.
    std::vector<int64_t> others;
    const std::optional<int64_t> best = best_step(folder_);
    for (int64_t step : steps()) {
      if (step < newest && step != best) others.push_back(step);
    }
    const int64_t spare = int64_t(others.size()) - (keep_last - 1);
    for (int64_t i = 0; i < spare; ++i) remove_step(others[size_t(i)]);
  } catch (const std::exception& error) {
    log::warning(str("an old checkpoint was not removed: ", error.what()));
  }
}

void CheckpointDirectory::remove_leftovers() noexcept {
  try {
    for (const std::string& name : names_in(folder_)) {
      if (is_leftover(name)) files_.remove_all(folder_ + "/" + name);
    }
  } catch (const std::exception& error) {
    log::warning(str("a leftover of an earlier save was not removed: ", error.what()));
  }
}

void check_files(const std::string& step_folder, const Manifest& manifest) {
  std::map<std::string, std::vector<const StoredPiece*>> pieces;  // by file
  for (const StoredPiece& piece : manifest.pieces) pieces[piece.file].push_back(&piece);
  for (const auto& [name, expected] : manifest.files) {
    const std::string path = step_folder + "/" + name;
    try {
      const SafetensorsFile file(path);
      if (file.bytes() != expected.bytes || file.hash() != expected.hash) {
        throw Error(Failure::corrupt_data, path, " is not as it was saved: its hash differs from the manifest's");
      }
      for (const StoredPiece* piece : pieces[name])
        if (!file.has(piece->tensor) || file.shape(piece->tensor) != tensor_shape(piece->piece))
          throw Error(Failure::corrupt_data, path, " has no tensor '", piece->tensor, "' ",
                      shape_text(tensor_shape(piece->piece)), ", which the manifest names for ", piece->name);
    } catch (const Error& error) {
      if (error.kind() == Failure::corrupt_data) throw;
      throw Error(Failure::corrupt_data, "checkpoint ", step_folder, ": ", error.what());
    }
  }
}

}  // namespace convoy
