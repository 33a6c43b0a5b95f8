// adam and adamw, described.
#include "core/describe.h"
#include "core/error.h"
#include "core/optim/entries.h"
#include "core/optim/row_entry.h"

namespace convoy {
namespace {

Entry entry(const char* name, const char* help, double weight_decay) {
  auto beta = describe::real("", "decay rate").at_least(0).at_most(0.9999999);
  auto options = common_optimizer_options(1e-3, weight_decay);
  options.push_back(
      describe::list("betas", "decay rates of the mean and of the squared gradient", beta, Json::array({0.9, 0.999})));
  options.push_back(describe::real("eps", "added to the root of the squared gradient", 1e-8).above(0));
  for (const Option& option : row_options()) options.push_back(option);
  return {name, help, options, [](const Options& chosen) {
            check_groups(chosen);
            const size_t betas = chosen.reals("betas").size();
            if (betas != 2) chosen.fail("betas", str("two numbers are needed, not ", betas));
          }};
}

}  // namespace

Entry adam_entry() { return entry("adam", "Adam; weight decay is added to the gradient (L2)", 0); }
Entry adamw_entry() { return entry("adamw", "AdamW: Adam with decoupled weight decay", 0.01); }

}  // namespace convoy
