// A plugin for the fault scripts: a small classifier one of whose two blocks, the first unless told otherwise, fails as it is
// told, on one rank, in one step.
//
//   model: {plugin: …/libconvoy_faulty.so, fault: throw, rank: 1, at: 7, mark: FILE}
//
// Just before it fails it writes the time (Unix, microseconds) to FILE, from which the scripts measure how long the job takes to end.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <thread>

#include "core/describe.h"
#include "core/model.h"
#include "core/plugin.h"

namespace convoy {
namespace {

struct Fault {
  std::string what;
  int64_t rank;
  int64_t block;
  int64_t at;  // the forward pass with gradients, from 0: the step, where nothing is accumulated
  double seconds;
  std::string mark;
};

LinearOptions with_cut(LinearOptions::Cut cut) {
  LinearOptions options;
  options.cut = cut;
  return options;
}

// Leaves what a careless library leaves: a process that no kill of a group reaches.
void start_grandchild() {
  if (fork() != 0) return;
  setsid();
  if (fork() != 0) _exit(0);
  while (true) pause();
}

class FaultyBlock : public Block {
 public:
  FaultyBlock(Layers& layers, int64_t index, int64_t in, int64_t out, Fault fault)
      : fault_(std::move(fault)), hidden_(index == 0) {
    const auto cut = hidden_ ? LinearOptions::Cut::column : LinearOptions::Cut::row;
    linear_ = register_module("linear", layers.linear("linear", in, out, with_cut(cut)));
    const char* rank = std::getenv("CONVOY_RANK");
    here_ = rank != nullptr && std::atoi(rank) == fault_.rank && index == fault_.block;
  }

  TensorList forward(const TensorList& inputs) override {
    const bool fails = here_ && at::GradMode::is_enabled() && step_++ == fault_.at;
    if (fails) fail();
    at::Tensor value = linear_->forward(inputs[0]);
    if (fails && fault_.what == "nan") value = value * std::numeric_limits<double>::quiet_NaN();
    return {hidden_ ? value.relu() : value};
  }

 private:
  void fail() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    std::ofstream(fault_.mark) << std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    if (fault_.what == "throw") throw std::runtime_error("the model's own words");
    if (fault_.what == "exit") _exit(0);
    if (fault_.what == "grandchild" || fault_.what == "detach") start_grandchild();
    if (fault_.what == "kill" || fault_.what == "grandchild") raise(SIGKILL);
    if (fault_.what == "segfault") raise(SIGSEGV);
    if (fault_.what == "sleep") std::this_thread::sleep_for(std::chrono::duration<double>(fault_.seconds));
    while (fault_.what == "loop") std::this_thread::yield();
  }

  Fault fault_;
  bool hidden_;
  bool here_ = false;
  int64_t step_ = 0;
  Layer linear_;
};

class Faulty : public Model {
 public:
  Faulty(const Options& options, const Schema& schema)
      : fault_{options.text("fault"), options.integer("rank"), options.integer("block"),
               options.integer("at"), options.real("seconds"), options.text("mark")},
        in_(schema.at("features", "model faulty").shape.at(0)),
        out_(schema.at("target", "model faulty").cardinality) {}

  int64_t blocks() const override { return 2; }
  std::string block_name(int64_t index) const override { return index == 0 ? "hidden" : "output"; }
  BlockPtr block(int64_t index, Layers& layers) const override {
    return std::make_shared<FaultyBlock>(layers, index, index == 0 ? in_ : hidden, index == 0 ? hidden : out_, fault_);
  }
  TensorList inputs(const Batch& batch) const override { return {batch.at("features")}; }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    return {outputs[0], batch.at("target"), at::Tensor()};
  }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }

 private:
  static constexpr int64_t hidden = 16;
  Fault fault_;
  int64_t in_, out_;
};

}  // namespace

CONVOY_PLUGIN(registry) {
  Entry entry;
  entry.name = "faulty";
  entry.help = "a small classifier that fails on demand";
  entry.options = {
      describe::choice("fault", "what happens",
                       {"none", "throw", "exit", "kill", "segfault", "grandchild", "detach", "sleep", "loop", "nan"},
                       "none"),
      describe::integer("rank", "to which rank", 0).at_least(0),
      describe::integer("block", "in which block", 0).at_least(0).at_most(1),
      describe::integer("at", "in which step", 0).at_least(0),
      describe::real("seconds", "of sleep", 0.0).at_least(0),
      describe::text("mark", "file that gets the time of the fault", "/dev/null"),
  };
  registry.catalogues.kinds["model"].push_back(entry);
  registry.models.add(
      "faulty", [](const Options& options, const Schema& schema) { return std::make_shared<Faulty>(options, schema); });
}

}  // namespace convoy
