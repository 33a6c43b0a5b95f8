// Checkpoints that the user names, in a command or as train.resume, as far as `convoy` itself can read them. Ranks read
// the tensors and check their hashes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace convoy {

struct UsedRun {
  std::string name;                // as typed: RUN, RUN@best, RUN@step-40, RUN@member3
  std::string checkpoint;          // its step-N folder
  int member = -1;                 // number of the ensemble's member; -1: none was named
  int64_t step = 0;                // steps done
  Json config;                     // resolved configuration at the save
  int64_t world_size = 1;          // ranks of the run that saved
  bool has_schema = true;          // false: of an earlier version, whose fields only the training data shows
  std::vector<std::string> notes;  // for the user: the run is unfinished, another version wrote it

  // Path for ranks: the checkpoint with its member.
  std::string path() const;
};

// Finds the checkpoint. `command` begins the messages: "convoy evaluate".
// Error(command_line) if there is no such run, and for the folder of a farm; then the message names the farm's runs.
// Error(corrupt_data) for an unreadable manifest. Error(config) for a run without a checkpoint, for an unknown @best or
// @step-N, and for a run of a program of the user unless `of_programs`: only that program can make its model.
UsedRun used_run(const std::string& name, const std::string& command, bool of_programs = false);

// Checks the checkpoint that train.resume names as a path, before any rank starts. Throws ConfigError at train.resume
// if the path has no checkpoint or no such member. Also throws it at keys of the model that must be
// equal and differ. Other differences are allowed: ranks report them, and refuse wrong shapes. Returns lines for the
// user: settings of ensemble members that this run changes; none if `resume` is auto or never. `resolved` is this run's
// configuration with source locations.
std::vector<std::string> check_resume_path(const std::string& resume, const Json& resolved);

struct StoredConfig {
  std::string manifest;  // its path; "": no manifest can be read
  Json config;
  int64_t world_size = 0;  // ranks of the run that wrote the checkpoint; 0: unknown
  int64_t step = 0;
  bool has_schema = false;
};
// Configuration of the newest checkpoint with a readable manifest in a run folder.
StoredConfig newest_config(const std::string& folder);
// Configuration of the checkpoint from which a run in `folder` resumes: its newest, else that of the path `resume`.
StoredConfig resumed_config(const std::string& folder, const std::string& resume);

}  // namespace convoy
