#include "launch/rank/trial_steps.h"

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/control/stop.h"
#include "core/data/loader.h"
#include "core/data/samples.h"
#include "core/metrics/accumulator.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t warm_up = 3;  // steps: in the first one strategies choose, and all allocate
constexpr int64_t tried = 2;    // steps by which it is told how many there is time for
constexpr int windows = 3;      // the best of so many, since anything may disturb one
constexpr int64_t most_steps = 500;

class Trial {
 public:
  Trial(const Context& context, const TrainingParts& parts, const TrainingLength& length)
      : context_(context),
        parts_(parts),
        length_(length),
        sampling_(parts.strategy->sampling()),
        stop_(context.channel, context.rank, context.size, patience(context)) {
    LoaderOptions options = LoaderOptions::from(context.config.data.options, context.config.seed);
    options.share_index = sampling_.index;
    options.share_count = sampling_.count;
    options.micro_batches = sampling_.micro_batches;
    options.device = context.devices.front();
    options.draws = sampling_.draws;
    const MemberDraw draw =
        sampling_.draws.empty() ? data_draw(context.config.data.options, context.config.seed) : sampling_.draws.front();
    const Sampler sampler(parts.data->size(Split::train), length.global_rows, draw);
    loader_.emplace(parts.data, parts.transforms, sampler, 0, std::numeric_limits<int32_t>::max(), options);
  }

  TrainingResult run(double seconds) {
    TrainingResult result;
    result.rank = Json::object();
    result.stopped = !go(warm_up);
    const double expected = result.stopped ? 0 : window(tried, result.stopped);
    const int64_t steps =
        std::clamp<int64_t>(static_cast<int64_t>(seconds / windows / std::max(expected, 1e-6)), 1, most_steps);
    double best = 0;
    for (int number = 0; number < windows && !result.stopped; ++number) {
      const double took = window(steps, result.stopped);
      if (!result.stopped && (number == 0 || took < best)) best = took;
    }
    result.summary = {{"seconds_per_step", best}, {"trial_steps", step_}};
    return result;
  }

 private:
  static Timeout patience(const Context& context) {
    return Timeout(static_cast<int64_t>(context.config.launch.collective * 1000));
  }

  // False: all ranks were asked to stop.
  bool go(int64_t steps) {
    for (int64_t number = 0; number < steps; ++number, ++step_) {
      if (stop_.stops_before(step_)) return false;
      context_.state->step(step_);
      context_.state->phase("forward/backward");
      const int64_t done = step_ + 1;
      StepInput input{*loader_->next(), step_, done % length_.steps_per_epoch == 0};
      const StepResult result = parts_.strategy->step(input);
      metrics_.add(result.metrics);
      if (result.updated && result.finite.is_cpu() && !result.finite.all().item<bool>())
        throw Error(Failure::training, str("the loss is not finite at step ", step_, "; try a smaller optimizer.lr"));
    }
    return true;
  }

  // Seconds a step, of the slowest rank: those of all ranks between two places where all are.
  double window(int64_t steps, bool& stopped) {
    meet();
    const Clock::time_point start = Clock::now();
    stopped = !go(steps);
    if (stopped) return 0;
    if (context_.devices.front().is_cuda())
      at::detail::getCUDAHooks().deviceSynchronize(context_.devices.front().index());
    const double mine = std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(steps);
    at::Tensor slowest =
        at::scalar_tensor(mine, at::TensorOptions(at::kDouble).device(context_.devices.front())).reshape({1});
    context_.world->all_reduce(slowest, ReduceOp::max, {"time of a step", {}})->wait();
    return slowest.item<double>();
  }

  void meet() { context_.world->barrier({"trial", {}})->wait(); }

  const Context& context_;
  const TrainingParts& parts_;
  const TrainingLength& length_;
  const Sampling sampling_;
  StopAgreement stop_;
  std::optional<Loader> loader_;
  MetricAccumulator metrics_;
  int64_t step_ = 0;
};

}  // namespace

TrainingResult run_trial(const Context& context, const TrainingParts& parts, const TrainingLength& length,
                         const Json& request) {
  context.state->phase("trial");
  return Trial(context, parts, length).run(request.at("seconds").get<double>());
}

}  // namespace convoy
