#include "convoy/trained.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <cmath>

#include <exception>

#include "api/job_impl.h"
#include "api/trained_impl.h"
#include "convoy/model_of.h"
#include "convoy/replicas.h"
#include "convoy/shards.h"
#include "core/base/error.h"
#include "core/model_checks.h"
#include "core/optim/precision.h"
#include "strategies/replicas/replicated_data.h"
#include "strategies/shards/sharded_data.h"

namespace convoy {
namespace {

template <class... Parts>
[[noreturn]] void refuse_step(const Trained::Impl& impl, const Parts&... parts) {
  throw Error(Failure::training, "step ", impl.steps(), " of the program: ", parts...);
}

at::Tensor one_number(const Trained::Impl& impl, const char* what, const at::Tensor& value) {
  if (!value.defined()) refuse_step(impl, what, " is undefined");
  if (value.numel() != 1)
    refuse_step(impl, what, " has shape ", value.sizes(), " and must be one number, the sum over rows");
  return value.reshape({});
}

Loss checked(const Trained::Impl& impl, const at::Tensor& sum, const at::Tensor& weight, int64_t rows) {
  Loss loss{one_number(impl, "the loss", sum), {}};
  if (!loss.sum.is_floating_point())
    refuse_step(impl, "the loss is of ", loss.sum.scalar_type(), " and must be of floating-point numbers");
  loss.weight = one_number(impl, "the weight", weight).detach();
  if (loss.weight.is_complex()) refuse_step(impl, "the weight is complex and must be a real number");
  loss.weight = loss.weight.to(loss.sum.options().requires_grad(false));
  try {
    check_graph(loss, rows);
  } catch (const Error& error) {
    refuse_step(impl, "the loss: ", error.what());
  }
  return loss;
}

StepReport run_rows(Trained::Impl& impl, const at::Tensor& sum, int64_t rows, bool last) {
  if (rows < 0) refuse_step(impl, "it has ", rows, " rows; give the number of rows that the loss sums");
  if (rows == 0) return impl.run(nullptr, last);
  const at::Tensor weight = at::full(
      {}, double(rows), at::TensorOptions(sum.defined() ? sum.device() : at::Device(at::kCPU)).dtype(at::kDouble));
  const Loss loss = checked(impl, sum, weight, rows);
  return impl.run(&loss, last);
}

StepReport run_weight(Trained::Impl& impl, const at::Tensor& sum, const at::Tensor& weight, bool last) {
  const Loss loss = checked(impl, sum, weight, 1);
  return impl.run(&loss, last);
}

}  // namespace

struct Autocast::Impl {
  explicit Impl(const Trained::Impl& impl)
      : scope(impl.part().device(), autocast_dtype(impl.context().config.precision)) {}
  AutocastScope scope;
};

Autocast::Autocast(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Autocast::Autocast(Autocast&&) noexcept = default;
Autocast::~Autocast() = default;

struct Evaluation::Impl {
  explicit Impl(Trained::Impl& impl) : trained(impl), training(impl.module().is_training()) {
    trained.flush_for_evaluation();
    trained.module().eval();
  }
  ~Impl() {
    trained.module().train(training);
    trained.continue_training();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Trained::Impl& trained;
  const bool training;
};

Evaluation::Evaluation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Evaluation::Evaluation(Evaluation&&) noexcept = default;
Evaluation::~Evaluation() = default;

Trained::Trained(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trained::~Trained() {
  if (impl_) impl_->lifetime().check_end("Replicas or Shards", "the Run");
}

StepReport Trained::step(const at::Tensor& loss_sum, int64_t rows) { return run_rows(*impl_, loss_sum, rows, true); }
StepReport Trained::step(const at::Tensor& loss_sum, const at::Tensor& weight) {
  return run_weight(*impl_, loss_sum, weight, true);
}
StepReport Trained::step() { return impl_->run(nullptr, true); }
void Trained::accumulate(const at::Tensor& loss_sum, int64_t rows) { run_rows(*impl_, loss_sum, rows, false); }
void Trained::accumulate(const at::Tensor& loss_sum, const at::Tensor& weight) {
  run_weight(*impl_, loss_sum, weight, false);
}
void Trained::accumulate() { impl_->run(nullptr, false); }

Autocast Trained::autocast() const { return Autocast(std::make_unique<Autocast::Impl>(*impl_)); }
Evaluation Trained::evaluation() { return Evaluation(std::make_unique<Evaluation::Impl>(*impl_)); }

double Trained::learning_rate() const { return impl_->end_of_step().rate(); }

void Trained::set_learning_rate(double rate) {
  if (impl_->has_torch_optimizer())
    throw Error(Failure::config,
                "set_learning_rate needs a FusedOptimizer, but this object has a torch optimizer; set "
                "the rate in its options, or use a torch::optim::LRScheduler");
  if (!(rate >= 0 && std::isfinite(rate)))
    throw Error(Failure::config, "set_learning_rate(", rate, "): a rate is finite and at least 0");
  impl_->end_of_step().set_base_rate(rate);
}

int64_t Trained::updates() const { return impl_->end_of_step().made(); }
torch::nn::Module& Trained::module() const { return impl_->module(); }

// --- Replicas and Shards ---

// One of `optimizer` and `fused` is null.
TrainedRequest request_of(const Job& job, torch::nn::Module& module, torch::optim::Optimizer* optimizer,
                          const FusedOptimizer* fused) {
  Job::Impl& impl = job.impl();
  if (impl.continues() && impl.trained > 0)
    throw Error(
        Failure::config, "launch.min_ranks is ", impl.context.config.launch.min_ranks,
        ", and the job has a Replicas already: Run::each_batch keeps the state of one for the next ranks; train "
        "both modules as one, or set launch.min_ranks=0");
  return {module, optimizer, fused, impl.trained++, impl.lifetime.users(), impl.continues()};
}

std::unique_ptr<Trained::Impl> make_replicas(const Context& context, const TrainedRequest& request,
                                             const ReplicaOptions& options) {
  Trained::Impl::Kind kind;
  kind.adopts = true;
  kind.data = [number = request.number](const Context& own, const std::vector<ModelPart*>& parts,
                                        const Options& strategy, OptimizerFactory optimizer) {
    ReplicatedOptions replicated{step_options(strategy)};
    replicated.optimizer = std::move(optimizer);
    replicated.number = number;
    return std::make_unique<ReplicatedData>(own, parts, replicated);
  };
  TrainedSettings settings = settings_of(options, request.fused);
  settings.continues = request.continues;
  return std::make_unique<Trained::Impl>(context, request, settings, kind);
}

namespace {

// In a process that joins, this is the first communication: the others may lose a peer meanwhile.
std::unique_ptr<Trained::Impl> joined_replicas(const Job& job, const TrainedRequest& request,
                                               const ReplicaOptions& options) {
  Job::Impl& impl = job.impl();
  while (true) {
    std::exception_ptr lost;
    try {
      impl.connect();
      return make_replicas(impl.context, request, options);
    } catch (...) {
      if (!impl.joins() || translate_exception(Failure::training).kind != Failure::peer_lost) throw;
      lost = std::current_exception();
    }
    if (!impl.leave_membership()) std::rethrow_exception(lost);
  }
}

}  // namespace

std::unique_ptr<Trained::Impl> make_shards(const Context& context, const TrainedRequest& request,
                                           const ShardOptions& options) {
  if (request.continues)
    throw ConfigError({"ShardOptions", 0, 0}, "stage", "is ", options.stage, ", but launch.min_ranks is ",
                      context.config.launch.min_ranks,
                      ", and each rank of Shards has a part of the state that the others lack; take Replicas, or set "
                      "launch.min_ranks=0 and launch.max_restarts");
  const bool sequential = dynamic_cast<torch::nn::SequentialImpl*>(&request.module) != nullptr;
  Trained::Impl::Kind kind;
  kind.by_children = true;
  kind.drives = options.stage == 3;
  if (kind.drives && !sequential)
    throw ConfigError(
        {"ShardOptions", 0, 0}, "stage",
        "is 3, which needs a torch::nn::Sequential: each child is gathered before its forward; take 2, or "
        "make the module a Sequential");
  kind.data = [drives = kind.drives, number = request.number](const Context& own, const std::vector<ModelPart*>& parts,
                                                              const Options& strategy, OptimizerFactory optimizer) {
    ShardedOptions sharded{sharded_step_options(strategy)};
    sharded.by_gradient = !drives;
    sharded.optimizer = std::move(optimizer);
    sharded.number = number;
    return std::make_unique<ShardedData>(own, parts, sharded);
  };
  return std::make_unique<Trained::Impl>(context, request, settings_of(options, request.fused), kind);
}

Replicas::Replicas(Job& job, torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                   const ReplicaOptions& options)
    : Trained(joined_replicas(job, request_of(job, module, &optimizer, nullptr), options)) {}
Replicas::Replicas(Job& job, torch::nn::Module& module, const FusedOptimizer& optimizer, const ReplicaOptions& options)
    : Trained(joined_replicas(job, request_of(job, module, nullptr, &optimizer), options)) {}

Shards::Shards(Job& job, torch::nn::Module& module, torch::optim::Optimizer& optimizer, const ShardOptions& options)
    : Trained(make_shards(context_of(job), request_of(job, module, &optimizer, nullptr), options)) {}
Shards::Shards(Job& job, torch::nn::Module& module, const FusedOptimizer& optimizer, const ShardOptions& options)
    : Trained(make_shards(context_of(job), request_of(job, module, nullptr, &optimizer), options)) {}

at::Tensor Shards::forward(const at::Tensor& input) { return impl().forward(input); }

}  // namespace convoy
