#include "backends/one_gpu_each.h"

#include <map>

#include "core/error.h"

namespace convoy {

void check_one_gpu_each(const std::vector<std::string>& gpus) {
  std::map<std::string, std::vector<std::string>> ranks;
  for (size_t rank = 0; rank < gpus.size(); ++rank) ranks[gpus[rank]].push_back(std::to_string(rank));
  for (const auto& [gpu, sharing] : ranks) {
    if (sharing.size() == 1) continue;
    throw Error(Failure::config,
                str("backend nccl takes one rank per GPU, and ranks ", join(sharing, ", "), " all have ", gpu,
                    "; start a rank for each GPU, or use --set backend=gloo, which stages through the host"));
  }
}

}  // namespace convoy
