// StackedMembers: trains and evaluates the members of an ensemble on one rank, stacked or one by one.
//
// Stacked: all training members are one ModelPart of StackedLayers. One by one: each member has a separate ModelPart;
// blocks with foreign modules need this. Both use the rows of one StackedStorage and one StackedUpdate, so the mode may
// change. A finished member keeps a row, after those of training members.
// Threads: the rank's thread. Failure: as for ModelPart; Error(training) names members with non-finite values.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/strategy.h"
#include "strategies/common/step/gradient_collector.h"
#include "strategies/common/step/start_checks.h"
#include "strategies/common/step/step_graph.h"
#include "strategies/ensemble/stacked_storage.h"
#include "strategies/ensemble/stacked_update.h"

namespace convoy {

class StackedMembers {
 public:
  // `members`: members of this rank, all training.
  StackedMembers(const Context& context, const EnsembleOptions& options, ModelPtr model, LossPtr loss,
                 std::vector<MemberSettings> members);
  ~StackedMembers();

  int64_t active() const { return active_; }
  const std::vector<MemberSettings>& rows() const { return members_; }  // the first `active` train

  // Runs forward, backward and update of a batch [active, rows, …] in the order of rows. The result has its metrics by
  // row. Throws Error(training) with the member for non-finite values.
  StepResult step(const StepInput& input);

  struct Evaluation {
    std::vector<Metric> metrics;  // [all rows]
    TensorList outputs;           // [all rows, …]
  };
  // `batch`: [rows, …] for all members; with `held_out` [members, rows, …], separate rows for each.
  Evaluation evaluate(const Batch& batch, bool held_out = false);

  // Copies these members as the best so far. Those of other ranks are ignored.
  void keep(const std::vector<int64_t>& numbers);
  // Forgets the copies: later evaluations are not comparable.
  void forget_best() { best_->reset(); }
  // Ends the training of these members, which take back their best copy.
  void finish(const std::vector<int64_t>& numbers);

  void visit_state(const StateVisitor& visit);
  void visit_gradients(const StateVisitor& visit) const;
  // Execution mode that a trial chose, for checkpoints; writable: int64, one value for each of the rank's n members,
  // all equal. n: they are stacked; −n: they run one by one; 0: no trial.
  at::Tensor chosen_by_trial() const { return chosen_by_trial_; }
  // Uses the execution mode of the checkpoint, if it has one for this many members.
  void restored();
  void renumbered(int64_t steps) { update_->renumbered(steps); }  // as Strategy::renumbered

 private:
  // Model part of a single member, and its collector.
  struct SingleMember;
  using Losses = std::vector<Loss>;

  std::unique_ptr<ModelPart> make_stack(int64_t rows, std::shared_ptr<Stack>& stack) const;
  SingleMember make_single(const MemberSettings& member, bool deferred) const;
  void build();
  void build_single();
  void attach_stack();
  void choose_mode(const Batch& batch);
  bool convolves_on_a_cpu(const Stack& stack) const;
  std::string difference_from_single(const Batch& batch);
  void use_single(const std::string& why);
  void use_stack(const std::string& why);

  StepGraph::Hooks graph_parts();
  StepResult trained(const StepInput& input);
  void run_stack(const Batch& batch, int64_t step);
  void run_single(const Batch& batch, int64_t step);
  Evaluation evaluate_stack(ModelPart& part, const Batch& batch, bool held_out) const;
  Evaluation evaluate_single(const Batch& batch, bool held_out) const;
  void report_gradients();
  void check_finite(at::Tensor finite, at::Tensor loss);
  void report_mode(const std::string& why) const;

  const Context context_;
  const EnsembleOptions options_;
  ModelPtr model_;
  LossPtr loss_;
  std::vector<MemberSettings> members_;  // by row
  int64_t active_;
  at::ScalarType dtype_;  // type of parameters
  bool stacked_ = true;
  bool chosen_ = false;  // the model, a trial or a checkpoint has chosen the execution mode
  at::Tensor chosen_by_trial_;
  GradientCoverage first_gradients_;
  std::unique_ptr<ModelPart> stack_;  // model part of the training members
  std::unique_ptr<GradientCollector> collector_;
  std::unique_ptr<ModelPart> whole_;  // model part of all members, for evaluations; null: stack_ has all
  std::vector<SingleMember> single_;  // by row; empty while stacked
  std::unique_ptr<StackedStorage> storage_;
  std::unique_ptr<StackedUpdate> update_;
  std::unique_ptr<BestMembers> best_;
  std::unique_ptr<StepGraph> graph_;
  Loss step_loss_;
  at::Tensor pending_finite_, pending_loss_;
};

}  // namespace convoy
