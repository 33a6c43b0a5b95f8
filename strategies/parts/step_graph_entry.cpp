#include "strategies/parts/step_graph_entry.h"

#include "core/describe.h"
#include "core/error.h"
#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/replicas/sync_entry.h"

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
  if (!options.has("graph") || options.text("graph") != "always") return;
  const SyncPolicy sync = sync_policy(options.json());
  if (sync.every > 1)
    options.fail("graph", str("is always, and with sync.every: ", sync.every,
                              " not every step makes an update; take auto, or sync.every: 1"));
  if (sync.ever_apart())
    options.fail(
        "graph",
        "is always, and replicas that train apart (sync.what) agree at updates that the host counts; take auto, "
        "or sync.what: gradients");
  if (!on_gpus(config, topology)) options.fail("graph", "is always, and graphs are recorded on GPUs only; take auto");
}

}  // namespace convoy
