#include "tests/support/torch/equivalence.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <cmath>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include "backends/registry.h"
#include "core/error.h"
#include "core/optim/catalogue.h"
#include "core/single_communicator.h"
#include "strategies/catalogue.h"
#include "strategies/registry.h"
#include "tests/support/config_text.h"

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

Batch rows_of(const Batch& data, int64_t begin, int64_t end) { return data.slice(begin, end); }

// Share `index` of `count` of a global batch that is rows [begin, end) of the data.
Batch share(const Batch& data, int64_t begin, int64_t end, int64_t nominal, int64_t index, int64_t count) {
  const auto [from, to] = share_of(end - begin, index, count);
  Batch batch = rows_of(data, begin + from, begin + to);
  batch.first_row = from;
  batch.global_rows = end - begin;
  batch.nominal_rows = nominal;
  return batch;
}

void record(const std::map<std::string, at::Tensor>& state, std::map<std::string, at::Tensor>& into) {
  for (const auto& [key, tensor] : state) into.emplace(key, tensor);
}

// One rank's part of a training.
class RankTraining {
 public:
  RankTraining(const Context& context, const Subject& subject, const Training& training)
      : context_(context), subject_(subject), training_(training), strategy_(make_strategy(context.config)) {
    strategy_->setup(context, subject.model(), subject.loss);
  }

  Trajectory run() {
    Trajectory result;
    const Sampling sampling = strategy_->sampling();
    result.initial = state_of(*strategy_);
    const int64_t rows = subject_.data.rows;
    const int64_t per_epoch = (rows + training_.global_rows - 1) / training_.global_rows;
    for (int64_t step = 0; step < training_.steps; ++step) {
      const int64_t begin = step % per_epoch * training_.global_rows;
      const int64_t end = std::min(begin + training_.global_rows, rows);
      const bool last = step + 1 == training_.steps || (training_.epoch_flush && (step + 1) % per_epoch == 0);
      at::Tensor figures = at::zeros({2}, at::kDouble);
      const int64_t before = context_.world->bytes_sent();
      for (int64_t part = 0; part < training_.parts; ++part) {
        StepInput input;
        input.batch = share(subject_.data, begin, end, training_.global_rows, sampling.index * training_.parts + part,
                            sampling.count * training_.parts);
        input.step = step;
        input.flush = last && part + 1 == training_.parts;
        const StepResult out = strategy_->step(input);
        figures += at::stack({out.metrics.front().sum, out.metrics.front().weight});
        if (out.updated) {
          CONVOY_CHECK(out.finite.item<bool>(), "an update of the test is not finite");
          result.norms.push_back(out.gradient_norm.item<double>());
        }
      }
      result.bytes_sent = context_.world->bytes_sent() - before;
      result.losses.push_back(over_all(figures));
    }
    result.evaluated = evaluate(sampling);
    strategy_->settle();
    result.final = state_of(*strategy_);
    return result;
  }

 private:
  double over_all(at::Tensor figures) {
    context_.world->all_reduce(figures, ReduceOp::sum, {"figures", {}})->wait();
    return (figures[0] / figures[1]).item<double>();
  }

  double evaluate(const Sampling& sampling) {
    const Batch batch = share(subject_.data, 0, subject_.data.rows, subject_.data.rows, sampling.index, sampling.count);
    const Metric loss = strategy_->evaluate(batch).front();
    return over_all(at::stack({loss.sum, loss.weight}));
  }

  const Context& context_;
  const Subject& subject_;
  const Training& training_;
  std::unique_ptr<Strategy> strategy_;
};

bool ignored_key(const std::string& key, const std::vector<std::string>& ignored) {
  for (const std::string& prefix : ignored)
    if (key.rfind(prefix, 0) == 0) return true;
  return false;
}

// "parameter", "moment/exp_avg": what largest values are compared within.
std::string kind_of(const std::string& key) {
  const size_t first = key.find('/');
  return key.rfind("moment/", 0) == 0 ? key.substr(0, key.find('/', first + 1)) : key.substr(0, first);
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).abs().max().item<double>();
}

}  // namespace

std::string to_string(const Layout& layout) {
  return convoy::str(layout.strategy, " on ", layout.ranks, " ranks", layout.options);
}

RunConfig test_config(const Layout& layout, const Training& training) {
  Catalogues catalogues = small_catalogues();
  catalogues.kinds["optimizer"] = optimizer_catalogue();
  catalogues.kinds["schedule"] = schedule_catalogue();
  catalogues.kinds["strategy"] = strategy_entries();
  TemporaryFolder folder;
  const std::string path = folder.file("run.yaml");
  std::ofstream(path) << "name: test\nseed: 7\ndevice: cpu\nprecision: " << training.precision
                      << "\nmodel: {name: net}\ndata: {name: made}\noptimizer: " << training.optimizer
                      << "\ntrain: {batch: {global: " << training.global_rows
                      << "}}\nstrategy: {name: " << layout.strategy << layout.options << "}\n";
  return read_run_config({path, {}}, catalogues);
}

std::unique_ptr<Strategy> make_strategy(const RunConfig& config) {
  Registry registry;
  register_strategies(registry);
  return registry.strategies.make(config.strategy.name, config.strategy.options);
}

void with_ranks(const Layout& layout, const RunConfig& config, const std::function<void(const Context&)>& run) {
  TemporaryFolder folder;
  const auto channel = make_local_channel();
  Registry registry;  // one for all: the backend `local` knows its ranks by it
  register_backends(registry);
  std::mutex mutex;
  std::exception_ptr failure;
  bool symptom = false;
  auto body = [&](int rank) {
    CommunicatorPtr world;
    try {
      Context context;
      context.rank = context.local_rank = rank;
      context.size = context.process_ranks = layout.ranks;
      context.host = "here";
      context.mesh = Mesh({{"data", layout.ranks}});
      context.channel = channel;
      context.state = std::make_shared<StateFile>(folder.file(convoy::str("rank", rank, ".state")));
      context.config = config;
      context.world = world = world_of(registry, rank, layout.ranks, channel);
      context.axes["data"] = world;
      run(context);
      world->barrier({"end", {}})->wait();
    } catch (const std::exception& error) {
      const auto* told = dynamic_cast<const Error*>(&error);
      const bool lost = told != nullptr && told->kind() == Failure::peer_lost;
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (!failure || (symptom && !lost)) {
          failure = std::current_exception();
          symptom = lost;
        }
      }
      if (world) world->abort(error.what());
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
    CONVOY_CHECK(entry.piece.is_whole(), entry.key(), " is a piece: assembling is still to be written");
    state.emplace(entry.key(), entry.tensor.clone());
  });
  return state;
}

Trajectory train(const Layout& layout, const Subject& subject, const Training& training) {
  const RunConfig config = test_config(layout, training);
  std::mutex mutex;
  std::vector<Trajectory> all(static_cast<size_t>(layout.ranks));
  with_ranks(layout, config, [&](const Context& given) {
    Context context = given;
    context.steps_per_epoch = (subject.data.rows + training.global_rows - 1) / training.global_rows;
    context.total_steps = training.steps;
    Trajectory mine = RankTraining(context, subject, training).run();
    std::lock_guard<std::mutex> lock(mutex);
    all[static_cast<size_t>(context.rank)] = std::move(mine);
  });
  Trajectory result = all.front();
  for (const Trajectory& rank : all) {
    record(rank.initial, result.initial);
    record(rank.final, result.final);
    // What several ranks hold has to be the same on all of them.
    for (const auto& [key, tensor] : rank.final)
      if (key.rfind("buffer/", 0) != 0) CONVOY_CHECK(tensor.equal(result.final.at(key)), key, " differs between ranks");
  }
  return result;
}

Difference difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b,
                      const std::vector<std::string>& ignored) {
  std::map<std::string, double> scales;
  for (const auto& [key, tensor] : b) scales[kind_of(key)] = std::max(scales[kind_of(key)], largest(tensor));
  Difference result;
  for (const auto& [key, tensor] : b) {
    if (ignored_key(key, ignored)) continue;
    const auto other = a.find(key);
    CONVOY_CHECK(other != a.end() && other->second.sizes() == tensor.sizes(), key, " is missing or of another shape");
    const double scale = std::max({largest(tensor), 1e-3 * scales[kind_of(key)], 1e-300});
    const double here = largest(other->second.to(at::kDouble) - tensor.to(at::kDouble)) / scale;
    if (!(here <= result.worst)) result = {here, key};  // NaN counts as worst
  }
  return result;
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
