// sgd, described.
#include "core/describe.h"
#include "core/optim/entries.h"

namespace convoy {

Entry sgd_entry() {
  auto options = common_optimizer_options(0.1, 0);
  options.push_back(describe::real("momentum", "decay rate of the running sum of gradients", 0).at_least(0).at_most(1));
  options.push_back(describe::boolean("nesterov", "look ahead by one step of momentum", false));
  return {"sgd", "stochastic gradient descent, with momentum or without; weight decay is added to the gradient",
          options, [](const Options& chosen) {
            check_groups(chosen);
            if (chosen.boolean("nesterov") && chosen.real("momentum") == 0)
              chosen.fail("nesterov", "needs momentum above 0");
          }};
}

}  // namespace convoy
