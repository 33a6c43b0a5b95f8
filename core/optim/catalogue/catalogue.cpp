// Catalogue of optimizers and learning-rate schedules, one line each.

#include "core/optim/catalogue/catalogue.h"

#include "core/base/describe.h"
#include "core/base/json.h"

#include <cmath>

namespace convoy {
namespace {

// lr, weight_decay, clip_norm, groups, schedule, with these defaults.
std::vector<Option> common_optimizer_options(double learning_rate, double weight_decay) {
  Option group;
  group.type = OptionType::section;
  group.help = "parameters whose name matches";
  group.options = {
      describe::text("match", NamePattern::help).must(),
      describe::real("lr", "learning rate of these parameters; also follows the schedule").at_least(0).may_be_null(),
      describe::real("weight_decay", "weight decay of these parameters").at_least(0).may_be_null(),
  };
  auto schedule = describe::component("schedule", "learning rate over the updates", "schedule");
  schedule.fallback = "constant";
  return {
      describe::real("lr", "learning rate", learning_rate).above(0),
      describe::real("weight_decay", "fraction of a parameter that is subtracted per unit of learning rate",
                     weight_decay)
          .at_least(0),
      describe::real("clip_norm", "gradients are scaled down to this norm over all parameters").above(0).may_be_null(),
      describe::list("groups", "parameter groups with another learning rate or weight decay", group),
      schedule,
  };
}

// Throws ConfigError at a group that changes nothing.
void check_groups(const Options& optimizer) {
  const std::vector<Options> groups = optimizer.sections("groups");
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].has("lr") && !groups[i].has("weight_decay"))
      optimizer.fail(str("groups.", i),
                     "has neither lr nor weight_decay, and so changes nothing; give one, or leave it out");
    NamePattern{groups[i]};
  }
}

// For optimizers that change rows without a gradient.
std::vector<Option> row_options() {
  return {
      describe::boolean("lazy",
                        "sparse embeddings: a row without gradient does not change, as in torch.optim.SparseAdam; "
                        "else it changes as in a dense embedding",
                        false),
      describe::choice("catch_up",
                       "sparse embeddings: how missed updates are applied to a row: one by one, or by one formula; "
                       "auto: exact in fp64 on the CPU",
                       {"auto", "exact", "closed"}, "auto"),
  };
}

// adam and adamw.
Entry entry(const char* name, const char* help, double weight_decay) {
  auto beta = describe::real("", "decay rate").between(0, 0.9999999);
  auto options = common_optimizer_options(1e-3, weight_decay);
  options.push_back(
      describe::list("betas", "decay rates of the mean and of the squared gradient", beta, Json::array({0.9, 0.999})));
  options.push_back(describe::real("eps", "added to the root of the squared gradient", 1e-8).above(0));
  for (const Option& option : row_options()) options.push_back(option);
  return {name, help, options, [](const Options& chosen) {
            check_groups(chosen);
            const size_t betas = chosen.reals("betas").size();
            if (betas != 2) chosen.fail("betas", "two numbers are needed, not ", betas);
          }};
}

Option warmup() {
  return describe::option(OptionType::interval, "warmup",
                          "linear warm-up from zero, as a number of steps (10 steps) or epochs", "never");
}
Option final_factor() {
  return describe::real("final", "final learning rate, as a fraction of the learning rate", 0).between(0, 1);
}

Entry adagrad_entry() {
  auto options = common_optimizer_options(1e-2, 0);
  options.push_back(describe::real("eps", "added to the root of the summed squares", 1e-10).above(0));
  return {"adagrad", "Adagrad: gradients are divided by the root of the sum of their squares so far", options,
          [](const Options& chosen) { check_groups(chosen); }};
}

Entry adam_entry() { return entry("adam", "Adam; weight decay is added to the gradient (L2)", 0); }

Entry sgd_entry() {
  auto options = common_optimizer_options(0.1, 0);
  options.push_back(describe::real("momentum", "decay rate of the running sum of gradients", 0).between(0, 1));
  options.push_back(describe::boolean("nesterov", "look ahead by one step of momentum", false));
  return {"sgd", "stochastic gradient descent, with momentum or without; weight decay is added to the gradient",
          options, [](const Options& chosen) {
            check_groups(chosen);
            if (chosen.boolean("nesterov") && chosen.real("momentum") == 0)
              chosen.fail("nesterov", "needs momentum above 0");
          }};
}

}  // namespace

const std::vector<Entry>& optimizer_catalogue() {
  static const std::vector<Entry> entries{
      sgd_entry(), adam_entry(), entry("adamw", "AdamW: Adam with decoupled weight decay", 0.01), adagrad_entry()};
  return entries;
}

const std::vector<Entry>& schedule_catalogue() {
  static const std::vector<Entry> entries{
      {"constant", "constant learning rate", {warmup()}},
      {"linear", "falls in a straight line until the end of the training", {warmup(), final_factor()}},
      {"cosine", "falls along half a cosine until the end of the training", {warmup(), final_factor()}},
      {"step",
       "multiplied by `factor` at every interval",
       {warmup(), describe::option(OptionType::interval, "every", "interval, after the warm-up", "1 epoch"),
        describe::real("factor", "factor on the learning rate at each interval", 0.1).above(0).at_most(1)}}};
  return entries;
}

std::optional<size_t> OptimizerOptions::group_of(const std::string& parameter) const {
  for (size_t index = 0; index < groups.size(); ++index)
    if (groups[index].match.found_in(parameter)) return index;
  return std::nullopt;
}

OptimizerOptions optimizer_options(const Component& optimizer) {
  const Options& options = optimizer.options;
  const auto number = [](const Options& section, const char* name) {
    return section.has(name) ? std::optional<double>(section.real(name)) : std::nullopt;
  };
  OptimizerOptions typed{optimizer.name};
  typed.learning_rate = number(options, "lr").value_or(0);
  typed.weight_decay = number(options, "weight_decay").value_or(0);
  typed.clip_norm = number(options, "clip_norm").value_or(0);
  if (options.has("groups"))
    for (const Options& group : options.sections("groups"))
      typed.groups.push_back({NamePattern(group), number(group, "lr"), number(group, "weight_decay")});
  typed.momentum = number(options, "momentum").value_or(0);
  typed.nesterov = options.has("nesterov") && options.boolean("nesterov");
  if (options.has("betas"))
    if (const std::vector<double> betas = options.reals("betas"); betas.size() == 2) {
      typed.beta1 = betas[0];
      typed.beta2 = betas[1];
    }
  typed.eps = number(options, "eps").value_or(0);
  typed.decoupled = optimizer.name == "adamw";
  typed.lazy = options.has("lazy") && options.boolean("lazy");
  if (options.has("catch_up") && options.text("catch_up") != "auto")
    typed.exact_catch_up = options.text("catch_up") == "exact";
  if (optimizer.name == "adagrad") typed.moments = 1;
  if (optimizer.name == "sgd") typed.moments = typed.momentum > 0 ? 1 : 0;
  return typed;
}

SparseObstacle row_obstacle(const OptimizerOptions& optimizer, double weight_decay) {
  const bool momentum = optimizer.momentum != 0;
  if (weight_decay != 0 && !optimizer.decoupled && (optimizer.name != "sgd" || momentum))
    return {"weight_decay",
            str("is ", weight_decay, " and ", optimizer.name, " adds it to the gradient",
                momentum ? ", with momentum" : "", ", so that every row of a table has a gradient; take ",
                optimizer.name == "adam" ? "adamw, which decouples the decay" : "0",
                ", or dense embeddings (model.rows: false)")};
  if (optimizer.lazy) return {};
  // As in RowHistory: terms fall below 1e-17 of the first within 4,096 updates.
  constexpr double slowest = 0.9904;
  if (optimizer.momentum > slowest)
    return {"momentum", str("is ", optimizer.momentum,
                            ", which would change a row of a table for thousands of "
                            "updates after its gradient; take at most ",
                            slowest, ", or dense embeddings (model.rows: false)")};
  if (optimizer.beta1 / std::sqrt(optimizer.beta2) > slowest)
    return {"betas", str("are ", optimizer.beta1, " and ", optimizer.beta2,
                         ", which would change a row of a table for thousands of "
                         "updates after its gradient; take a smaller first one, lazy: true, or dense embeddings "
                         "(model.rows: false)")};
  return {};
}

}  // namespace convoy
