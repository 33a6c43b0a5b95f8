// Learning rate schedules, described.
#include "core/describe.h"
#include "core/optim/entries.h"

namespace convoy {
namespace {

Option warmup() {
  return describe::option(OptionType::interval, "warmup",
                          "rises linearly from zero over so many updates (10 steps) or epochs", "never");
}
Option final_factor() {
  return describe::real("final", "share of the learning rate that is left at the end", 0).at_least(0).at_most(1);
}

}  // namespace

Entry constant_entry() { return {"constant", "the learning rate itself", {warmup()}}; }

Entry linear_entry() {
  return {"linear", "falls in a straight line until the end of the training", {warmup(), final_factor()}};
}

Entry cosine_entry() {
  return {"cosine", "falls along half a cosine until the end of the training", {warmup(), final_factor()}};
}

Entry step_entry() {
  return {"step",
          "multiplied by `factor` at every interval",
          {warmup(), describe::option(OptionType::interval, "every", "interval, after the warm-up", "1 epoch"),
           describe::real("factor", "of the learning rate, each time", 0.1).above(0).at_most(1)}};
}

}  // namespace convoy
