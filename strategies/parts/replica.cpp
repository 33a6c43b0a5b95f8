#include "strategies/parts/replica.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>
#include <new>

#include "core/error.h"
#include "core/random.h"
#include "strategies/parts/precision.h"

namespace convoy {
namespace {

// A block that makes its own torch modules draws their values from LibTorch's default generator, of which a process has
// one: seeded by the block's name, and kept from other rank threads meanwhile, it gives every layout the same values.
class SeededDefaultGenerator {
 public:
  explicit SeededDefaultGenerator(uint64_t key) : lock_(mutex()) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_current_seed(key);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  std::lock_guard<std::mutex> lock_;
};

bool exact_randomness(const RunConfig& config, at::Device device) {
  return config.randomness == "exact" || (config.randomness == "auto" && device.is_cpu());
}

}  // namespace

Replica::Replica(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss)
    : model_(std::move(model)),
      loss_(std::move(loss)),
      store_(std::make_shared<LayerStore>()),
      autocast_(autocast_dtype(context.config.precision)) {
  store_->device = context.devices.front();
  store_->dtype = parameter_dtype(context.config.precision);
  store_->seed = context.config.seed;
  store_->state->seed = context.config.seed;
  store_->state->rank = context.rank;
  store_->state->exact = exact_randomness(context.config, store_->device);
  layers_ = std::make_shared<PlainLayers>(store_);
  for (int64_t index = 0; index < model_->blocks(); ++index) build_block(index);
}

void Replica::build_block(int64_t index) {
  const std::string name = model_->block_name(index);
  const size_t parameters = store_->parameters.size();
  const size_t buffers = store_->buffers.size();
  scopes_.push_back(layers_->scope(name));
  {
    SeededDefaultGenerator seeded(random_key(store_->seed, name, 0, 2));
    blocks_.push_back(model_->block(index, *scopes_.back()));
  }
  CONVOY_CHECK(blocks_.back() != nullptr, "the model gave no block ", index);
  for (size_t i = parameters; i < store_->parameters.size(); ++i) parameters_.push_back(store_->parameters[i]);
  for (size_t i = buffers; i < store_->buffers.size(); ++i) buffers_.push_back(store_->buffers[i]);
  adopt_foreign(index);
}

// Parameters and buffers of modules that the block made itself: named by their path in the block.
void Replica::adopt_foreign(int64_t index) {
  Block& block = *blocks_[static_cast<size_t>(index)];
  const std::string prefix = model_->block_name(index) + ".";
  const auto known = [&](const at::Tensor& tensor) {
    for (const ParameterPtr& parameter : parameters_)
      if (parameter->value.is_same(tensor)) return true;
    for (const NamedBuffer& buffer : buffers_)
      if (buffer.value.is_same(tensor)) return true;
    return false;
  };
  block.to(store_->device);
  for (auto& entry : block.named_parameters()) {
    if (!entry.value().defined() || known(entry.value())) continue;
    auto parameter = std::make_shared<Parameter>();
    parameter->name = prefix + entry.key();
    parameter->value = entry.value();
    parameter->foreign = true;
    parameter->value.set_data(parameter->value.to(store_->dtype).contiguous());
    (parameter->value.requires_grad() ? parameters_ : frozen_).push_back(parameter);
  }
  for (auto& entry : block.named_buffers()) {
    at::Tensor& buffer = entry.value();
    if (!buffer.defined() || known(buffer)) continue;
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(store_->dtype).contiguous());
    buffers_.push_back({prefix + entry.key(), buffer});
  }
}

void Replica::set_training(bool training) {
  store_->state->training = training;
  if (training == training_) return;
  training_ = training;
  for (const BlockPtr& block : blocks_) block->train(training);
}

Batch Replica::prepared(const Batch& batch) const {
  Batch moved = batch.to(store_->device, true);
  for (auto& entry : moved.tensors) {
    if (entry.second.is_floating_point()) entry.second = entry.second.to(store_->dtype);
  }
  return moved;
}

TensorList Replica::outputs_of(const Batch& batch) {
  AutocastScope autocast(store_->device, autocast_);
  TensorList values;
  try {
    values = model_->inputs(batch);
  } catch (...) {
    rethrow("the model's inputs");
  }
  for (size_t index = 0; index < blocks_.size(); ++index) {
    try {
      values = blocks_[index]->forward(values);
    } catch (...) {
      const auto number = static_cast<int64_t>(index);
      rethrow(convoy::str("block ", number, " (", model_->block_name(number), "), forward"));
    }
  }
  return values;
}

Loss Replica::loss_of(const TensorList& outputs, const Batch& batch) {
  try {
    Examples examples = model_->examples(outputs, batch);
    if (autocast_) examples.prediction = examples.prediction.to(store_->dtype);
    return (*loss_)(examples, *layers_);
  } catch (...) {
    rethrow("the loss");
  }
}

Loss Replica::forward(const Batch& batch, int64_t step) {
  ForwardState& state = *store_->state;
  state.step = step;
  state.rows = batch.rows;
  state.first_row = batch.first_row;
  set_training(true);
  at::AutoGradMode with_graph(true);
  const Batch ready = prepared(batch);
  return loss_of(outputs_of(ready), ready);
}

void Replica::backward(const Loss& loss, double nominal) {
  if (!loss.sum.requires_grad()) return;  // nothing that is trained took part
  store_->state->collecting = true;
  try {
    torch::autograd::backward({loss.sum}, {at::full_like(loss.sum, 1 / nominal)});
  } catch (...) {
    store_->state->collecting = false;
    rethrow("backward");
  }
  store_->state->collecting = false;
}

std::vector<Metric> Replica::evaluate(const Batch& batch) {
  at::NoGradGuard no_grad;
  ForwardState& state = *store_->state;
  state.rows = batch.rows;
  state.first_row = batch.first_row;
  set_training(false);
  const Batch ready = prepared(batch);
  const TensorList outputs = outputs_of(ready);
  std::vector<Metric> metrics{loss_metric(loss_of(outputs, ready))};
  try {
    for (Metric& metric : model_->metrics(outputs, ready, *layers_)) metrics.push_back(std::move(metric));
  } catch (...) {
    rethrow("the model's metrics");
  }
  return metrics;
}

void Replica::rethrow(const std::string& where) const {
  const std::string place =
      convoy::str(where, training_ ? convoy::str(", step ", store_->state->step) : ", evaluation", ": ");
  try {
    throw;
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.kind(), place + error.what());
  } catch (const std::bad_alloc&) {
    throw Error(Failure::out_of_memory, place + "out of memory on the host; try a smaller train.batch");
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(Failure::out_of_memory,
                convoy::str(place, error.what_without_backtrace(), "; try a smaller train.batch"));
  } catch (const c10::Error& error) {
    throw Error(Failure::training, place + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Error(Failure::training, place + error.what());
  }
}

Metric loss_metric(const Loss& loss) {
  return {"loss", loss.sum.detach().to(at::kDouble), loss.weight.to(at::kDouble), true};
}

}  // namespace convoy
