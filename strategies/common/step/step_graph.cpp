#include "strategies/common/step/step_graph.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <chrono>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/files/limits.h"
#include "core/optim/optimizer.h"
#include "core/tensors/init.h"

namespace convoy {
namespace {

// Steps until lazy initialisation is complete and memory caches are stable.
constexpr int64_t warm_up = 4;
// Number of launches before a second test. If the recorded step reads host memory by mistake, that memory has changed
// by then, and the test finds the error.
constexpr int64_t tried_again_after = 100;
constexpr int timed_steps = 5;
// Largest relative difference that the order of atomic additions causes; errors cause larger ones.
constexpr double largest_difference = 1e-3;

double seconds_of(const std::function<at::Tensor()>& steps) {
  const auto start = std::chrono::steady_clock::now();
  steps().sum().item<double>();  // waits for the device
  return seconds_since(start);
}

// Trials copy the whole state for a moment. Steps of models above this size are not dominated by launches.
constexpr double light_bytes = 512.0 * (1 << 20);

double state_bytes(const std::function<void(const StateVisitor&)>& state) {
  double bytes = 0;
  state([&bytes](const StateEntry& entry) { bytes += double(entry.tensor.nbytes()); });
  return bytes;
}

at::Tensor clone_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; }

// Copies results, which the next launch overwrites. The learning rate needs no copy: callers use it only until the next
// update.
StepResult copied(const StepResult& result) {
  StepResult copy = result;
  for (Metric& metric : copy.metrics) {
    metric.sum = clone_of(metric.sum);
    metric.weight = clone_of(metric.weight);
  }
  copy.finite = clone_of(result.finite);
  copy.skipped = clone_of(result.skipped);
  copy.gradient_norm = clone_of(result.gradient_norm);
  return copy;
}

constexpr char by_operations[] = "steps are launched operation by operation: ";

bool records(const Context& context, GraphMode mode) {
  return mode != GraphMode::never && context.make_graph && context.make_graph(context.devices.front());
}

void log_status(const Context& context, const std::string& what) {
  context.add_to_summary({{"graph", what}});
  if (context.rank == 0) log::info(str("rank 0: ", what));
}

}  // namespace

// Conditions under which a recording is valid.
struct StepGraph::Key {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<at::ScalarType> dtypes;
  std::vector<int64_t> rows;

  explicit Key(const StepInput& input) {
    for (const auto& [name, tensor] : input.batch.tensors) {
      shapes.push_back(tensor.sizes().vec());
      dtypes.push_back(tensor.scalar_type());
    }
    const Batch& batch = input.batch;
    rows = {batch.rows, batch.first_row, batch.global_rows, batch.nominal_rows};
    for (const MicroBatch& micro : batch.micro) rows.insert(rows.end(), {micro.begin, micro.end, micro.first_row});
  }
  bool operator==(const Key& other) const {
    return shapes == other.shapes && dtypes == other.dtypes && rows == other.rows;
  }
};

struct StepGraph::Recording {
  StepInput input;  // its tensors keep their addresses
  StepResult result;
  int64_t launches = 0;
  std::unique_ptr<DeviceGraph> graph;  // last member, so that it is destroyed first

  // Runs the step on another batch, into `result`.
  void launch(const Batch& batch) {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < batch.tensors.size(); ++i)
      input.batch.tensors[i].second.copy_(batch.tensors[i].second, /*non_blocking=*/true);
    graph->launch();
  }
};

// A copy of everything that a step changes.
struct StepGraph::Trial {
  NamedTensors state;

  explicit Trial(const Hooks& hooks) {
    at::NoGradGuard no_grad;
    hooks.state([this](const StateEntry& entry) { state.emplace_back(entry.key(), entry.tensor.clone()); });
  }
  void restore(const Hooks& hooks) const {
    at::NoGradGuard no_grad;
    size_t index = 0;
    hooks.state([&](const StateEntry& entry) {
      at::Tensor tensor = entry.tensor;
      tensor.copy_(state[index++].second);
    });
  }
  // Largest difference, relative to the largest element of its tensor, and the tensor's name.
  std::pair<double, std::string> difference(const Trial& other) const {
    std::pair<double, std::string> worst{0, ""};
    for (size_t i = 0; i < state.size(); ++i) {
      const at::Tensor a = state[i].second.to(at::kDouble), b = other.state[i].second.to(at::kDouble);
      if (a.numel() == 0) continue;
      const double scale = b.abs().max().item<double>();
      const double error = (a - b).abs().max().item<double>();
      const double relative = scale > 0 ? error / scale : error;
      if (!(relative <= worst.first)) worst = {relative, state[i].first};
    }
    return worst;
  }
};

StepGraph::StepGraph(const Context& context, GraphMode mode, Hooks hooks)
    : context_(context), mode_(mode), hooks_(std::move(hooks)) {
  off_ = !records(context_, mode_);
}

StepGraph::~StepGraph() = default;

StepResult StepGraph::run(const StepInput& input) {
  hooks_.before();
  if (off_) return hooks_.step(input);
  const Key key(input);
  const bool usual = usual_ && key == *usual_;
  others_ = usual ? 0 : others_ + 1;
  // One batch of another shape is the last of an epoch; several in a row are the new usual shape.
  if (!usual_ || others_ > 2) {
    recording_.reset();
    usual_ = std::make_unique<Key>(key);
    seen_ = 1;
    return hooks_.step(input);
  }
  if (!usual) return hooks_.step(input);
  if (recording_) return launched(input);
  if (++seen_ <= warm_up || !record(input)) return hooks_.step(input);
  return launched(input);
}

void StepGraph::forget() {
  recording_.reset();
  usual_.reset();
}

StepResult StepGraph::launched(const StepInput& input) {
  if (mode_ == GraphMode::automatic && recording_->launches == tried_again_after) {
    if (!holds(input, false)) return hooks_.step(input);
    ++recording_->launches;
  }
  recording_->launch(input.batch);
  ++recording_->launches;
  return copied(recording_->result);
}

// True if any rank has an obstacle: then all ranks run normal steps.
bool StepGraph::any_obstacle(const std::string& mine) {
  const std::string why = hooks_.agreed ? hooks_.agreed(mine) : mine;
  if (why.empty()) return false;
  turn_off(why);
  return true;
}

// Records the step. True if there is a recording to launch.
bool StepGraph::record(const StepInput& input) {
  std::string obstacle = hooks_.obstacle();
  if (obstacle.empty() && mode_ == GraphMode::automatic && state_bytes(hooks_.state) > light_bytes)
    obstacle = str("a model whose state is ", human_bytes(state_bytes(hooks_.state)), " has no light step");
  if (any_obstacle(obstacle) || any_obstacle(recorded(input))) return false;
  if (mode_ == GraphMode::automatic) return holds(input, true);
  log_status("steps are launched as one graph, as strategy.graph requires");
  return true;
}

// Records; returns "" or the reason why it failed.
std::string StepGraph::recorded(const StepInput& input) {
  const at::Device device = context_.devices.front();
  recording_ = std::make_unique<Recording>();
  recording_->input = input;
  for (auto& entry : recording_->input.batch.tensors) entry.second = entry.second.to(device, false, /*copy=*/true);
  recording_->graph = context_.make_graph(device);
  try {
    recording_->graph->record([this] { recording_->result = hooks_.step(recording_->input); });
  } catch (const std::exception& error) {
    return str("it cannot be recorded: ", std::string(error.what()).substr(0, 300));
  }
  return recording_->result.updated ? "" : "not every step makes an update";
}

// True if a launch gives the results of the step and, with `timed`, is faster. Restores the state.
bool StepGraph::holds(const StepInput& input, bool timed) {
  const KeptGenerator kept(context_.devices.front());  // the run draws as if there had been no trial
  if (any_obstacle(difference(input))) return false;
  if (!timed) return true;
  std::string times;
  if (any_obstacle(slower(input, times))) return false;
  log_status("steps are launched as one graph: " + times);
  return true;
}

// Returns "" or the difference between the results of a launch and of the step.
std::string StepGraph::difference(const StepInput& input) {
  const Trial before(hooks_);
  recording_->launch(input.batch);
  const double launched_loss = recording_->result.metrics.front().sum.sum().item<double>();
  const Trial by_graph(hooks_);
  before.restore(hooks_);
  const double plain_loss = hooks_.step(input).metrics.front().sum.sum().item<double>();
  const Trial by_steps(hooks_);
  before.restore(hooks_);
  auto [error, where] = by_graph.difference(by_steps);
  const double of_loss = std::abs(launched_loss - plain_loss) / std::max(std::abs(plain_loss), 1e-12);
  if (!(of_loss <= largest_difference)) std::tie(error, where) = std::make_pair(of_loss, std::string("the loss"));
  return error <= largest_difference ? "" : str("a graph of it leaves ", where, " different by ", error);
}

// Returns "" if a launch is faster than the step, with both times in `times`, else the reason.
std::string StepGraph::slower(const StepInput& input, std::string& times) {
  const Trial before(hooks_);
  const auto several = [](const std::function<at::Tensor()>& step) {
    return seconds_of([&] {
      at::Tensor loss;
      for (int i = 0; i < timed_steps; ++i) loss = step();
      return loss;
    });
  };
  const double graphed = several([&] {
                           recording_->launch(input.batch);
                           return recording_->result.metrics.front().sum;
                         }) /
                         timed_steps;
  const double by_itself = several([&] { return hooks_.step(input).metrics.front().sum; }) / timed_steps;
  before.restore(hooks_);
  times = str(graphed * 1e3, " ms instead of ", by_itself * 1e3, " ms");
  if (graphed < by_itself) return "";
  return str("its CUDA graph takes ", graphed * 1e3, " ms, and the step without it ", by_itself * 1e3, " ms");
}

void StepGraph::log_status(const std::string& what) { convoy::log_status(context_, what); }

void StepGraph::turn_off(const std::string& why) {
  recording_.reset();
  off_ = true;
  if (mode_ == GraphMode::always)
    throw Error(Failure::training, "strategy.graph is always, but the step cannot be launched as a graph: ", why,
                "; set graph: auto");
  log_status(by_operations + why);
}

void log_no_graph(const Context& context, GraphMode mode, const std::string& why) {
  if (records(context, mode)) log_status(context, by_operations + why);
}

std::string not_every_step(int64_t every) { return str("with sync.every: ", every, " not every step makes an update"); }

}  // namespace convoy
