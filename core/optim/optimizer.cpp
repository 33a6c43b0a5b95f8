#include "core/optim/optimizer.h"

#include <cmath>

#include "core/base/error.h"
#include "core/optim/catalogue/catalogue.h"

namespace convoy {

GroupSettings group_settings(const OptimizerOptions& options, const std::string& parameter_name) {
  GroupSettings settings{1, options.weight_decay};
  const std::optional<size_t> index = options.group_of(parameter_name);
  if (!index) return settings;
  const OptimizerGroup& group = options.groups[*index];
  if (group.learning_rate) settings.learning_rate_factor = *group.learning_rate / options.learning_rate;
  settings.weight_decay = group.weight_decay.value_or(settings.weight_decay);
  return settings;
}

namespace {

constexpr double pi = 3.14159265358979323846;

// An interval option as a number of updates; 0 for never.
int64_t updates_of(const Options& options, const std::string& name, int64_t updates_per_epoch) {
  const Json& interval = options.at(name);
  const int64_t every = interval.at("every");
  const std::string unit = interval.at("unit");
  if (unit == "never") return 0;
  return unit == "epochs" ? every * updates_per_epoch : every;
}

}  // namespace

Schedule::Schedule(const Component& optimizer, int64_t total_updates, int64_t updates_per_epoch)
    : base_(optimizer_options(optimizer).learning_rate) {
  const Options options = optimizer.options.section("schedule");
  const std::string name = options.text("name");
  const int64_t warmup = updates_of(options, "warmup", updates_per_epoch);
  const double span = double(std::max<int64_t>(total_updates - warmup, 1));

  // Factor as a function of the number of updates after the warm-up.
  std::function<double(int64_t)> after;
  if (name == "constant") {
    after = [](int64_t) { return 1.0; };
  } else if (name == "linear" || name == "cosine") {
    const double final = options.real("final");
    const bool cosine = name == "cosine";
    after = [=](int64_t update) {
      const double done = std::min(double(update) / span, 1.0);
      const double left = cosine ? (1 + std::cos(pi * done)) / 2 : 1 - done;
      return final + (1 - final) * left;
    };
  } else {
    CONVOY_CHECK(name == "step", "schedule '", name, "' is in the catalogue and has no implementation");
    const int64_t every = updates_of(options, "every", updates_per_epoch);
    const double factor = options.real("factor");
    after = [=](int64_t update) { return every == 0 ? 1.0 : std::pow(factor, double(update / every)); };
  }
  factor_ = [=](int64_t update) {
    return update < warmup ? double(update + 1) / double(warmup) : after(update - warmup);
  };
}

double Schedule::learning_rate(int64_t update) const { return base_ * factor_(update); }

}  // namespace convoy
