#include "strategies/common/model/model_part.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/init_from.h"
#include "core/data/rows.h"
#include "core/metrics/model_metrics.h"
#include "core/model.h"
#include "core/model_checks.h"
#include "core/optim/precision.h"
#include "core/ranking/item_ranking.h"
#include "core/ranking/pair_scorer.h"
#include "core/tensors/init.h"
#include "core/tensors/random.h"
#include "core/tensors/tensor_memory.h"

namespace convoy {
namespace {

bool exact_randomness(const RunConfig& config, at::Device device) {
  return config.randomness == "exact" || (config.randomness == "auto" && device.is_cpu());
}

std::vector<uint32_t> versions_of(const TensorList& tensors) {
  std::vector<uint32_t> versions;
  for (const at::Tensor& tensor : tensors) versions.push_back(tensor.defined() ? tensor._version() : 0);
  return versions;
}

const void* identity(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }
std::unordered_set<const void*> identities(const TensorList& tensors) {
  std::unordered_set<const void*> found;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) found.insert(identity(tensor));
  return found;
}

// Refuses changed inputs. A view and its base share a version counter, so changes through either are found.
void check_unchanged(const std::string& block, const TensorList& inputs, const std::vector<uint32_t>& before) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i]._version() == before[i]) continue;
    throw Error(Failure::config, "block ", block, " changes its input ", i, " ", inputs[i].sizes(),
                " in place, and its second forward would begin with the changed values; use operations "
                "that return a new tensor (relu, not relu_), or leave ",
                block, " out of strategy.recompute");
  }
}

}  // namespace

ModelPart::ModelPart(const Context& context, ModelPtr model, LossPtr loss, PartRequest request)
    : model_(std::move(model)),
      loss_(std::move(loss)),
      model_name_(context.config.model.name),
      loss_name_(context.config.loss.name.empty() ? model_->default_loss() : context.config.loss.name),
      begin_(request.begin),
      store_(std::make_shared<LayerStore>()),
      freeze_(frozen_names(context.config.model.options)),
      keep_dtypes_(request.keep_dtypes),
      times_(context.times),
      own_generators_(context.process_ranks == 1),
      autocast_(autocast_dtype(context.config.precision)),
      first_forward_(request.first_forward) {
  const int64_t end = request.end < 0 ? model_->blocks() : request.end;
  CONVOY_CHECK(0 <= begin_ && begin_ <= end && end <= model_->blocks(), "blocks [", begin_, ", ", end, ") of ",
               model_->blocks());
  store_->device = request.device.value_or(context.devices.front());
  store_->dtype = parameter_dtype(context.config.precision);
  store_->seed = context.config.seed;
  store_->counts = request.counts;
  store_->batch_norm = request.batch_norm;
  store_->rows = request.rows;
  store_->deferred = request.deferred;
  store_->state->seed = context.config.seed;
  store_->state->rank = context.rank;
  store_->state->exact = exact_randomness(context.config, store_->device);
  layers_ = request.layers ? request.layers(store_) : std::make_shared<DefaultLayers>(store_);
  check_recompute(request.recompute);
  for (int64_t index = begin_; index < end; ++index) {
    build_block(index);
    recomputes_.push_back(request.recompute.includes(model_->block_name(index)));
    if (recomputes_.back() && !own_generators_) check_recomputable(*blocks_.back(), model_->block_name(index));
  }
  // A table is dense if a later layer is tied to it.
  const auto dense =
      std::stable_partition(tables_.begin(), tables_.end(), [](const auto& one) { return one->table != nullptr; });
  parameters_.insert(parameters_.end(), dense, tables_.end());
  tables_.erase(dense, tables_.end());
  check_names();
}

// Layers keeps names unique, but a foreign module may use a layer's name.
void ModelPart::check_names() const {
  std::set<std::string> names;
  const auto add = [&](const std::string& name) {
    if (printable(name) != name)
      throw Error(Failure::config, "model: a tensor is named ", shown(name), "; a name has no control characters");
    if (!names.insert(name).second)
      throw Error(Failure::config, "model: two tensors are named ", name, "; give one of the modules another name");
  };
  for (const auto* list : {&parameters_, &tables_, &frozen_})
    for (const ParameterPtr& parameter : *list) add(parameter->name);
  for (const NamedBuffer& buffer : buffers_) add(buffer.name);
}

void ModelPart::check_recompute(const Recompute& recompute) const {
  std::vector<std::string> names;
  for (int64_t index = 0; index < model_->blocks(); ++index) names.push_back(model_->block_name(index));
  check_recomputed_names(recompute.names, names);
}

void ModelPart::build_block(int64_t index) {
  const std::string name = model_->block_name(index);
  const size_t before = parameters_.size();
  const size_t parameters = store_->parameters.size();
  const size_t buffers = store_->buffers.size();
  scopes_.push_back(layers_->scope(name));
  {
    SeededDefaultGenerator seeded(random_key(store_->seed, name, 0, 2));
    blocks_.push_back(model_->block(index, *scopes_.back()));
  }
  forward_notes_.emplace_back(convoy::str("block ", index, " (", name, "), forward"));
  if (blocks_.back() == nullptr)
    throw Error(Failure::config, "block ", index, " (", name, "): the model returned null for it");
  for (size_t i = parameters; i < store_->parameters.size(); ++i) add_parameter_of_layers(store_->parameters[i]);
  for (size_t i = buffers; i < store_->buffers.size(); ++i) buffers_.push_back(store_->buffers[i]);
  adopt_foreign(index);
  note_parameters(index, before);
}

void ModelPart::add_parameter_of_layers(const ParameterPtr& parameter) {
  if (!freeze_ || !freeze_->found_in(parameter->name)) {
    (parameter->table ? tables_ : parameters_).push_back(parameter);
    return;
  }
  // A data axis gives memory to trained parameters only, so a frozen one gets it here.
  if (parameter->initial) {
    at::NoGradGuard no_grad;
    const at::Tensor own = at::empty(parameter->value.sizes(), parameter->value.options());
    std::exchange(parameter->initial, nullptr)(own, 0);
    parameter->value.set_data(own);
  }
  parameter->value.set_requires_grad(false);
  frozen_.push_back(parameter);
}

void ModelPart::note_parameters(int64_t index, size_t before) {
  std::vector<ParameterPtr> used(parameters_.begin() + int64_t(before), parameters_.end());
  const std::vector<at::Tensor> registered = blocks_[size_t(index - begin_)]->parameters();
  const auto of_block = identities(registered);
  for (size_t i = 0; i < before; ++i)
    if (of_block.count(identity(parameters_[i]->value)) > 0) used.push_back(parameters_[i]);
  TensorList reached;
  for (const ParameterPtr& parameter : used) reached.push_back(parameter->value);
  // Copies of tensors of other parts are not in parameters_, but have gradients.
  for (const at::Tensor& tensor : registered) {
    const bool known =
        std::any_of(reached.begin(), reached.end(), [&](const auto& one) { return one.is_same(tensor); });
    if (tensor.defined() && tensor.requires_grad() && !known) reached.push_back(tensor);
  }
  block_tensors_.push_back(std::move(reached));
  block_parameters_.push_back(std::move(used));
}

// Adopts parameters and buffers of foreign modules. Their names are their paths in the block.
void ModelPart::adopt_foreign(int64_t index) {
  Block& block = *blocks_[size_t(index - begin_)];
  const std::string name = model_->block_name(index), prefix = name.empty() ? "" : name + ".";
  block.to(store_->device);
  // Foreign tensors are those of the block that are in no list. Each list is read only once: it may be long.
  auto foreign = identities(block.parameters());
  foreign.merge(identities(block.buffers()));
  for (const auto* list : {&parameters_, &tables_, &frozen_, &store_->followers})
    for (const ParameterPtr& parameter : *list) foreign.erase(identity(parameter->value));
  for (const NamedBuffer& buffer : buffers_) foreign.erase(identity(buffer.value));
  for (auto& entry : block.named_parameters()) {
    if (foreign.erase(identity(entry.value())) == 0) continue;
    auto parameter = std::make_shared<Parameter>();
    parameter->name = prefix + entry.key();
    parameter->value = entry.value();
    parameter->foreign = true;
    parameter->counted = store_->counts;
    const at::ScalarType dtype = keep_dtypes_ ? parameter->value.scalar_type() : store_->dtype;
    parameter->value.set_data(parameter->value.to(dtype).contiguous());
    if (freeze_ && freeze_->found_in(parameter->name)) parameter->value.set_requires_grad(false);
    (parameter->value.requires_grad() ? parameters_ : frozen_).push_back(parameter);
  }
  for (auto& entry : block.named_buffers()) {
    at::Tensor& buffer = entry.value();
    if (foreign.erase(identity(buffer)) == 0) continue;
    if (buffer.is_floating_point() && !keep_dtypes_) buffer.set_data(buffer.to(store_->dtype).contiguous());
    buffers_.push_back({prefix + entry.key(), buffer});
  }
}

void ModelPart::set_training(bool training) {
  store_->state->training = training;
  if (training == training_) return;
  training_ = training;
  for (const BlockPtr& block : blocks_) block->train(training);
}

Batch prepared(const Batch& batch, at::Device device, at::ScalarType dtype) {
  Batch moved = batch.to(device, true);
  for (auto& [name, tensor] : moved.tensors) {
    if (tensor.is_floating_point() && tensor.scalar_type() != dtype) tensor = tensor.to(dtype);
    if (name == "features" && tensor.scalar_type() == at::kByte) tensor = from_bytes(tensor, dtype);
  }
  return moved;
}

void ModelPart::set_rows(const Batch& batch) {
  store_->state->rows = batch.rows;
  store_->state->first_row = batch.first_row;
}

TensorList ModelPart::outputs_of(const Batch& batch, const TensorList& inputs) {
  AutocastScope autocast(store_->device, autocast_);
  TensorList values = inputs;
  if (first()) {
    try {
      values = model_->inputs(prepared(batch, device(), dtype()));
    } catch (...) {
      rethrow(convoy::str("model ", model_name_, ", its inputs"));
    }
  }
  const std::shared_ptr<BlockBoundaries>& boundaries = store_->boundaries;
  if (boundaries) boundaries->begin();
  for (size_t index = 0; index < blocks_.size(); ++index) {
    const int64_t number = begin_ + int64_t(index);
    const std::string name = model_->block_name(number);
    const CrashNote& note = forward_notes_[index];
    const CrashScope here(note);
    try {
      if (boundaries) values = boundaries->enter(name, std::move(values));
      values = run_block(index, values);
    } catch (...) {
      rethrow(note.text());
    }
  }
  if (boundaries) values = boundaries->leave(std::move(values));
  return boundary(blocks_.size(), values);
}

TensorList ModelPart::run_block(size_t index, const TensorList& inputs) {
  const TensorList values = boundary(index, inputs);
  if (hooks_ != nullptr) hooks_->before_forward(int64_t(index));
  const auto forward = [&] {
    return recomputes_[index] ? run_recomputed(index, values) : blocks_[index]->forward(values);
  };
  const int64_t from = times_->trace() != nullptr ? steady_nanoseconds() : 0;
  TensorList outputs = first_forward_ && training_ ? first_forward_(block_name(index), forward) : forward();
  check_outputs(outputs);
  if (TraceLog* const trace = times_->trace(); trace != nullptr && from > 0)
    trace->add({times_->lane(), block_name(index), "block", from, steady_nanoseconds()});
  if (hooks_ != nullptr) hooks_->after_forward(int64_t(index));
  return outputs;
}

TensorList ModelPart::run_recomputed(size_t index, const TensorList& inputs) {
  Block& block = *blocks_[index];
  if (!at::GradMode::is_enabled()) return block.forward(inputs);
  const auto first = [&](const TensorList& values) {
    const std::vector<uint32_t> versions = versions_of(values);
    TensorList outputs = block.forward(values);
    check_outputs(outputs);
    if (!at::GradMode::is_enabled()) check_unchanged(block_name(index), values, versions);  // it will run again
    // The cached casts of weights have no graph. A block that shares the weights would use them and get no gradient.
    if (autocast_) clear_autocast_cache();
    return outputs;
  };
  const auto again = [this, index,
                      moment = ForwardMoment(state(), device(), own_generators_)](const TensorList& values) {
    AutocastScope autocast(store_->device, autocast_);
    if (store_->boundaries) store_->boundaries->again(block_name(index));
    try {
      return moment.run(*blocks_[index], values);
    } catch (...) {
      rethrow(convoy::str("block ", begin_ + int64_t(index), " (", block_name(index), "), forward once more"));
    }
  };
  return recomputed(first, again, inputs, block_tensors_[index]);
}

TensorList ModelPart::boundary(size_t index, const TensorList& values) {
  if (hooks_ == nullptr) return values;
  return with_boundary(values, [this, index] { hooks_->backward_at(int64_t(index)); });
}

Loss ModelPart::loss_of(const TensorList& outputs, const Batch& batch) {
  Examples examples;
  try {
    examples = model_->examples(outputs, batch);
  } catch (...) {
    rethrow(convoy::str("model ", model_name_, ", its examples"));
  }
  try {
    check_examples(examples);
    examples = examples_of_new_items(std::move(examples), batch);
    if (autocast_) examples.prediction = examples.prediction.to(store_->dtype);
    Loss loss = checked_loss((*loss_)(examples, *layers_), *layers_);
    if (training_ && at::GradMode::is_enabled()) check_graph(loss, batch.rows);
    return loss;
  } catch (...) {
    rethrow(convoy::str("the loss ", loss_name_));
  }
}

TensorList ModelPart::forward(const Batch& batch, int64_t step, const TensorList& inputs) {
  store_->state->step = step;
  set_rows(batch);
  set_training(true);
  at::AutoGradMode with_graph(true);
  TensorList outputs = outputs_of(batch, inputs);
  first_forward_ = nullptr;
  return outputs;
}

Loss ModelPart::loss(const TensorList& outputs, const Batch& batch) {
  at::AutoGradMode with_graph(true);
  return loss_of(outputs, prepared(batch, device(), dtype()));
}

// Returns false if the memory of a block is freed after its backward (units of fsdp, checkpointed blocks): waiting
// products would keep it.
bool ModelPart::products_may_wait() const {
  return hooks_ == nullptr && std::find(recomputes_.begin(), recomputes_.end(), true) == recomputes_.end();
}

// Returns the limit of memory for waiting products: the bytes of the parameters and their gradients. The formulas for
// the part's memory include at least that much.
double ModelPart::waiting_bytes() const {
  double bytes = 0;
  for (const ParameterPtr& parameter : parameters_) bytes += 2 * double(parameter->value.nbytes());
  return bytes;
}

void ModelPart::backward(const Loss& loss, double nominal, const std::function<void()>& inputs_done) {
  at::NoGradGuard no_grad;
  at::Tensor seed = loss.sum.dim() == 0 ? at::scalar_tensor(1 / nominal, loss.sum.options().requires_grad(false))
                                        : at::full_like(loss.sum, 1 / nominal);
  const at::Tensor& scale = state()->loss_scale;
  if (scale.defined()) seed.mul_(scale.to(seed.options()).view(seed.sizes()));
  const Roots roots = roots_of({loss.sum});
  backward(roots, roots.empty() ? TensorList() : TensorList{seed}, inputs_done);
}

void ModelPart::backward(const Roots& roots, const TensorList& gradients, const std::function<void()>& inputs_done) {
  CONVOY_CHECK(roots.size() == gradients.size(), gradients.size(), " gradients for ", roots.size(), " outputs");
  const TimeBreakdown::Scope counted(*times_, TimePart::backward);
  if (hooks_ != nullptr) hooks_->begin_backward();
  WaitingProducts later;
  if (inputs_done && products_may_wait()) later.most = waiting_bytes();
  if (!roots.empty())
    collect([&] {
      state()->later = later.most > 0 ? &later : nullptr;
      torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                            /*create_graph=*/false, /*accumulate_grad=*/true);
    });
  if (inputs_done) inputs_done();
  collect([&] {
    at::NoGradGuard no_grad;
    for (std::function<void()>& product : later.list) {
      product();
      product = nullptr;  // frees its operands
    }
  });
  if (hooks_ != nullptr) hooks_->end_backward();
}

// Runs `work` as backward of the strategy: gradients go to Parameter::gradient, and exceptions name the backward.
void ModelPart::collect(const std::function<void()>& work) {
  const auto end = [this] {
    state()->collecting = false;
    state()->later = nullptr;
  };
  state()->collecting = true;
  try {
    work();
  } catch (...) {
    end();
    rethrow("backward");
  }
  end();
}

void ModelPart::pass_over() {
  if (hooks_ == nullptr) return;
  at::AutoGradMode with_graph(true);
  for (size_t index = 0; index < blocks_.size(); ++index) {
    hooks_->before_forward(int64_t(index));
    hooks_->after_forward(int64_t(index));
  }
}

TensorList ModelPart::evaluate(const Batch& batch, const TensorList& inputs) {
  at::NoGradGuard no_grad;
  set_rows(batch);
  set_training(false);
  if (TensorList ranked = ranked_outputs(batch); !ranked.empty()) return ranked;
  return outputs_of(batch, inputs);
}

// Null if the model has no scorer, or if blocks do more than a forward: hooks may gather weights.
std::shared_ptr<PairScorer> ModelPart::model_scorer() const {
  const bool plain = hooks_ == nullptr && !store_->boundaries && first() && last() && !autocast_ && device().is_cpu();
  return plain ? model_->pair_scorer(blocks_) : nullptr;
}

// Returns the outputs for a batch that ranks all items, without a forward for each pair of a row and an item. Returns
// none without a scorer.
TensorList ModelPart::ranked_outputs(const Batch& batch) {
  if (batch.find("excluded") == nullptr) return {};
  try {
    const std::shared_ptr<PairScorer> scorer = model_scorer();
    if (!scorer) return {};
    const at::Tensor scores = full_ranking_scores(*scorer, prepared(batch, device(), dtype()));
    return scores.defined() ? TensorList{scores} : TensorList();
  } catch (...) {
    rethrow(convoy::str("model ", model_name_, ", its scores of all items"));
  }
}

std::shared_ptr<PairScorer> ModelPart::pair_scorer() {
  CONVOY_CHECK(first() && last(), "scores of a part of a model");
  set_training(false);
  if (std::shared_ptr<PairScorer> scorer = model_scorer()) return scorer;
  const at::ScalarType scores = dtype() == at::kDouble ? at::kDouble : at::kFloat;
  return std::make_shared<ForwardScorer>([this](const Batch& batch) { return evaluate(batch); }, scores);
}

std::vector<Metric> ModelPart::metrics(const TensorList& outputs, const Batch& batch) {
  at::NoGradGuard no_grad;
  const Batch ready = prepared(batch, device(), dtype());
  std::vector<Metric> metrics{loss_metric(loss_of(outputs, ready))};
  try {
    const TensorList scores = scores_of_new_items(outputs, ready);
    for (Metric& metric : checked_metrics(model_->metrics(scores, ready, *layers_), *layers_))
      metrics.push_back(std::move(metric));
  } catch (...) {
    rethrow(convoy::str("model ", model_name_, ", its metrics"));
  }
  return metrics;
}

void ModelPart::rethrow(const std::string& where) const {
  const std::string prefix =
      convoy::str(where, training_ ? convoy::str(", step ", store_->state->step) : ", evaluation", ": ");
  if (const std::string lack = out_of_memory_text(); !lack.empty()) throw Error(Failure::out_of_memory, prefix + lack);
  try {
    throw;
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.kind(), prefix + error.what());
  } catch (const c10::Error& error) {
    throw Error(Failure::training, prefix + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Error(Failure::training, prefix + error.what());
  } catch (...) {
    throw Error(Failure::training, prefix + "an exception that is no std::exception");
  }
}

Roots roots_of(const TensorList& outputs) {
  Roots roots;
  for (const at::Tensor& output : outputs)
    if (output.requires_grad()) roots.push_back(torch::autograd::impl::gradient_edge(output));
  return roots;
}

Metric loss_metric(const Loss& loss) { return {"loss", in_double(loss.sum), in_double(loss.weight), true}; }

void add_metric(std::vector<Metric>& metrics, Metric metric) {
  for (Metric& known : metrics) {
    if (known.name != metric.name) continue;
    known.sum = known.sum + metric.sum;
    known.weight = known.weight + metric.weight;
    return;
  }
  metrics.push_back(std::move(metric));
}

}  // namespace convoy
