// Trains a model in several layouts on the same global batches and compares the results.
//
// A layout is a strategy with its options and a number of ranks, which run as threads over the backend `local`. The
// table of tests/equivalence is layouts × models × options; `single` is the reference.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/config/job_plan.h"
#include "core/context.h"
#include "core/model.h"
#include "core/strategy.h"

namespace convoy::testing {

struct Layout {
  std::string strategy = "single";
  std::string options;  // more keys of the strategy's section, as YAML flow: ", overlap: false"
  int ranks = 1;
};
std::string to_string(const Layout& layout);

// A model, its loss and a data set.
struct Subject {
  std::string name;
  std::function<ModelPtr()> model;
  std::shared_ptr<const LossFunction> loss;
  Batch data;
  std::string section = "{name: net}";  // section of the model in a configuration, for plans
};

constexpr int64_t subject_rows = 75;  // four global batches of 16 rows and a smaller one of 11

struct Training {
  std::string optimizer = "{name: adamw, lr: 3.0e-3, eps: 1.0e-5, weight_decay: 0.1}";
  std::string precision = "fp64";
  int64_t global_rows = 16;  // the last batch of an epoch has the remaining rows
  int64_t steps = 10;        // global batches
  // Each global batch is fed in this number of parts, one after another: the shares of a layout with as many ranks. The
  // reference needs it for layers whose results depend on the share (batch norm).
  int64_t parts = 1;
  bool epoch_flush = true;  // an epoch's last batch ends accumulation
  int64_t first = 0;        // global batch to begin with
  // Called on every rank's thread before each global batch; may save or load the strategy.
  std::function<void(const Context&, Strategy&, int64_t step)> before = {};
};

// The ranks' states, assembled to whole tensors. Keys are StateEntry::key().
struct Trajectory {
  std::map<std::string, at::Tensor> initial;
  std::map<std::string, at::Tensor> final;
  std::map<std::string, at::Tensor> gradients;  // gradients of the last update
  std::vector<double> losses;                   // per global batch, over all ranks: sum ÷ weight
  std::vector<double> norms;                    // norms of updates
  double evaluated = 0;                         // loss over the data set at the end
  int64_t bytes_sent = 0;                       // by rank 0 in the last step
};

// Throws the exception of the rank that failed first.
Trajectory train(const Layout& layout, const Subject& subject, const Training& training);

// Returns the worst error as core/tensors/compare.h defines it, and its key. Leaves out keys that begin with one of
// `ignored`. A tensor that is missing on one side, or has a different shape, fails the test.
struct Difference {
  double worst = 0;
  std::string key;
};
Difference difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b,
                      const std::vector<std::string>& ignored = {});
bool bitwise_equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b);

// Building blocks for tests that drive ranks themselves. `run` is called once per rank, each in a separate thread.
RunConfig test_config(const Layout& layout, const Training& training, const std::string& model = "{name: net}");
// Plans the ranks of a strategy on a host with enough cores.
JobPlan planned(const Layout& layout, const RunConfig& config);
// Returns the key at which the layout is refused before any rank starts: by its plan, or by the check of the model's
// blocks, as in `convoy`. Otherwise "nothing is refused".
std::string refused_key(const Layout& layout, const Subject& subject, const Training& training);
void with_ranks(const Layout& layout, const RunConfig& config, const std::function<void(const Context&)>& run);
std::unique_ptr<Strategy> make_strategy(const RunConfig& config);
std::map<std::string, at::Tensor> state_of(Strategy& strategy);  // for a rank that has everything
// Runs `body` on every rank with a strategy after setup. Returns the exception, as "key: message" for a configuration
// and "kind: message" for all others; "no error".
std::string run(const Layout& layout, const Subject& subject,
                const std::function<void(const Context&, Strategy&)>& body);
// Returns a rank's share of all of the subject's rows.
Batch share(const Subject& subject, const Sampling& sampling);

}  // namespace convoy::testing
