#include "strategies/parts/step_graph_entry.h"

#include "core/describe.h"
#include "core/error.h"
#include "strategies/parts/replicated_entry.h"

namespace convoy {

Option graph_option() {
  return describe::choice(
      "graph",
      "on a GPU, launch a step's operations as one CUDA graph: auto tries whether it gives the same "
      "and is quicker, and says so; never; always: an error where it cannot be done",
      {"auto", "always", "never"}, "auto");
}

void check_graph(const RunConfig& config, const Topology& topology) {
  const Options& options = config.strategy.options;
  if (options.has("graph") && options.text("graph") == "always" && !on_gpus(config, topology))
    options.fail("graph", "is always, and graphs are recorded on GPUs only; take auto");
}

}  // namespace convoy
