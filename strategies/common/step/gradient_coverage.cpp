#include "strategies/common/step/gradient_coverage.h"

#include <set>
#include <utility>

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/control/channel.h"

namespace convoy {

std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts) {
  std::vector<ParameterPtr> all;
  for (const ModelPart* part : parts) all.insert(all.end(), part->tables().begin(), part->tables().end());
  return all;
}

void warn_if_lazy_is_unused(const Context& context, const std::vector<ParameterPtr>& tables) {
  const Options& optimizer = context.config.optimizer.options;
  if (context.rank != 0 || !tables.empty() || !optimizer.has("lazy") || !optimizer.boolean("lazy")) return;
  log::warning(
      "optimizer.lazy: true has no effect: it applies to sparse embeddings, and this run has none; take model.rows: "
      "true, or "
      "leave it out");
}

namespace {

using Names = std::set<std::string>;

Names names_in(const std::vector<std::string>& answers) {
  Names names;
  for (const std::string& answer : answers)
    for (const Json& name : Json::parse(answer)) names.insert(name.get<std::string>());
  return names;
}

void warn(const Names& missing) {
  constexpr size_t most = 10;
  if (missing.empty()) return;
  std::vector<std::string> shown(missing.begin(), missing.end());
  if (shown.size() > most) {
    shown.resize(most);
    shown.push_back(str("and ", missing.size() - most, " more"));
  }
  log::warning(str("no gradient for ", missing.size(), missing.size() == 1 ? " parameter" : " parameters",
                   " in the first update: ", join(shown, ", "),
                   ". The loss does not depend on them: does forward use them, and is nothing detached in between? "
                   "If a model uses them only at times, ignore this warning"));
}

}  // namespace

void GradientCoverage::updated(const std::vector<ModelPart*>& parts) {
  if (std::exchange(done_, true)) return;
  Names reached, missing;
  for (const ModelPart* part : parts)
    for (const ParameterPtr& parameter : part->parameters())
      (parameter->reached ? reached : missing).insert(parameter->name);
  for (const std::string& name : reached) missing.erase(name);
  if (size_ == 1) return warn(missing);
  SupervisedChannel* const channel = channel_->supervised();
  if (channel == nullptr) return;
  // Two rounds: parameters without a gradient on some rank; then, if there are any, ranks that have one.
  const auto compare = [weak = std::weak_ptr<Channel>(channel_), rank = rank_, size = size_,
                        reached](const std::vector<std::string>& answers) {
    const Names asked = names_in(answers);
    const std::shared_ptr<Channel> alive = weak.lock();
    if (asked.empty() || !alive) return;
    Json mine = Json::array();
    for (const std::string& name : asked)
      if (reached.count(name) != 0) mine.push_back(name);
    alive->supervised()->agree_later("existing gradients", rank, size, mine.dump(),
                                     [asked, rank](const std::vector<std::string>& answers) {
                                       Names left = asked;
                                       for (const std::string& name : names_in(answers)) left.erase(name);
                                       if (rank == 0) warn(left);
                                     });
  };
  channel->agree_later("missing gradients", rank_, size_, Json(missing).dump(), compare);
}

}  // namespace convoy
