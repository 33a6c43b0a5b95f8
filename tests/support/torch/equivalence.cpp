#include "tests/support/torch/equivalence.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <cmath>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include "backends/registry.h"
#include "core/base/error.h"
#include "core/communicator.h"
#include "core/config/reader.h"
#include "core/control/channel.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/tensors/compare.h"
#include "models/catalogue/catalogue.h"
#include "strategies/plans/catalogue.h"
#include "strategies/registry.h"
#include "tests/support/config_text.h"
#include "tests/support/errors.h"
#include "tests/support/one_host.h"
#include "tests/support/torch/state_view.h"
#include "tests/support/torch/whole_state.h"

namespace convoy::testing {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char pattern[] = "/tmp/convoy-equivalence-XXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~TemporaryFolder() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }

 private:
  std::mutex mutex_;
  std::string path_;
  std::vector<std::string> files_;
};

CommunicatorPtr world_of(const Registry& registry, int rank, int size, const std::shared_ptr<Channel>& channel) {
  if (size == 1) return make_single_communicator();
  BackendRequest request;
  request.rank = rank;
  request.size = size;
  request.channel = channel;
  request.job = "test";
  request.timeout = request.rendezvous = std::chrono::milliseconds(60000);
  return registry.backends.make("local", request);
}

void join_axes(Context& context) {
  for (const Axis& axis : context.mesh.axes()) {
    const std::vector<int> group = context.mesh.group(context.rank, axis.name);
    context.axes[axis.name] = static_cast<int>(group.size()) == context.size
                                  ? context.world
                                  : context.world->split(group.front(), context.rank, {"axis " + axis.name, {}});
  }
}

// Share `index` of `count` of a global batch that is rows [begin, end) of the data, in `micro_batches` micro-batches.
Batch share(const Batch& data, int64_t begin, int64_t end, int64_t nominal, int64_t index, int64_t count,
            int64_t micro_batches = 1) {
  const std::vector<MicroBatch> micro = micro_batches_of(end - begin, micro_batches, index, count);
  Batch batch;
  for (const auto& [name, tensor] : data.tensors) {
    std::vector<at::Tensor> parts;
    for (const MicroBatch& one : micro) parts.push_back(tensor.narrow(0, begin + one.first_row, one.end - one.begin));
    batch.tensors.emplace_back(name, at::cat(parts));
  }
  batch.rows = micro.back().end;
  batch.first_row = micro.front().first_row;
  batch.global_rows = end - begin;
  batch.nominal_rows = nominal;
  if (micro_batches > 1) batch.micro = micro;
  return batch;
}

// Returns the plan, checked with the model's blocks.
JobPlan checked_plan(const Layout& layout, const RunConfig& config, const Subject& subject) {
  JobPlan job = planned(layout, config);
  check_blocks(strategy_entry(layout.strategy), job, describe_model(*subject.model(), config.precision));
  return job;
}

// The states of all ranks of a layout.
struct WholeStates {
  WholeState initial, final, gradients;
};

// One rank's part of a training.
class RankTraining {
 public:
  RankTraining(const Context& context, const Subject& subject, const Training& training, WholeStates& states)
      : context_(context),
        subject_(subject),
        training_(training),
        states_(states),
        strategy_(make_strategy(context.config)) {
    strategy_->setup(context, subject.model(), subject.loss);
  }

  Trajectory run() {
    Trajectory result;
    const Sampling sampling = strategy_->sampling();
    strategy_->visit_state([&](const StateEntry& entry) { states_.initial.add(entry); });
    const int64_t rows = subject_.data.rows;
    const int64_t per_epoch = (rows + training_.global_rows - 1) / training_.global_rows;
    for (int64_t step = training_.first; step < training_.steps; ++step) {
      if (training_.before) training_.before(context_, *strategy_, step);
      const int64_t begin = step % per_epoch * training_.global_rows;
      const int64_t end = std::min(begin + training_.global_rows, rows);
      const bool last = step + 1 == training_.steps || (training_.epoch_flush && (step + 1) % per_epoch == 0);
      at::Tensor sums = at::zeros({2}, at::kDouble);
      const int64_t before = context_.world->bytes_sent();
      for (int64_t part = 0; part < training_.parts; ++part) {
        StepInput input;
        input.batch = share(subject_.data, begin, end, training_.global_rows, sampling.index * training_.parts + part,
                            sampling.count * training_.parts, sampling.micro_batches);
        input.step = step;
        input.flush = last && part + 1 == training_.parts;
        const StepResult out = strategy_->step(input);
        sums += at::stack({out.metrics.front().sum, out.metrics.front().weight});
        if (out.updated) {
          CONVOY_CHECK(out.finite.item<bool>(), "an update of the test is not finite");
          result.norms.push_back(out.gradient_norm.item<double>());
        }
      }
      result.bytes_sent = context_.world->bytes_sent() - before;
      result.losses.push_back(over_all(sums));
    }
    result.evaluated = evaluate(sampling);
    strategy_->flush();
    strategy_->visit_state([&](const StateEntry& entry) { states_.final.add(entry); });
    strategy_->visit_gradients([&](const StateEntry& entry) { states_.gradients.add(entry); });
    return result;
  }

 private:
  double over_all(at::Tensor sums) {
    context_.world->all_reduce(sums, ReduceOp::sum, {"loss", {}})->wait();
    return (sums[0] / sums[1]).item<double>();
  }

  double evaluate(const Sampling& sampling) {
    const Batch batch = share(subject_.data, 0, subject_.data.rows, subject_.data.rows, sampling.index, sampling.count);
    const Metric loss = strategy_->evaluate(batch).front();
    return over_all(at::stack({loss.sum, loss.weight}));
  }

  const Context& context_;
  const Subject& subject_;
  const Training& training_;
  WholeStates& states_;
  std::unique_ptr<Strategy> strategy_;
};

bool ignored_key(const std::string& key, const std::vector<std::string>& ignored) {
  for (const std::string& prefix : ignored)
    if (key.rfind(prefix, 0) == 0) return true;
  return false;
}

std::map<std::string, at::Tensor> without(const std::map<std::string, at::Tensor>& state,
                                          const std::vector<std::string>& ignored) {
  std::map<std::string, at::Tensor> rest;
  for (const auto& [key, tensor] : state)
    if (!ignored_key(key, ignored)) rest.emplace(key, tensor);
  return rest;
}

}  // namespace

std::string to_string(const Layout& layout) {
  return convoy::str(layout.strategy, " on ", layout.ranks, " ranks", layout.options);
}

RunConfig test_config(const Layout& layout, const Training& training, const std::string& model) {
  Catalogues catalogues = small_catalogues();
  for (const Entry& entry : model_catalogue()) catalogues.kinds["model"].push_back(entry);
  catalogues.kinds["optimizer"] = optimizer_catalogue();
  catalogues.kinds["schedule"] = schedule_catalogue();
  catalogues.kinds["strategy"] = strategy_entries();
  TemporaryFolder folder;
  const std::string path = folder.file("run.yaml");
  std::ofstream(path) << "name: test\nseed: 7\ndevice: cpu\nprecision: " << training.precision << "\nmodel: " << model
                      << "\ndata: {name: made}\noptimizer: " << training.optimizer
                      << "\ntrain: {batch: {global: " << training.global_rows
                      << "}}\nstrategy: {name: " << layout.strategy << layout.options << "}\n";
  return read_run_tree(read_yaml_file(path, {}), catalogues);
}

JobPlan planned(const Layout& layout, const RunConfig& config) {
  const Topology topology = one_host(8);
  PlanRequest request;
  request.ranks = layout.ranks;
  JobPlan job = strategy_entry(config.strategy.name).plan(config, topology, request).jobs.at(0);
  CONVOY_CHECK(static_cast<int>(job.ranks.size()) == layout.ranks, to_string(layout), " is planned with ",
               job.ranks.size(), " ranks");
  return job;
}

std::unique_ptr<Strategy> make_strategy(const RunConfig& config) {
  Registry registry;
  register_strategies(registry);
  return registry.strategies.make(config.strategy.name, config.strategy.options);
}

void with_ranks(const Layout& layout, const RunConfig& config, const std::function<void(const Context&)>& run) {
  const JobPlan job = planned(layout, config);
  TemporaryFolder folder;
  const auto channel = make_local_channel();
  Registry registry;  // one for all: the backend `local` knows its ranks by it
  register_backends(registry);
  std::mutex mutex;
  std::exception_ptr failure;
  bool symptom = false;
  auto body = [&](int rank) {
    Context context;
    try {
      context.rank = context.local_rank = rank;
      context.size = context.process_ranks = layout.ranks;
      context.host = "here";
      context.mesh = job.mesh;
      // Devices are sets of cores; their threads are not bound here, because there may be fewer cores.
      context.devices.assign(job.ranks[static_cast<size_t>(rank)].devices.size(), at::Device(at::kCPU));
      context.channel = channel;
      context.state = std::make_shared<StateFile>(folder.file(convoy::str("rank", rank, ".state")));
      context.config = config;
      context.world = world_of(registry, rank, layout.ranks, channel);
      join_axes(context);
      run(context);
      context.world->barrier({"end", {}})->wait();
    } catch (const std::exception& error) {
      const auto* reported = dynamic_cast<const Error*>(&error);
      const bool lost = reported != nullptr && reported->kind() == Failure::peer_lost;
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (!failure || (symptom && !lost)) {
          failure = std::current_exception();
          symptom = lost;
        }
      }
      if (context.world) context.world->abort(error.what());
      // As in the launcher: groups that were split from the world wake too.
      Abort reason;
      reason.rank = rank;
      reason.message = error.what();
      channel->abort(reason);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < layout.ranks; ++rank) threads.emplace_back(body, rank);
  body(0);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

std::map<std::string, at::Tensor> state_of(Strategy& strategy) {
  std::map<std::string, at::Tensor> state;
  strategy.visit_state([&](const StateEntry& entry) {
    CONVOY_CHECK(entry.piece.is_whole(), entry.key(), " is a piece; states of several ranks are for train()");
    state.emplace(entry.key(), entry.tensor.clone());
  });
  return state;
}

std::string run(const Layout& layout, const Subject& subject,
                const std::function<void(const Context&, Strategy&)>& body) {
  return error_of([&] {
    const RunConfig config = test_config(layout, {});
    with_ranks(layout, config, [&](const Context& context) {
      auto strategy = make_strategy(config);
      strategy->setup(context, subject.model(), subject.loss);
      body(context, *strategy);
    });
  });
}

Batch share(const Subject& subject, const Sampling& sampling) {
  const auto [begin, end] = share_of(subject.data.rows, sampling.index, sampling.count);
  Batch batch = subject.data.slice(begin, end);
  batch.nominal_rows = batch.global_rows = subject.data.rows;
  return batch;
}

std::string refused_key(const Layout& layout, const Subject& subject, const Training& training) {
  try {
    checked_plan(layout, test_config(layout, training, subject.section), subject);
  } catch (const ConfigError& error) {
    return error.key();
  }
  return "nothing is refused";
}

Trajectory train(const Layout& layout, const Subject& subject, const Training& training) {
  const RunConfig config = test_config(layout, training, subject.section);
  checked_plan(layout, config, subject);
  WholeStates states;
  Trajectory result;
  with_ranks(layout, config, [&](const Context& given) {
    Context context = given;
    context.steps_per_epoch = (subject.data.rows + training.global_rows - 1) / training.global_rows;
    context.total_steps = training.steps;
    Trajectory mine = RankTraining(context, subject, training, states).run();
    if (context.rank == 0) result = std::move(mine);
  });
  result.initial = states.initial.tensors();
  result.final = states.final.tensors();
  result.gradients = states.gradients.tensors();
  return result;
}

Difference difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b,
                      const std::vector<std::string>& ignored) {
  const auto given = without(a, ignored), reference = without(b, ignored);
  const std::vector<TensorDifference> all = compare(view_of(given), view_of(reference));
  CONVOY_CHECK(!all.empty(), "there is nothing to compare");
  for (const TensorDifference& one : all)
    CONVOY_CHECK(one.fault.empty(), "the ", one.kind, " of ", one.name, " ", one.fault);
  const TensorDifference* worst = worst_of(all);
  return {worst->relative, worst->kind + "/" + worst->name};
}

bool bitwise_equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, tensor] : a) {
    const auto other = b.find(key);
    if (other == b.end() || !other->second.equal(tensor)) return false;
  }
  return true;
}

}  // namespace convoy::testing
