#include "launch/rank/snapshots.h"

#include <filesystem>

#include "core/checkpoint/stored_files.h"
#include "core/compare.h"
#include "launch/summary.h"

namespace convoy {
namespace {

std::string step_folder(const std::string& folder, int64_t step) { return str(folder, "/step-", step); }

}  // namespace

Snapshots::Snapshots(const Context& context, Strategy& strategy, const Json& request)
    : context_(context),
      strategy_(strategy),
      folder_(request.at("folder").get<std::string>()),
      reference_(request.at("reference").get<std::string>()),
      checkpoints_(context, folder_, 0) {}

void Snapshots::take(int64_t steps_done) {
  strategy_.settle();
  checkpoints_.save(strategy_, steps_done, Json::object(), true);
  // The others go on meanwhile, as far as the next collective.
  if (!reference_.empty() && context_.rank == 0) compare_step(steps_done);
}

void Snapshots::compare_step(int64_t steps_done) {
  const std::string mine = step_folder(folder_, steps_done), reference = step_folder(reference_, steps_done);
  const StepDifferences step =
      std::filesystem::exists(reference)
          ? StepDifferences{steps_done, compare(stored_state(mine), stored_state(reference))}
          : update_of_one(steps_done, "is made by an update, and the reference made none then");
  differences_.push_back(to_json(step));
  write_whole(folder_ + "/differences.json", differences_.dump(), false);
  // Each step's state is four times the model, or more: one step of it is there at a time, and the reference's shrinks.
  std::filesystem::remove_all(mine);
  std::filesystem::remove_all(reference);
}

}  // namespace convoy
