#include "strategies/common/model/model_trials.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <memory>
#include <set>

#include "core/communicator.h"
#include "core/model.h"
#include "strategies/common/model/model_part.h"

namespace convoy {
namespace {

struct Trace {
  std::vector<TracedLayer> layers;
  std::set<std::string> known;

  void add(const std::string& name, const at::Tensor& input, const at::Tensor& output) {
    if (known.insert(name).second) layers.push_back({name, input.detach(), output.detach()});
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
  Context context;
  context.config = config;
  context.world = make_single_communicator();
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
    for (const ParameterPtr& parameter : part.parameters()) parameter->gradient = at::zeros_like(parameter->value);
  }
  GradientCollector collector(part.parameters(), part.state(), [](int) {});
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

}  // namespace convoy
