// Snapshots for `convoy verify`.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/stored_files.h"
#include "core/files/files.h"
#include "launch/rank/rank.h"

namespace convoy {
namespace {

std::string step_folder(const std::string& folder, int64_t step) { return str(folder, "/step-", step); }

StateView without(StateView state, const std::function<bool(const std::string& key)>& left_out) {
  state.keys.erase(std::remove_if(state.keys.begin(), state.keys.end(), left_out), state.keys.end());
  return state;
}

// Leaves out state of single replicas: the reference has one replica.
StateView without_replica_state(StateView state) {
  return without(std::move(state), [](const std::string& key) { return key.find("@replica") != std::string::npos; });
}

}  // namespace

Snapshots::Snapshots(const Context& context, Strategy& strategy, const Json& request)
    : context_(context),
      strategy_(strategy),
      folder_(request.at("folder").get<std::string>()),
      ensemble_(request.at("reference").is_array()),
      checkpoints_(context, folder_, 0) {
  const Json& reference = request.at("reference");
  if (ensemble_)
    references_ = reference.get<std::vector<std::string>>();
  else if (!reference.get<std::string>().empty())
    references_ = {reference.get<std::string>()};
}

void Snapshots::note_loss_fault(const std::string& fault) { note("loss_fault.txt", fault); }

void Snapshots::note_no_uneven_batch() { note("no_uneven_batch.txt", "none"); }

void Snapshots::note(const std::string& file, const std::string& text) const {
  if (text.empty() || context_.rank != 0) return;
  std::filesystem::create_directories(folder_);
  write_whole(folder_ + "/" + file, text, false);
}

void Snapshots::take(int64_t steps_done) {
  const bool last = steps_done >= context_.total_steps;
  last ? strategy_.flush() : strategy_.flush_for_evaluation();
  stale_.clear();
  strategy_.visit_state([this](const StateEntry& entry) {
    if (entry.stale) stale_.insert(entry.key());
  });
  checkpoints_.save(strategy_, {steps_done, Json::object()}, true);
  // Other ranks continue until the next collective.
  if (!references_.empty() && context_.rank == 0) compare_step(steps_done);
}

StateView Snapshots::reference_state(const std::string& folder, int64_t steps_done) const {
  return without(stored_state(step_folder(folder, steps_done)),
                 [this](const std::string& key) { return stale_.count(key) > 0; });
}

void Snapshots::compare_step(int64_t steps_done) {
  const std::string mine = step_folder(folder_, steps_done);
  const bool updated = std::all_of(references_.begin(), references_.end(), [&](const std::string& reference) {
    return std::filesystem::exists(step_folder(reference, steps_done));
  });
  StepDifferences step = update_in_one_run(steps_done, "is made by an update, and the reference made none then");
  if (updated) step.tensors.clear();
  for (size_t i = 0; i < references_.size() && updated; ++i) {
    const int member = ensemble_ ? static_cast<int>(i) : -1;
    for (TensorDifference& tensor :
         compare(without_replica_state(stored_state(mine, member)), reference_state(references_[i], steps_done))) {
      if (ensemble_) tensor.name += str("@member", member);
      step.tensors.push_back(std::move(tensor));
    }
  }
  differences_.push_back(to_json(step));
  write_whole(folder_ + "/differences.json", differences_.dump(), false);
  // A snapshot has at least four times the size of the model, so both are removed before the next step.
  std::filesystem::remove_all(mine);
  for (const std::string& reference : references_) std::filesystem::remove_all(step_folder(reference, steps_done));
}

}  // namespace convoy
