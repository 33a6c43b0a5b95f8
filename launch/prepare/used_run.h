// UsedRun: a trained run that a command uses, as far as `convoy` itself can read it. Ranks read its tensors and check
// their hashes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace convoy {

struct UsedRun {
  std::string name;                // as typed: RUN, RUN@best, RUN@step-40, RUN@member3
  std::string checkpoint;          // its step-N folder
  int member = -1;                 // of an ensemble; -1: none was named
  int64_t step = 0;                // steps done
  Json config;                     // resolved configuration at the save
  int64_t world_size = 1;          // ranks of the run that saved
  std::vector<std::string> notes;  // for the user: the run is unfinished, another version wrote it

  // Path for ranks: the checkpoint with its member.
  std::string path() const;
};

// Finds the checkpoint. `command` begins the messages: "convoy evaluate".
// Error(command_line) if there is no such run, and for the folder of a farm, with its runs. Error(corrupt_data) for an
// unreadable manifest. Error(config) for a run without a checkpoint, for an unknown @best or @step-N, and for a run of
// a program of the user unless `of_programs`: only that program can make its model.
UsedRun used_run(const std::string& name, const std::string& command, bool of_programs = false);

// Why `folder` is neither a run nor a checkpoint; "" if it is one.
std::string why_unusable(const std::string& folder, const std::string& command);

}  // namespace convoy
