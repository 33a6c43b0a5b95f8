// NCCL takes one rank per GPU, and says otherwise only that something is invalid.
#pragma once
#include <string>
#include <vector>

namespace convoy {

// gpus: by rank, what tells a GPU from all others of the job ("node1 GPU-5f2a91c4-…"). Throws Error(config) that names the
// ranks which share one, and what to do.
void check_one_gpu_each(const std::vector<std::string>& gpus);

}  // namespace convoy
