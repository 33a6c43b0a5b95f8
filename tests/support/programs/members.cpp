// A program of a user that trains by Run::each_batch, for tests of launch.min_ranks.
//
//   members [--steps N] [--pause SECONDS] [--every STEPS] [--accumulate PASSES] [--optimizer fused] [--do ACTION]
//
// ACTION: share (the range-based loop), twice (two loops), shards, two (two Replicas), local (averages parameters),
// unknown (an optimizer of a class that convoy does not know), sum (communicates before the loop), throw (an error of
// the program), before and after (rank 1 dies outside of the loop), unwritten (rank 0 dies before it has written a
// record that the others have), save (Run::save at the beginning of each body), constant (never sets a learning rate),
// preset (sets one before the training only).
#include <ATen/ATen.h>
#include <convoy/convoy.h>
#include <torch/data/datasets/base.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

class Rows : public torch::data::datasets::Dataset<Rows> {
 public:
  torch::data::Example<> get(size_t index) override {
    const auto x = at::sin(at::arange(6, at::kDouble) * (0.3 * static_cast<double>(index) + 1));
    return {x, (x * at::arange(6, at::kDouble)).sum().reshape({1}).cos()};
  }
  std::optional<size_t> size() const override { return 203; }
};

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(6, 8));
    last = register_module("last", torch::nn::Linear(8, 1));
    passes = register_buffer("passes", at::zeros({1}));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) passes.add_(1);
    return last->forward(at::tanh(first->forward(x)));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  at::Tensor passes;
};

// A class of the program, whose state convoy does not know.
class Descent : public torch::optim::Optimizer {
 public:
  explicit Descent(const std::vector<at::Tensor>& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)}, std::make_unique<torch::optim::SGDOptions>(0.01)) {}
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};

std::map<std::string, std::string> options_of(const std::vector<std::string>& words) {
  std::map<std::string, std::string> options{
      {"--steps", "30"}, {"--pause", "0"}, {"--every", "1"}, {"--accumulate", "1"}};
  for (size_t i = 1; i + 1 < words.size(); i += 2) options[words[i]] = words[i + 1];
  return options;
}

at::Tensor loss_of(Net& net, const at::Tensor& data, const at::Tensor& target) {
  return (net.forward(data) - target).square().sum();
}

void evaluate(convoy::Run& run, convoy::Replicas& replicas, Net& net) {
  const at::NoGradGuard no_grad;
  const auto evaluation = replicas.evaluation();
  double sum = 0, rows = 0;
  for (auto& batch : run.once(Rows(), 64)) {
    sum += loss_of(net, batch.data, batch.target).item<double>();
    rows += static_cast<double>(batch.rows);
  }
  run.evaluated("error", sum, rows, convoy::Best::lowest);
}

// Dies after the others have completed the body, and leaves the file as if it had died before its last record.
void die_without_last_record(const std::string& path) {
  std::ifstream file(path);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::resize_file(path, all.rfind('\n', all.size() - 2) + 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  raise(SIGKILL);
}

void train(convoy::Job& job) {
  std::map<std::string, std::string> options = options_of(job.arguments());
  const std::string action = options["--do"];
  at::manual_seed(1);
  Net net;
  torch::optim::Adam adam(net.parameters(), torch::optim::AdamOptions(1e-2));
  if (action == "sum") job.sum(1);
  if (action == "shards") convoy::Shards(job, net, adam);
  if (action == "unknown") {
    Descent descent(net.parameters());
    convoy::Replicas(job, net, descent);
  }
  convoy::ReplicaOptions replicated;
  replicated.sync.every = std::stol(options["--every"]);
  if (action == "local") replicated.sync.what = "parameters";
  const bool fused = options["--optimizer"] == "fused";
  convoy::Replicas replicas = fused ? convoy::Replicas(job, net, convoy::FusedOptimizer("adamw", 1e-2), replicated)
                                    : convoy::Replicas(job, net, adam, replicated);
  if (action == "two") convoy::Replicas(job, net, adam);
  if (action == "preset") replicas.set_learning_rate(0.003);
  convoy::Run run = job.resume("run", replicas);
  torch::optim::StepLR scheduler(adam, 5, 0.995);
  int64_t batches = 0;
  run.keep("scheduler", scheduler);
  run.keep("batches", batches);

  if (action == "before" && job.rank() == 1) raise(SIGKILL);
  const int64_t accumulate = std::stol(options["--accumulate"]);
  const auto body = [&](convoy::ShareBatch& batch) {
    if (action == "save") run.save();
    for (int64_t pass = 0; pass < accumulate; ++pass) {
      const auto [begin, end] = std::pair(batch.rows * pass / accumulate, batch.rows * (pass + 1) / accumulate);
      const auto loss = loss_of(net, batch.data.slice(0, begin, end), batch.target.slice(0, begin, end));
      run.log("loss", loss, static_cast<double>(end - begin));
      pass + 1 < accumulate ? replicas.accumulate(loss, end - begin) : (void)replicas.step(loss, end - begin);
    }
    ++batches;
    if (!fused)
      scheduler.step();
    else if (action != "constant" && action != "preset")
      replicas.set_learning_rate(replicas.learning_rate() * 0.999);
    if ((batch.step + 1) % 10 == 0) evaluate(run, replicas, net);
    if (action == "unwritten" && job.rank() == 0 && batch.step == 19)
      die_without_last_record(run.folder() + "/metrics.jsonl");
    if (action == "throw" && batch.step == 5) throw std::runtime_error("the program broke");
    std::this_thread::sleep_for(std::chrono::duration<double>(std::stod(options["--pause"])));
  };
  convoy::ShareOptions share;
  share.epochs = 0;
  share.batch_size = 20;
  share.max_steps = std::stol(options["--steps"]);
  if (action == "share")
    for (auto& batch : run.share(Rows(), share)) body(batch);
  else
    run.each_batch(Rows(), share, body);
  if (action == "after" && job.rank() == 1) raise(SIGKILL);
  if (action == "twice") run.each_batch(Rows(), share, body);
  std::printf("rank %d of %d: %lld batches, rate %.15g, passes %g\n", job.rank(), job.size(),
              static_cast<long long>(batches), replicas.learning_rate(), net.passes.item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  convoy::Job job(argc, argv);
  train(job);
  return 0;
}
