// adagrad, described.
#include "core/describe.h"
#include "core/optim/entries.h"

namespace convoy {

Entry adagrad_entry() {
  auto options = common_optimizer_options(1e-2, 0);
  options.push_back(describe::real("eps", "added to the root of the summed squares", 1e-10).above(0));
  return {"adagrad", "Adagrad: gradients are divided by the root of the sum of their squares so far", options,
          [](const Options& chosen) { check_groups(chosen); }};
}

}  // namespace convoy
