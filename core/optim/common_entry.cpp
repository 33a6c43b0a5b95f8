// What every optimizer takes.
#include "core/describe.h"
#include "core/name_pattern.h"
#include "core/optim/entries.h"

namespace convoy {

std::vector<Option> common_optimizer_options(double learning_rate, double weight_decay) {
  Option group;
  group.type = OptionType::section;
  group.help = "parameters whose name matches";
  group.options = {
      describe::text("match", NamePattern::help).must(),
      describe::real("lr", "learning rate of these parameters; follows the schedule too").at_least(0).may_be_null(),
      describe::real("weight_decay", "weight decay of these parameters").at_least(0).may_be_null(),
  };
  auto schedule = describe::component("schedule", "learning rate over the updates", "schedule");
  schedule.fallback = "constant";
  return {
      describe::real("lr", "learning rate", learning_rate).above(0),
      describe::real("weight_decay", "share of a parameter taken off per unit of learning rate", weight_decay)
          .at_least(0),
      describe::real("clip_norm", "gradients are scaled down to this norm over all parameters").above(0).may_be_null(),
      describe::list("groups", "parameter groups with a learning rate or weight decay of their own", group),
      schedule,
  };
}

void check_groups(const Options& optimizer) {
  const std::vector<Options> groups = optimizer.sections("groups");
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].has("lr") && !groups[i].has("weight_decay"))
      optimizer.fail(str("groups.", i),
                     "has neither lr nor weight_decay, and so changes nothing; give one, or leave it out");
    NamePattern{groups[i]};
  }
}

}  // namespace convoy
