#include "strategies/parts/first_gradients.h"

#include <set>
#include <utility>

#include "core/control/supervised_channel.h"
#include "core/log.h"

namespace convoy {
namespace {

using Names = std::set<std::string>;

Names names_in(const std::vector<std::string>& votes) {
  Names names;
  for (const std::string& vote : votes)
    for (const Json& name : Json::parse(vote)) names.insert(name.get<std::string>());
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
  log::warning(str("no gradient came to ", missing.size(), missing.size() == 1 ? " parameter" : " parameters",
                   " in the first update: ", join(shown, ", "),
                   ". The loss does not depend on them: does forward use them, and is nothing detached in between? "
                   "Where a model uses them only at times, all is well"));
}

}  // namespace

void FirstGradients::updated(const std::vector<ModelPart*>& parts) {
  if (std::exchange(done_, true)) return;
  Names reached, missing;
  for (const ModelPart* part : parts)
    for (const ParameterPtr& parameter : part->parameters())
      (parameter->reached ? reached : missing).insert(parameter->name);
  for (const std::string& name : reached) missing.erase(name);
  if (size_ == 1) return warn(missing);
  SupervisedChannel* const channel = supervised(channel_.get());
  if (channel == nullptr) return;
  // Two rounds: what anybody misses, and, where that is anything, who has got it.
  const auto compare = [weak = std::weak_ptr<Channel>(channel_), rank = rank_, size = size_,
                        reached](const std::vector<std::string>& votes) {
    const Names asked = names_in(votes);
    const std::shared_ptr<Channel> alive = weak.lock();
    if (asked.empty() || !alive) return;
    Json mine = Json::array();
    for (const std::string& name : asked)
      if (reached.count(name) != 0) mine.push_back(name);
    supervised(alive.get())
        ->agree_later("gradients that came", rank, size, mine.dump(),
                      [asked, rank](const std::vector<std::string>& answers) {
                        Names left = asked;
                        for (const std::string& name : names_in(answers)) left.erase(name);
                        if (rank == 0) warn(left);
                      });
  };
  channel->agree_later("gradients that did not come", rank_, size_, Json(missing).dump(), compare);
}

}  // namespace convoy
