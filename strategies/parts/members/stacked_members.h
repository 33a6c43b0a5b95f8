// StackedMembers: the members of an ensemble that one rank holds, trained and evaluated, stacked or side by side.
//
// Stacked, all that train are one ModelPart of StackedLayers; side by side, each has a ModelPart of its own, which is all that
// blocks with modules of their own allow. Both work on the rows of one StackedStorage and end in one StackedUpdate, so that
// rows may change hands between them. A member that finishes keeps its row, behind those that train.
// Threads: the rank's own. Failure: as ModelPart; Error(training) naming members whose figures are not finite.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/strategy.h"
#include "strategies/parts/first_gradients.h"
#include "strategies/parts/gradient_collector.h"
#include "strategies/parts/members/stacked_update.h"
#include "strategies/parts/step_graph.h"

namespace convoy {

class StackedMembers {
 public:
  // `members`: this rank's, all of which train. Options of the section `strategy`: how, convolutions.
  StackedMembers(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss,
                 std::vector<MemberSettings> members);
  ~StackedMembers();

  int64_t active() const { return active_; }
  const std::vector<MemberSettings>& rows() const { return members_; }  // the first `active` train
  bool stacked() const { return stacked_; }

  struct Step {
    Metric loss;  // [active], in the order of rows
    StackedFigures figures;
  };
  // A batch [active, rows, …] in the order of rows; forward, backward, update.
  Step step(const Batch& batch, int64_t step);

  struct Evaluation {
    std::vector<Metric> metrics;  // [all rows]
    TensorList outputs;           // [all rows, …]
  };
  // A batch [rows, …] that all members see; own: one of rows of their own, [members, rows, …].
  Evaluation evaluate(const Batch& batch, bool own = false);

  // These members train no more.
  void finish(const std::vector<int64_t>& numbers);

  void visit_state(const StateVisitor& visit);
  void restored() { update_->restored(); }
  void renumbered(int64_t steps) { update_->renumbered(steps); }  // Strategy's

 private:
  struct Alone;  // a member's own part, and its collector
  using Losses = std::vector<Loss>;

  std::unique_ptr<ModelPart> make_stack(int64_t rows, std::shared_ptr<Stack>& stack) const;
  Alone make_alone(const MemberSettings& member, bool deferred) const;
  void build();
  void build_aside();
  void attach_stack();
  void choose(const Batch& batch);
  bool convolves_on_a_cpu(const Stack& stack) const;
  std::string unlike(const Batch& batch);
  void take_aside(const std::string& why);

  StepGraph::Parts graph_parts();
  StepResult trained(const StepInput& input);
  void run_stack(const Batch& batch, int64_t step);
  void run_aside(const Batch& batch, int64_t step);
  Evaluation evaluate_stack(ModelPart& part, const Batch& batch, bool own) const;
  Evaluation evaluate_aside(const Batch& batch, bool own) const;
  void report_gradients();
  void check_finite(at::Tensor finite, at::Tensor loss);
  void say(const std::string& why) const;

  const Context context_;
  ModelPtr model_;
  std::shared_ptr<const LossFunction> loss_;
  std::vector<MemberSettings> members_;  // by row
  int64_t active_;
  bool stacked_ = true;
  bool chosen_ = false;  // how the members run has been decided, by nothing that a clock says
  FirstGradients first_gradients_;
  std::unique_ptr<ModelPart> stack_;  // of those that train
  std::unique_ptr<GradientCollector> collector_;
  std::unique_ptr<ModelPart> whole_;  // of all rows, for evaluations; null: the stack is
  std::vector<Alone> aside_;          // by row; empty while stacked
  std::unique_ptr<StackedStorage> storage_;
  std::unique_ptr<StackedUpdate> update_;
  std::unique_ptr<StepGraph> graph_;
  Loss step_loss_;
  at::Tensor pending_finite_, pending_loss_;
};

}  // namespace convoy
