// Paths of weights: which files in safetensors a folder of Python has, and which folders are checkpoints of convoy.
// Without LibTorch, so that a wrong path is found before ranks start.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace convoy {

struct WeightFiles {
  std::string folder;                         // that has the files
  std::vector<std::string> files;             // names in the folder, sorted
  std::string index;                          // path of the index; "": none
  std::map<std::string, std::string> listed;  // by tensor, the file that the index names
};

// Names that transformers uses too.
inline constexpr char weights_file[] = "model.safetensors";
inline constexpr char weights_index[] = "model.safetensors.index.json";

// True for a run folder, its checkpoints folder, a step-N folder, and the folder of a farm.
bool is_checkpoint_path(const std::string& path);

// The files that `path` means: one file, or those of a folder: by its index, model.safetensors, or its only file of
// that kind. Error(config) if there is none, with what to do about pickled files, which convoy never reads.
// Error(corrupt_data) for a damaged index, and for one that names a missing file or a file outside of the folder.
WeightFiles weight_files(const std::string& path);

// Throws the errors of weight_files, unless `path` (also "PATH@memberN") is a checkpoint.
void check_weight_path(const std::string& path);

}  // namespace convoy
