#include "strategies/common/model/model_probes.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "core/communicator.h"
#include "core/model.h"
#include "strategies/common/model/model_part.h"

namespace convoy {

Context probe_context(const RunConfig& config) {
  Context context;
  context.config = config;
  context.world = make_single_communicator();
  return context;
}

GradientCollector probe_collector(const ModelPart& part) {
  for (const ParameterPtr& parameter : part.parameters()) parameter->gradient = at::zeros_like(parameter->value);
  return GradientCollector(part.parameters(), part.state(), [](int) {});
}

namespace {

struct Trace {
  std::vector<TracedLayer> layers;
  std::set<std::string> known;

  void add(const std::string& name, const at::Tensor& input, const at::Tensor& output) {
    // Copies: a model may change a fresh output in place, as with a relu.
    if (known.insert(name).second) layers.push_back({name, input.detach().clone(), output.detach().clone()});
  }
};
using TracePtr = std::shared_ptr<Trace>;

struct ObservedLayer : LayerModule {
  ObservedLayer(Layer inner, std::string name, TracePtr trace)
      : inner_(register_module("inner", std::move(inner))), name_(std::move(name)), trace_(std::move(trace)) {}
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor output = inner_->forward(input);
    trace_->add(name_, input, output);
    return output;
  }

 private:
  Layer inner_;
  std::string name_;
  TracePtr trace_;
};

struct SameOutput : LayerModule {
  at::Tensor forward(const at::Tensor& input) override { return input; }
};

class ObservedLayers : public DefaultLayers {
 public:
  ObservedLayers(std::shared_ptr<LayerStore> store, TracePtr trace, const std::string& prefix = "")
      : DefaultLayers(std::move(store), prefix), trace_(std::move(trace)) {}

  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<ObservedLayers>(store_, trace_, DefaultLayers::name(name) + ".");
  }
  Layer linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) override {
    return observed(name, DefaultLayers::linear(name, in, out, options));
  }
  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override {
    EmbeddingOptions dense = options;
    dense.rows = EmbeddingOptions::Rows::dense;
    return observed(name, DefaultLayers::embedding(name, rows, dim, dense));
  }
  Layer conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel,
               const Conv2dOptions& options) override {
    return observed(name, DefaultLayers::conv2d(name, in, out, kernel, options));
  }
  Layer layer_norm(const std::string& name, int64_t dim, double eps) override {
    return observed(name, DefaultLayers::layer_norm(name, dim, eps));
  }
  Layer rms_norm(const std::string& name, int64_t dim, double eps) override {
    return observed(name, DefaultLayers::rms_norm(name, dim, eps));
  }
  Layer batch_norm(const std::string& name, int64_t channels, double eps, double momentum) override {
    return observed(name, DefaultLayers::batch_norm(name, channels, eps, momentum));
  }
  Layer dropout(const std::string&, double) override { return std::make_shared<SameOutput>(); }

 private:
  Layer observed(const std::string& layer, Layer inner) {
    return std::make_shared<ObservedLayer>(std::move(inner), DefaultLayers::name(layer), trace_);
  }
  TracePtr trace_;
};

}  // namespace

TracedStep traced_step(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Batch& batch,
                       const std::function<void(const std::string& name, const at::Tensor& value)>& set_values) {
  const Context context = probe_context(config);
  const auto trace = std::make_shared<Trace>();
  PartRequest request;
  request.layers = [trace](std::shared_ptr<LayerStore> store) {
    return std::make_shared<ObservedLayers>(std::move(store), trace);
  };
  ModelPart part(context, model, std::move(loss), std::move(request));
  {
    at::NoGradGuard no_grad;
    for (const auto* list : {&part.parameters(), &part.frozen()})
      for (const ParameterPtr& parameter : *list) set_values(parameter->name, parameter->value.detach());
    for (const NamedBuffer& buffer : part.buffers()) set_values(buffer.name, buffer.value.detach());
  }
  GradientCollector collector = probe_collector(part);
  collector.begin();
  const Batch given = prepared(batch, context.devices.front(), part.dtype());
  const Loss value = part.loss(part.forward(given, 0), given);
  const double weight = value.weight.item<double>();
  TracedStep step;
  step.loss = value.sum.item<double>() / weight;
  part.backward(value, weight);
  collector.finish();
  step.layers = trace->layers;
  for (const ParameterPtr& parameter : part.parameters())
    step.gradients.emplace_back(parameter->name, parameter->gradient.detach());
  return step;
}

namespace {

// Far above rounding errors, and far below the error of a mean instead of a sum.
constexpr double tolerance = 1e-3;

struct LossSums {
  double sum = 0, weight = 0;
};

LossSums sums_of(const Loss& loss) {
  return {loss.sum.detach().to(at::kDouble).sum().item<double>(), loss.weight.to(at::kDouble).sum().item<double>()};
}

// A block or a loss may change its input in place, and slices of a batch share memory.
Batch copied(Batch batch) {
  for (auto& entry : batch.tensors) entry.second = entry.second.clone();
  return batch;
}

LossSums loss_sums_of(ModelPart& part, const Batch& given) {
  const Batch batch = copied(given);
  return sums_of(part.loss(part.evaluate(batch), batch));
}

// Loss of rows [begin, end), from the outputs of all rows.
LossSums loss_sums_of(ModelPart& part, const TensorList& outputs, const Batch& batch, int64_t begin, int64_t end) {
  TensorList rows;
  for (const at::Tensor& output : outputs) {
    if (output.dim() == 0 || output.size(0) != batch.rows) throw Error(Failure::training, "an output has no rows");
    rows.push_back(output.slice(0, begin, end).clone());
  }
  return sums_of(part.loss(rows, copied(batch.slice(begin, end))));
}

bool equal(double a, double b) { return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b)); }

std::string text_of(const LossSums& sums) { return convoy::str(sums.sum, " with weight ", sums.weight); }

}  // namespace

std::string loss_fault(const Context& context, const ModelPtr& model, const LossPtr& loss, const Batch& batch,
                       bool splits) {
  const int64_t cut = batch.rows / 3 + 1;
  if (cut >= batch.rows) return "";
  LossSums whole, first, second;
  try {
    ModelPart part(context, model, loss);
    if (splits) {
      whole = loss_sums_of(part, batch);
      first = loss_sums_of(part, batch.slice(0, cut));
      second = loss_sums_of(part, batch.slice(cut, batch.rows));
    } else {
      const Batch evaluated = copied(batch);
      const TensorList outputs = part.evaluate(evaluated);
      whole = loss_sums_of(part, outputs, evaluated, 0, batch.rows);
      first = loss_sums_of(part, outputs, evaluated, 0, cut);
      second = loss_sums_of(part, outputs, evaluated, cut, batch.rows);
    }
  } catch (const std::exception&) {
    return "";  // training reports the error
  }
  const bool weights = equal(whole.weight, first.weight + second.weight);
  if (weights && (equal(whole.sum, first.sum + second.sum) || !std::isfinite(whole.sum))) return "";
  return convoy::str("the loss is no sum over rows: ", batch.rows, " rows give ", text_of(whole), ", their first ", cut,
                     " give ", text_of(first), " and the other ", batch.rows - cut, " ", text_of(second),
                     "; a loss returns the sum over rows and their total weight, never a mean",
                     weights && splits ? ", and no block may mix rows in evaluation" : "");
}

std::vector<std::string> metric_names(const RunConfig& config, const ModelPtr& model, LossPtr loss,
                                      const Batch& batch) {
  at::NoGradGuard no_grad;
  const Context context = probe_context(config);
  ModelPart part(context, model, std::move(loss));
  std::vector<std::string> names;
  for (const Metric& metric : part.metrics(part.evaluate(batch), batch)) names.push_back(metric.name);
  return names;
}

}  // namespace convoy
