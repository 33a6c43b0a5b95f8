#include "launch/rank/snapshots.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "core/checkpoint/stored_files.h"
#include "launch/summary.h"

namespace convoy {
namespace {

std::string step_folder(const std::string& folder, int64_t step) { return str(folder, "/step-", step); }

StateView without(StateView state, const std::function<bool(const std::string& key)>& left_out) {
  state.keys.erase(std::remove_if(state.keys.begin(), state.keys.end(), left_out), state.keys.end());
  return state;
}

// Without what a rank has of its own: the reference has no other ranks.
StateView in_common(StateView state) {
  return without(std::move(state), [](const std::string& key) { return key.find("@replica") != std::string::npos; });
}

}  // namespace

Snapshots::Snapshots(const Context& context, Strategy& strategy, const Json& request)
    : context_(context),
      strategy_(strategy),
      folder_(request.at("folder").get<std::string>()),
      of_members_(request.at("reference").is_array()),
      checkpoints_(context, folder_, 0) {
  const Json& reference = request.at("reference");
  if (of_members_)
    references_ = reference.get<std::vector<std::string>>();
  else if (!reference.get<std::string>().empty())
    references_ = {reference.get<std::string>()};
}

void Snapshots::note_loss_fault(const std::string& fault) { note("loss_fault.txt", fault); }

void Snapshots::note_no_ragged_batch() { note("no_ragged_batch.txt", "none"); }

void Snapshots::note(const std::string& file, const std::string& text) const {
  if (text.empty() || context_.rank != 0) return;
  std::filesystem::create_directories(folder_);
  write_whole(folder_ + "/" + file, text, false);
}

void Snapshots::take(int64_t steps_done) {
  const bool last = steps_done >= context_.total_steps;
  last ? strategy_.settle() : strategy_.settle_for_evaluation();
  behind_.clear();
  strategy_.visit_state([this](const StateEntry& entry) {
    if (entry.behind) behind_.insert(entry.key());
  });
  checkpoints_.save(strategy_, steps_done, Json::object(), true);
  // The others go on meanwhile, as far as the next collective.
  if (!references_.empty() && context_.rank == 0) compare_step(steps_done);
}

StateView Snapshots::of_reference(const std::string& folder, int64_t steps_done) const {
  return without(stored_state(step_folder(folder, steps_done)),
                 [this](const std::string& key) { return behind_.count(key) > 0; });
}

void Snapshots::compare_step(int64_t steps_done) {
  const std::string mine = step_folder(folder_, steps_done);
  const bool updated = std::all_of(references_.begin(), references_.end(), [&](const std::string& reference) {
    return std::filesystem::exists(step_folder(reference, steps_done));
  });
  StepDifferences step = update_of_one(steps_done, "is made by an update, and the reference made none then");
  if (updated) step.tensors.clear();
  for (size_t i = 0; i < references_.size() && updated; ++i) {
    const int member = of_members_ ? static_cast<int>(i) : -1;
    for (TensorDifference& tensor :
         compare(in_common(stored_state(mine, member)), of_reference(references_[i], steps_done))) {
      if (of_members_) tensor.name += str("@member", member);
      step.tensors.push_back(std::move(tensor));
    }
  }
  differences_.push_back(to_json(step));
  write_whole(folder_ + "/differences.json", differences_.dump(), false);
  // Each step's state is four times the model, or more: one step of it is there at a time, and the reference's shrinks.
  std::filesystem::remove_all(mine);
  for (const std::string& reference : references_) std::filesystem::remove_all(step_folder(reference, steps_done));
}

}  // namespace convoy
