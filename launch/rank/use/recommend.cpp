// `convoy recommend`: lists of the best new items for each user (core/ranking/recommender.h). One rank.
//
// options: to, force, users (a file; null: all), k, include_seen.
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/data/sets/interactions.h"
#include "core/files/limits.h"
#include "core/rank_state/position.h"
#include "core/ranking/pair_scorer.h"
#include "core/ranking/recommender.h"
#include "launch/rank/use/use.h"

namespace convoy {
namespace {

// A line "Name:  1234 kB" of /proc/self/status, in bytes; 0 if there is none.
int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (begins_with(line, name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  return 0;
}

// Largest growth of the resident memory since construction. Resets the process's peak, where the kernel allows it.
class MemoryGrowth {
 public:
  MemoryGrowth() {
    std::ofstream("/proc/self/clear_refs") << "5";
    before_ = status_bytes("VmRSS");
  }
  int64_t bytes() const { return status_bytes("VmHWM") - before_; }

 private:
  int64_t before_ = 0;
};

class RecommendUse : public Use {
 public:
  Json run(UseContext& use) override {
    const RunConfig& config = use.config();
    const Interactions* all = use.components().data->interactions();
    if (all == nullptr)
      throw ConfigError(location_of(config.resolved, "data.name"), "data.name",
                        str("is ", config.data.name,
                            ", which has no interactions of users with items, so there is "
                            "nothing to recommend; use convoy predict for its outputs"));
    use.rank().state->phase(building_phase);
    std::vector<std::shared_ptr<PairScorer>> members;
    for (const LoadedModel& model : use.models()) members.push_back(model.impl().part.pair_scorer());
    const std::shared_ptr<PairScorer> scorer =
        members.size() == 1 ? members.front() : std::make_shared<MeanScorer>(members);

    RecommendOptions options = options_of(use);
    options.prepared = use.components().data->prepared_interactions();
    const std::unique_ptr<OutputFile> out = use.output();
    use.progress("the model is complete");
    const auto start = std::chrono::steady_clock::now();
    const MemoryGrowth memory;
    const RecommendReport report =
        recommend(*all, *scorer, options, *out, [&](const RecommendProgress& at) { use.progress(progress_text(at)); });
    const double seconds = seconds_since(start);
    return {{"to", out->path()},
            {"users", report.users},
            {"items", all->items},
            {"k", options.k},
            {"shorter_lists", report.shorter},
            {"ignored_columns", report.ignored_columns},
            {"contexts", all->contexts() == 0        ? "none"
                         : report.contexts_from_file ? "file"
                                                     : "last interaction"},
            {"seconds", seconds},
            {"memory_growth", memory.bytes()}};
  }

 private:
  static std::string progress_text(const RecommendProgress& at) {
    const std::string text = str(at.users, " of ", counted(at.total_users, "user"));
    if (at.block_users == 0) return text;
    return str(text, "; ", at.items, " of ", at.total_items, " items for the next ", at.block_users);
  }

  static RecommendOptions options_of(const UseContext& use) {
    const Json& given = use.options();
    RecommendOptions options;
    options.k = given.value("k", options.k);
    options.include_seen = given.value("include_seen", false);
    if (const auto users = given.find("users"); users != given.end() && users->is_string())
      options.users = users->get<std::string>();
    if (use.config().data.options.has("columns")) {  // synthetic interactions have none
      const Options columns = use.config().data.options.section("columns");
      options.user_column = columns.text("user");
      options.item_column = columns.text("item");
    }
    return options;
  }
};

}  // namespace

std::unique_ptr<Use> make_recommend_use() { return std::make_unique<RecommendUse>(); }

}  // namespace convoy
