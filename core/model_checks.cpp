#include "core/model_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>
#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <limits>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/random_keys.h"
#include "core/base/text.h"
#include "core/control/channel.h"
#include "core/rank_state/position.h"

namespace convoy {
namespace {

constexpr size_t longest_name = 64;
constexpr char held_out_prefix[] = "out_of_fold_";

[[noreturn]] void refuse(const std::string& reason) { throw Error(Failure::training, reason); }

// Checks for shape [] or [members] and real numbers; `floating`: integers are refused.
void check_number(const std::string& what, const at::Tensor& value, int64_t members, bool floating) {
  if (!value.defined()) refuse(what + " is undefined");
  const bool fits = members > 0 ? value.dim() == 1 && value.size(0) == members : value.dim() == 0;
  if (!fits)
    refuse(convoy::str(what, " has shape ", value.sizes(), " and must have ",
                       members > 0 ? convoy::str("[", members, "], one number for each member")
                                   : std::string("[], one number: sum over rows, and over all else")));
  const at::ScalarType dtype = value.scalar_type();
  if (at::isFloatingType(dtype) || (!floating && at::isIntegralType(dtype, /*includeBool=*/false))) return;
  refuse(convoy::str(what, " is of ", dtype, " and must be of ", floating ? "floating-point" : "real", " numbers"));
}

// Counts of items: [items] or [members, items].
void check_counts(const Metric& metric, int64_t members) {
  const int64_t dims = members > 0 ? 2 : 1;
  if (!metric.sum.defined() || metric.sum.dim() != dims || (members > 0 && metric.sum.size(0) != members))
    refuse(convoy::str("metric '", metric.name, "': its counts are ",
                       metric.sum.defined() ? convoy::str("of shape ", metric.sum.sizes()) : "undefined", ", not ",
                       members > 0 ? convoy::str("[", members, ", items]") : "[items]"));
}

void check_name(const std::string& name) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string("_-.@/+%:").find(static_cast<char>(c)) != std::string::npos;
  };
  if (name.empty()) refuse("a metric has no name");
  if (name.size() > longest_name) refuse(convoy::str("a metric's name has more than ", longest_name, " characters"));
  if (!std::all_of(name.begin(), name.end(), allowed))
    refuse(convoy::str("metric ", shown(name), ": a name has letters, digits and _ - . @ / + % : only"));
  if (name == "loss") refuse("metric 'loss': that name is the loss's own; choose another");
  if (name.rfind(held_out_prefix, 0) == 0)
    refuse(convoy::str("metric '", name, "': names with ", held_out_prefix, " are for rows that folds hold out"));
}

}  // namespace

void check_outputs(const TensorList& outputs) {
  if (outputs.empty()) refuse("returned no tensor; a block returns at least one");
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].defined()) refuse(convoy::str("returned an undefined tensor as output ", i));
}

void check_examples(const Examples& examples) {
  if (!examples.prediction.defined()) refuse("the prediction is undefined (Model::examples)");
}

Loss checked_loss(Loss loss, const Layers& layers) {
  check_number("its sum", loss.sum, layers.members(), true);
  check_number("its weight", loss.weight, layers.members(), false);
  if (loss.weight.requires_grad()) loss.weight = loss.weight.detach();
  if (loss.weight.device() != loss.sum.device()) loss.weight = loss.weight.to(loss.sum.device());
  return loss;
}

void check_graph(const Loss& loss, int64_t rows) {
  if (loss.sum.requires_grad() || rows == 0) return;
  if (loss.weight.count_nonzero().item<int64_t>() == 0) return;  // nothing is counted, as if no row qualifies
  refuse(
      "it has no graph, so nothing would be trained: no trained parameter takes part in it. Look for detach(), a "
      "NoGradGuard, or a number that item() took from a tensor; or are all parameters frozen?");
}

std::vector<Metric> checked_metrics(std::vector<Metric> metrics, const Layers& layers) {
  const auto options = at::TensorOptions(at::kDouble).device(layers.device());
  for (size_t i = 0; i < metrics.size(); ++i) {
    Metric& metric = metrics[i];
    check_name(metric.name);
    for (size_t j = 0; j < i; ++j)
      if (metrics[j].name == metric.name) refuse(convoy::str("metric '", metric.name, "' is given twice"));
    if (metric.form == Metric::Form::ratio)
      check_number(convoy::str("metric '", metric.name, "': its sum"), metric.sum, layers.members(), false);
    else
      check_counts(metric, layers.members());
    check_number(convoy::str("metric '", metric.name, "': its weight"), metric.weight, layers.members(), false);
    metric.sum = metric.sum.detach().to(options);
    metric.weight = metric.weight.detach().to(options);
  }
  return metrics;
}

void LossCheck::check_finite(const StepResult& result, int64_t step) {
  const at::Tensor& loss = result.metrics.front().sum;
  unchecked_.losses.emplace_back(step, result.updated ? loss : loss.clone());
  if (!result.updated) return;
  unchecked_.finite = result.finite;
  Unchecked update = std::exchange(unchecked_, {});
  if (!update.finite.defined()) return;
  // On CUDA, read the flag of the previous update, so that the host does not wait for the current step.
  if (update.finite.is_cuda()) {
    std::swap(update, pending_);
    if (!update.finite.defined()) return;
  }
  // Read a CPU flag directly: small models make thousands of steps per second.
  const at::Tensor& flag = update.finite;
  const bool finite = flag.is_cpu() && flag.numel() == 1 ? *flag.const_data_ptr<bool>() : flag.all().item<bool>();
  if (!finite) end_not_finite(update, step);
}

namespace {

std::string line_or_none(const std::vector<std::string>& lines, size_t index) {
  return index < lines.size() ? lines[index] : "no parameter";
}

using Names = std::set<std::string>;

Names names_in(const std::vector<std::string>& answers) {
  Names names;
  for (const std::string& answer : answers)
    for (const Json& name : Json::parse(answer)) names.insert(name.get<std::string>());
  return names;
}

void warn_without_gradient(const Names& missing) {
  constexpr size_t most = 10;
  if (missing.empty()) return;
  std::vector<std::string> shown(missing.begin(), missing.end());
  if (shown.size() > most) {
    shown.resize(most);
    shown.push_back(str("and ", missing.size() - most, " more"));
  }
  log::warning(str("no gradient for ", missing.size(), missing.size() == 1 ? " parameter" : " parameters",
                   " in the first update: ", join(shown, ", "),
                   ". The loss does not depend on them: does forward use them, and is nothing detached in between? "
                   "If a model uses them only at times, ignore this warning"));
}

}  // namespace

void check_equal_lines(const std::string& axis, const Context& context, const std::vector<std::string>& lines,
                       const std::string& call, const std::string& advice) {
  const std::vector<int> group = context.mesh.group(context.rank, axis);
  const auto size = static_cast<int>(group.size());
  if (size == 1) return;
  const std::string text = Json(lines).dump();
  const int index = context.mesh.coordinate(context.rank, axis);
  const std::string key = str(call, "/", axis, "/", group.front());
  const auto timeout = timeout_of(context.config.launch.rendezvous);
  const std::string digest = str(text.size(), "/", random_key(0, text));
  const auto digests = context.channel->agree(key + "/digest", index, size, digest, timeout);
  if (std::all_of(digests.begin(), digests.end(), [&](const std::string& other) { return other == digests.front(); }))
    return;
  // Every rank has seen every digest, so all of them reach this call.
  const auto texts = context.channel->agree(key + "/list", index, size, text, timeout);
  const auto first = Json::parse(texts.front()).get<std::vector<std::string>>();
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const auto other = Json::parse(texts[rank]).get<std::vector<std::string>>();
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      if (line_or_none(first, i) == line_or_none(other, i)) continue;
      throw Error(Failure::disagreement, "ranks have different models: parameter ", i, " is ", line_or_none(first, i),
                  " on rank ", group.front(), " and ", line_or_none(other, i), " on rank ", group[rank], "; ", advice);
    }
  }
  throw Error(Failure::disagreement, "ranks have different models, and their lists of parameters are equal");
}

void warn_without_gradient(const std::shared_ptr<Channel>& channel, int rank, int size, const Names& missing,
                           const Names& reached) {
  if (size == 1) return warn_without_gradient(missing);
  SupervisedChannel* const supervised = channel->supervised();
  if (supervised == nullptr) return;
  // Two rounds. The first finds the parameters that lack a gradient on some rank. If there are any, the second finds
  // out which of them have a gradient on another rank.
  const auto compare = [weak = std::weak_ptr<Channel>(channel), rank, size,
                        reached](const std::vector<std::string>& answers) {
    const Names asked = names_in(answers);
    const std::shared_ptr<Channel> alive = weak.lock();
    if (asked.empty() || !alive) return;
    Json mine = Json::array();
    for (const std::string& name : asked)
      if (reached.count(name) != 0) mine.push_back(name);
    alive->supervised()->agree_later("existing gradients", rank, size, mine.dump(),
                                     [asked, rank](const std::vector<std::string>& later) {
                                       Names left = asked;
                                       for (const std::string& name : names_in(later)) left.erase(name);
                                       if (rank == 0) warn_without_gradient(left);
                                     });
  };
  supervised->agree_later("missing gradients", rank, size, Json(missing).dump(), compare);
}

std::string divergence_advice(const RunConfig& config) {
  return config.program.empty()
             ? "Try a smaller optimizer.lr, optimizer.clip_norm, or look at the data of that step"
             : "Try a smaller learning rate of the optimizer, clip_norm of ReplicaOptions or ShardOptions, or look at "
               "the data of that step";
}

void LossCheck::end_not_finite(const Unchecked& update, int64_t step) {
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  int64_t first = never;
  for (const auto& [number, loss] : update.losses)
    if (first == never && !at::isfinite(loss).all().item<bool>()) first = number;
  const std::vector<std::string> first_steps =
      context_.channel->agree(str("nonfinite/", step), context_.rank, context_.size, std::to_string(first),
                              timeout_of(context_.config.launch.rendezvous));
  int failing_rank = -1;
  int64_t when = never;
  for (size_t rank = 0; rank < first_steps.size(); ++rank) {
    const int64_t vote = std::stoll(first_steps[rank]);
    if (vote >= when) continue;
    when = vote;
    failing_rank = static_cast<int>(rank);
  }
  if (failing_rank < 0) when = update.losses.back().first;
  context_.state->step(when);  // the failure is reported at that step
  const std::string what = failing_rank < 0 ? "a gradient is not finite though every rank's loss is"
                                            : str("the loss of rank ", failing_rank, " is not finite");
  const std::string message = str(what, " at step ", when, "; the update was not applied and nothing was saved. ",
                                  divergence_advice(context_.config));
  if (failing_rank == context_.rank) throw Error(Failure::training, message);
  // A summed gradient does not show which rank it came from.
  if (failing_rank < 0 && context_.rank == 0) throw CommError(Failure::training, -1, message);
  throw CommError(Failure::peer_lost, failing_rank, message);
}

void LossCheck::check_weight(const MetricValue& loss, int64_t epoch, bool ends) {
  weighted_ = weighted_ || loss.weight != 0;
  const bool negative = loss.negative_weight < 0;
  if (!negative && (!ends || std::exchange(weighted_, false))) return;
  const RunConfig& config = context_.config;
  const std::string name =
      config.loss.name.empty() ? "the loss of model " + config.model.name : "the loss " + config.loss.name;
  const std::string message =
      negative ? str(name, " has batches with a weight below 0 in epoch ", epoch, ", ", loss.negative_weight,
                     " together: such a batch trains away from the targets; return the number of rows, or the sum of "
                     "their weights, as weight, and give data with weights of at least 0 (data.weight, "
                     "data.columns.weight)")
               : str(name, " had the weight 0 in every batch of epoch ", epoch,
                     ": nothing was trained; give data with weights above 0 (data.weight, data.columns.weight), do "
                     "not ignore all targets (loss.ignore), or return a weight above 0");
  if (context_.rank == 0) throw Error(Failure::config, message);
  throw CommError(Failure::peer_lost, 0, message);
}

namespace {

class BatchNormWatch;
thread_local BatchNormWatch* watch_of_thread = nullptr;  // for callbacks, which are functions without an object

constexpr const char* batch_norms[] = {"aten::batch_norm", "aten::native_batch_norm", "aten::_native_batch_norm_legit",
                                       "aten::cudnn_batch_norm", "aten::miopen_batch_norm"};
constexpr const char* instance_norm = "aten::instance_norm";

bool is(const char* name, const char* other) { return std::strcmp(name, other) == 0; }

// The first bool among the inputs, `training` or `use_input_stats`: true if the call uses statistics of the rows.
bool uses_rows(at::ArrayRef<const c10::IValue> inputs) {
  const auto flag = std::find_if(inputs.begin(), inputs.end(), [](const c10::IValue& value) { return value.isBool(); });
  return flag != inputs.end() && flag->toBool();
}

// True if the layer has running statistics. The inputs are input, weight, bias, running_mean, …
bool tracks(at::ArrayRef<const c10::IValue> inputs) {
  return inputs.size() > 3 && inputs[3].isTensor() && inputs[3].toTensor().defined();
}

// Watches the calls of the thread that created it, until it is destroyed. A thread has at most one.
class BatchNormWatch {
 public:
  BatchNormWatch();
  ~BatchNormWatch();
  BatchNormWatch(const BatchNormWatch&) = delete;
  BatchNormWatch& operator=(const BatchNormWatch&) = delete;

  // Name of the first call found, as "aten::batch_norm"; null if there was none.
  const char* found() const { return found_; }

 private:
  struct Call;
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* call);

  at::CallbackHandle handle_;
  const char* found_ = nullptr;
  int instance_norms_ = 0;  // number of calls of instance_norm that the thread is in
};

struct BatchNormWatch::Call : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> BatchNormWatch::begin(const at::RecordFunction& function) {
  BatchNormWatch* const watch = watch_of_thread;
  const char* const name = function.name();
  const bool of_rows = is(name, instance_norm);
  const auto of_batch =
      std::find_if(std::begin(batch_norms), std::end(batch_norms), [&](const char* other) { return is(name, other); });
  if (watch == nullptr || !(of_rows || of_batch != std::end(batch_norms))) return nullptr;
  const bool counts = of_rows ? tracks(function.inputs()) : watch->instance_norms_ == 0;
  if (counts && watch->found_ == nullptr && uses_rows(function.inputs()))
    watch->found_ = of_rows ? instance_norm : *of_batch;
  if (!of_rows) return nullptr;
  ++watch->instance_norms_;
  return std::make_unique<Call>();
}

void BatchNormWatch::end(const at::RecordFunction&, at::ObserverContext* call) {
  if (call != nullptr && watch_of_thread != nullptr) --watch_of_thread->instance_norms_;
}

BatchNormWatch::BatchNormWatch() {
  watch_of_thread = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&begin, &end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

BatchNormWatch::~BatchNormWatch() {
  at::removeCallback(handle_);
  watch_of_thread = nullptr;
}

}  // namespace

TensorList refuse_local_batch_norm(const std::string& block, const std::function<TensorList()>& forward) {
  const BatchNormWatch watch;
  TensorList outputs = forward();
  if (watch.found() != nullptr)
    throw Error(Failure::config, "strategy.batch_norm is sync, and block ", block, " calls ", watch.found(),
                ", which takes its statistics from each rank's share; take the layer from Layers::batch_norm, or set "
                "batch_norm: local");
  return outputs;
}

}  // namespace convoy
