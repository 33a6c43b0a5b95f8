#include "core/metrics/same_metrics.h"

#include "core/error.h"

namespace convoy {

void SameMetrics::check(const std::string& kind, const std::vector<std::string>& names) {
  const auto [known, fresh] = agreed_.emplace(kind, names);
  const std::string mine = join(names, ", ");
  if (!fresh) {
    if (known->second == names) return;
    throw Error(Failure::training, str("the metrics of an evaluation are ", mine, "; earlier they were ",
                                       join(known->second, ", "), "; a model gives the same ones each time"));
  }
  if (context_.size == 1) return;
  // A rank that comes late, or never, is found by the collective, which knows how to name it.
  context_.world->barrier({"metrics of all ranks", {}})->wait();
  const auto timeout = Timeout(static_cast<int64_t>(context_.config.launch.rendezvous * 1000));
  const std::vector<std::string> all =
      context_.channel->agree("metrics/" + kind, context_.rank, context_.size, mine, timeout);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all.front())
      throw CommError(Failure::disagreement, static_cast<int>(rank),
                      str("ranks give different metrics: rank 0: ", all.front(), "; rank ", rank, ": ", all[rank],
                          "; Model::metrics must give the same names in the same order on every rank"));
}

}  // namespace convoy
