// `convoy run` of a file that describes several runs: alone on this host, or inside one mpirun or srun; then the ranks
// are the slots.
#pragma once
#include <sys/types.h>
#include <optional>
#include <string>

#include "core/files/files.h"
#include "launch/farm/config/farm.h"

namespace convoy {

// --- Folders inside a farm's run folder ---

// Creates the folder unless it exists. Error(output) if it cannot be created or is no folder; Error(refused) for a
// link.
void make_subfolder(const std::string& path);

// Returns a mistake if the pipeline's folder contains files that convoy did not write.
std::optional<ConfigError> occupied(const Pipeline& pipeline, const std::string& folder);
// Returns a mistake if an earlier farm ran the pipeline with another configuration. `summary`: of `folder`.
std::optional<ConfigError> differs(const Pipeline& pipeline, const std::string& folder, const Json& summary);

// Removes the lock of a killed run.
void remove_stale_lock(const std::string& folder);

struct LockOwner {
  bool held = false;
  pid_t pid = -1;  // -1: on another host, or not visible from here
};
// Owner of a run folder's lock, found without taking the lock.
LockOwner lock_owner(const std::string& run_folder);

// --- The command ---

// Returns 0 if all pipelines are done, 1 if some failed, 143 after a request to stop. Throws mistakes found before the
// start.
int run_farm(FarmRun run);

}  // namespace convoy
