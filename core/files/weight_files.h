// Paths of weights: finds the safetensors files of a Python folder, and recognises checkpoints of convoy. Without
// LibTorch, so that a wrong path is found before ranks start.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace convoy {

struct WeightFiles {
  std::string folder;                         // folder with the files
  std::vector<std::string> files;             // names in the folder, sorted
  std::string index;                          // path of the index; "": none
  std::map<std::string, std::string> listed;  // file of each tensor, by the index
};

// Name that transformers uses too.
inline constexpr char weights_file[] = "model.safetensors";
inline constexpr char weights_index[] = "model.safetensors.index.json";

// True for a run folder, its checkpoints folder, a step-N folder, and the folder of a farm.
bool is_checkpoint_path(const std::string& path);

// Returns the files at `path`, which is a file, an index or a folder. In a folder they are model.safetensors, else the
// files of the index, else the only safetensors file. Error(config) if there is none, with what to do about pickled
// files, which convoy never reads.
// Error(corrupt_data) for a damaged index, and for one that names a missing file or a file outside of the folder.
WeightFiles weight_files(const std::string& path);

// Throws the errors of weight_files, unless `path` (also "PATH@memberN") is a checkpoint.
void check_weight_path(const std::string& path);

}  // namespace convoy
