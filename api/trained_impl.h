// Implementation of Trained: a Strategy that Run saves, restores and counts.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/job_impl.h"
#include "api/trained_config.h"
#include "convoy/trained.h"
#include "core/context.h"
#include "core/model_checks.h"
#include "core/optim/torch_optimizer.h"
#include "core/strategy.h"
#include "strategies/common/model/model_part.h"
#include "strategies/common/step/mesh_strategy.h"
#include "strategies/common/step/start_checks.h"

namespace convoy {

// A module, its optimizer, and the division between ranks.
struct TrainedRequest {
  torch::nn::Module& module;
  torch::optim::Optimizer* optimizer = nullptr;  // null: `fused`
  const FusedOptimizer* fused = nullptr;
  int number = 0;  // number of Trained objects that this job made before
  std::shared_ptr<void> job_users;
  bool continues = false;  // the job continues without lost ranks
};

// The user's program replaces the Trainer, so `setup`, `step` and `evaluate` of the strategy must not be called.
struct Trained::Impl : public Strategy {
 public:
  // Properties in which Replicas and Shards differ.
  struct Kind {
    bool by_children = false;  // one block for each child of the module, instead of one block
    bool drives = false;       // the module's forward must go through `forward`
    bool adopts = false;       // takes over values that the program loaded into the module
    std::function<std::unique_ptr<DataAxis>(const Context&, const std::vector<ModelPart*>&, const Options& strategy,
                                            OptimizerFactory)>
        data;
  };

  // Collective along the axis `data`. The object keeps a copy of `kind`.
  Impl(const Context& context, const TrainedRequest& request, const TrainedSettings& settings, const Kind& kind);
  ~Impl() override;

  // Runs one backward, and with `last` the end of a step. `loss`: null on a rank without rows.
  StepReport run(const Loss* loss, bool last);
  at::Tensor forward(const at::Tensor& input);

  // Result of the last `run`, for Run: "loss" first, over the rows of this rank; the rest as in Strategy::step.
  const StepResult& result() const { return result_; }
  int64_t calls() const { return calls_; }  // calls of `run` in this process
  // Called with the loss of each `run`; null: not called.
  void on_loss(std::function<void(const Metric&)> call) { on_loss_ = std::move(call); }
  // Steps that are complete, in the numbering of the run; Run sets it when it resumes.
  int64_t steps() const { return step_; }
  void set_steps(int64_t steps);
  // Call it after flush() and all readers of the state, because the next forward needs the values of training.
  void continue_training() { data_->continue_training(); }

  // --- Changes of the ranks (launch.min_ranks) ---
  // After a lost peer: releases the groups. Module and optimizer keep their values. Only `attach` is allowed then.
  void detach();
  // Collective along the axis `data`. Sets up the same module and optimizer with the ranks of this context. The caller
  // restores the state.
  void attach(const Context& job);
  // Called after each update, when all of its values are written; null: not called.
  void on_update(std::function<void()> call) { on_update_ = std::move(call); }
  // Skips the next calls of `run`: their update is part of the state already. `done` is called after the last one.
  void skip_calls(int64_t calls, std::function<void()> done);
  bool skips() const { return skips_ > 0; }
  // Learning rates of the optimizer's groups. Of a fused optimizer: the rate that the program has set, if any.
  std::vector<double> learning_rates() const;
  void set_learning_rates(const std::vector<double>& rates);

  // Collective along the axis `data`. Replicas make equal updates, so values that differ were changed by the program on
  // some ranks only: throws Error(disagreement) with the first such parameter.
  void check_equal_values();

  Sampling sampling() const override;
  void flush() override { data_->flush(); }
  void flush_and_copy(int64_t most) override { data_->flush_and_copy(most); }
  void flush_for_evaluation() override { data_->flush_for_evaluation(); }
  void visit_state(const StateVisitor& visit) override;
  void visit_gradients(const StateVisitor& visit) override { data_->visit_gradients(visit); }
  void state_restored() override { data_->state_restored(); }
  void setup(const Context&, ModelPtr, LossPtr) override;
  StepResult step(const StepInput&) override;
  std::vector<Metric> evaluate(const Batch&) override;
  bool evaluated(const std::map<std::string, MetricValue>&) override { return false; }

  const Context& context() const { return context_; }
  torch::nn::Module& module() const { return module_; }
  const ModelPart& part() const { return *part_; }
  Update& end_of_step() const { return data_->end_of_step(); }
  bool has_torch_optimizer() const { return torch_optimizer_ != nullptr; }
  const Lifetime& lifetime() const { return lifetime_; }
  // Takes over values that the program loaded into the module since the last step; Shards refuse them.
  void adopt_loaded();

 private:
  void set_up();
  void make_optimizer();
  StepReport skip_call(bool last);
  void note_memory();
  void check_frozen();
  void choose_nominal(const Loss& loss);
  void follow_nominal();
  void share_reached();
  void end_step(bool last);

  const std::shared_ptr<void> job_users_;
  Lifetime lifetime_;
  Context context_;                                // context of the job, with the configuration of this object
  const std::shared_ptr<torch::nn::Module> kept_;  // null if no shared_ptr owns the module
  torch::nn::Module& module_;
  const Kind kind_;
  torch::optim::Optimizer* const optimizer_;  // null: fused
  std::optional<ModelPart> part_;
  // A tensor of the module, and an alias of its memory after the last step. The alias has a separate version counter:
  // writing to the alias does not invalidate what a forward saved.
  struct Home {
    std::string name;
    at::Tensor tensor, memory;
  };
  std::vector<Home> homes_;
  std::shared_ptr<TorchOptimizer> torch_optimizer_;  // null: fused
  std::unique_ptr<DataAxis> data_;
  std::optional<LossCheck> loss_check_;
  std::optional<GradientCoverage> coverage_;
  StepResult result_;
  std::function<void(const Metric&)> on_loss_;
  std::function<void()> on_update_, skipped_;
  int64_t skips_ = 0;        // calls of `run` that are skipped next
  int64_t every_ = 1;        // steps per update
  int64_t accumulated_ = 0;  // backwards since the last update
  int64_t postponed_ = 0;    // steps since the last update
  int64_t step_ = 0;
  int64_t calls_ = 0;
  int checks_ = 0;            // calls of check_equal_values
  int64_t updates_here_ = 0;  // updates in this process
  bool forwarded_ = false;    // `forward` was called since the last backward
  bool adopted_ = false;      // values were taken over, and this was logged
  bool all_reached_ = false;  // every parameter has had a gradient on some rank
  bool follows_ = false;      // an update's weight is the divisor of the next losses
  at::Tensor nominal_;        // double [1], on the CPU: divisor of losses in backward; 0: not chosen yet
};

inline Strategy& strategy_of(const Trained& trained) { return trained.impl(); }

std::unique_ptr<Trained::Impl> make_replicas(const Context& context, const TrainedRequest& request,
                                             const ReplicaOptions& options);
std::unique_ptr<Trained::Impl> make_shards(const Context& context, const TrainedRequest& request,
                                           const ShardOptions& options);

}  // namespace convoy
