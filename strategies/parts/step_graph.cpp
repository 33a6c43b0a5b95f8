#include "strategies/parts/step_graph.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <mutex>

#include "core/error.h"
#include "core/log.h"
#include "core/units.h"

namespace convoy {
namespace {

// Steps until everything that is made on first use has been made, and the caches of memory have settled.
constexpr int64_t warm_up = 4;
// Launches after which a recording is tried once more: what it read from the host's memory by mistake has changed by then.
constexpr int64_t tried_again_after = 100;
constexpr int timed_steps = 5;
// Largest relative difference that the order of atomic additions makes; a mistake makes others.
constexpr double alike = 1e-3;

double seconds_of(const std::function<at::Tensor()>& steps) {
  const auto start = std::chrono::steady_clock::now();
  steps().sum().item<double>();  // waits for the device
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Trials keep copies of all state for a moment, and steps of models beyond that are not made of launches.
constexpr double light_bytes = 512.0 * (1 << 20);

double state_bytes(const std::function<void(const StateVisitor&)>& state) {
  double bytes = 0;
  state([&bytes](const StateEntry& entry) { bytes += static_cast<double>(entry.tensor.nbytes()); });
  return bytes;
}

// Trials draw as steps do, and the run is to go on drawing as if there had been none.
class GeneratorKept {
 public:
  explicit GeneratorKept(at::Device device) : generator_(at::globalContext().defaultGenerator(device)) {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~GeneratorKept() {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  GeneratorKept(const GeneratorKept&) = delete;
  GeneratorKept& operator=(const GeneratorKept&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

at::Tensor own(const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; }

// The next launch overwrites what the recording made; the rate is the caller's until the next update anyway.
StepResult copied(const StepResult& result) {
  StepResult copy = result;
  for (Metric& metric : copy.metrics) {
    metric.sum = own(metric.sum);
    metric.weight = own(metric.weight);
  }
  copy.finite = own(result.finite);
  copy.skipped = own(result.skipped);
  copy.gradient_norm = own(result.gradient_norm);
  return copy;
}

constexpr char by_operations[] = "steps are launched operation by operation: ";

bool records(const Context& context, const std::string& mode) {
  return mode != "never" && context.make_graph && context.make_graph(context.devices.front());
}

void say(const Context& context, const std::string& what) {
  context.tell({{"graph", what}});
  if (context.rank == 0) log::info(str("rank 0: ", what));
}

}  // namespace

// What must be as it was for a recording to stand for a step.
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
  StepInput input;  // whose tensors stay where they are
  StepResult result;
  int64_t launches = 0;
  std::unique_ptr<DeviceGraph> graph;  // last, so that it goes first

  // The step of another batch, into `result`.
  void launch(const Batch& batch) {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < batch.tensors.size(); ++i)
      input.batch.tensors[i].second.copy_(batch.tensors[i].second, /*non_blocking=*/true);
    graph->launch();
  }
};

// All that steps change, as it was.
struct StepGraph::Trial {
  std::vector<std::pair<std::string, at::Tensor>> state;

  explicit Trial(const Parts& parts) {
    at::NoGradGuard no_grad;
    parts.state([this](const StateEntry& entry) { state.emplace_back(entry.key(), entry.tensor.clone()); });
  }
  void restore(const Parts& parts) const {
    at::NoGradGuard no_grad;
    size_t index = 0;
    parts.state([&](const StateEntry& entry) {
      at::Tensor tensor = entry.tensor;
      tensor.copy_(state[index++].second);
    });
  }
  // The worst difference, relative to the largest element of its tensor, and where.
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

StepGraph::StepGraph(const Context& context, const std::string& mode, Parts parts)
    : context_(context), mode_(mode), parts_(std::move(parts)) {
  off_ = !records(context_, mode_);
}

StepGraph::~StepGraph() = default;

StepResult StepGraph::run(const StepInput& input) {
  parts_.before();
  if (off_) return parts_.step(input);
  const Key key(input);
  const bool usual = usual_ && key == *usual_;
  others_ = usual ? 0 : others_ + 1;
  // One of another shape is the last of an epoch; several in a row are what is usual from now on.
  if (!usual_ || others_ > 2) {
    recording_.reset();
    usual_ = std::make_unique<Key>(key);
    seen_ = 1;
    return parts_.step(input);
  }
  if (!usual) return parts_.step(input);
  if (recording_) return launched(input);
  if (++seen_ <= warm_up || !record(input)) return parts_.step(input);
  return launched(input);
}

void StepGraph::forget() {
  recording_.reset();
  usual_.reset();
}

StepResult StepGraph::launched(const StepInput& input) {
  if (mode_ == "auto" && recording_->launches == tried_again_after) {
    if (!holds(input, false)) return parts_.step(input);
    ++recording_->launches;
  }
  recording_->launch(input.batch);
  ++recording_->launches;
  return copied(recording_->result);
}

// Whether any rank has something against it: then all go on step by step.
bool StepGraph::given_up(const std::string& mine) {
  const std::string why = parts_.agreed ? parts_.agreed(mine) : mine;
  if (why.empty()) return false;
  give_up(why);
  return true;
}

// True where there is something to launch.
bool StepGraph::record(const StepInput& input) {
  std::string obstacle = parts_.obstacle();
  if (obstacle.empty() && mode_ == "auto" && state_bytes(parts_.state) > light_bytes)
    obstacle = str("a model whose state is ", human_bytes(state_bytes(parts_.state)), " has no light step");
  if (given_up(obstacle) || given_up(recorded(input))) return false;
  if (mode_ == "auto") return holds(input, true);
  say("steps are launched as one graph, as strategy.graph asks for");
  return true;
}

// "", or why there is no recording.
std::string StepGraph::recorded(const StepInput& input) {
  const at::Device device = context_.devices.front();
  recording_ = std::make_unique<Recording>();
  recording_->input = input;
  for (auto& entry : recording_->input.batch.tensors) entry.second = entry.second.to(device, false, /*copy=*/true);
  recording_->graph = context_.make_graph(device);
  try {
    recording_->graph->record([this] { recording_->result = parts_.step(recording_->input); });
  } catch (const std::exception& error) {
    return str("it cannot be recorded: ", std::string(error.what()).substr(0, 300));
  }
  return recording_->result.updated ? "" : "not every step makes an update";
}

// Whether a launch does what the step does, and, `timed`, is quicker. Leaves everything as it was.
bool StepGraph::holds(const StepInput& input, bool timed) {
  const GeneratorKept kept(context_.devices.front());
  if (given_up(difference(input))) return false;
  if (!timed) return true;
  std::string times;
  if (given_up(slower(input, times))) return false;
  say("steps are launched as one graph: " + times);
  return true;
}

// "", or what a launch leaves different from what the step leaves.
std::string StepGraph::difference(const StepInput& input) {
  const Trial before(parts_);
  recording_->launch(input.batch);
  const double launched_loss = recording_->result.metrics.front().sum.sum().item<double>();
  const Trial by_graph(parts_);
  before.restore(parts_);
  const double plain_loss = parts_.step(input).metrics.front().sum.sum().item<double>();
  const Trial by_steps(parts_);
  before.restore(parts_);
  auto [error, where] = by_graph.difference(by_steps);
  const double of_loss = std::abs(launched_loss - plain_loss) / std::max(std::abs(plain_loss), 1e-12);
  if (!(of_loss <= alike)) std::tie(error, where) = std::make_pair(of_loss, std::string("the loss"));
  return error <= alike ? "" : str("a graph of it leaves ", where, " different by ", error);
}

// "", or both times of a launch that is no quicker than the step; else they are in `times`.
std::string StepGraph::slower(const StepInput& input, std::string& times) {
  const Trial before(parts_);
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
  const double by_itself = several([&] { return parts_.step(input).metrics.front().sum; }) / timed_steps;
  before.restore(parts_);
  times = str(graphed * 1e3, " ms instead of ", by_itself * 1e3, " ms");
  if (graphed < by_itself) return "";
  return str("a launch of its graph takes ", graphed * 1e3, " ms, and the step by itself ", by_itself * 1e3, " ms");
}

void StepGraph::say(const std::string& what) { convoy::say(context_, what); }

void StepGraph::give_up(const std::string& why) {
  recording_.reset();
  off_ = true;
  if (mode_ == "always")
    throw Error(
        Failure::training,
        str("strategy.graph is always, and the step is launched operation by operation: ", why, "; take graph: auto"));
  say(by_operations + why);
}

void tell_no_graph(const Context& context, const std::string& mode, const std::string& why) {
  if (records(context, mode)) say(context, by_operations + why);
}

std::string not_every_step(int64_t every) { return str("with sync.every: ", every, " not every step makes an update"); }

}  // namespace convoy
