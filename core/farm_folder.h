// What a farm (`strategy: independent`) leaves in its folder. Without LibTorch.
#pragma once
#include <string>
#include <vector>

namespace convoy {

// The run folders of its pipelines, in its order; none where `folder` is no farm's.
std::vector<std::string> pipeline_folders(const std::string& folder);

}  // namespace convoy
