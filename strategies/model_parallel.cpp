// model_parallel: one rank with several devices. Each device has consecutive blocks of the model. Activations pass from
// one device to the next, gradients back.
//
// Replicated: nothing; on GPUs a parameter that is tied over devices. Sharded: blocks, over the devices of the rank.
// Sent to other ranks: nothing. Copied per step if devices have separate memory: R·b forward and R·b back, with R rows
// of a step and b bytes of a row at a boundary.
// Memory with P parameters of e bytes and k moments: P·e·(2 + k) over all devices, and the activations of live
// micro-batches: at most S − s of them at stage s of S.
// With one micro-batch a step the devices run one after the other. With m micro-batches each of d devices is idle for
// (d−1)/(m+d−1) of the time.
#include "core/strategy.h"

#include "strategies/common/memory/flat_parameters.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/common/step/gradient_collector.h"
#include "strategies/common/step/mesh_strategy.h"
#include "strategies/stages/runners.h"

namespace convoy {
namespace {

// LocalData: the DataAxis of a rank that shares its parameters with no other rank and has several devices. Gradients
// are complete when backward ends. Each device has one bucket, in the order in which parameters were made.
class LocalData : public DataAxis {
 public:
  // `every`: steps per update.
  LocalData(const Context& context, std::vector<ModelPart*> parts, int64_t every);

  void begin(bool first, bool updates) override;
  void add_loss(const Loss& loss) override;
  void last_backward(int) override {}
  void keep() override {}
  UpdateStatistics update(double nominal, bool log_step) override;
  void flush() override {}
  void visit_state(const StateVisitor& visit) override;
  void visit_gradients(const StateVisitor& visit) override { convoy::visit_gradients(*flat_, update_, {}, visit); }

 private:
  std::unique_ptr<FlatParameters> flat_;
};

LocalData::LocalData(const Context& context, std::vector<ModelPart*> parts, int64_t every)
    : DataAxis(context, std::move(parts), every) {
  std::vector<ParameterPtr> parameters;
  std::vector<at::Device> devices;
  std::vector<std::vector<int>> buckets;  // by device
  for (const ModelPart* part : parts_) {
    for (const ParameterPtr& parameter : part->parameters()) {
      size_t bucket = 0;
      while (bucket < devices.size() && devices[bucket] != parameter->value.device()) ++bucket;
      if (bucket == devices.size()) {
        devices.push_back(parameter->value.device());
        buckets.emplace_back();
      }
      buckets[bucket].push_back(int(parameters.size()));
      parameters.push_back(parameter);
    }
    collectors_.push_back(std::make_unique<GradientCollector>(part->parameters(), part->state(), [](int) {}));
  }
  if (buckets.empty()) buckets.emplace_back();
  flat_ = std::make_unique<FlatParameters>(std::move(parameters), buckets, context.config.optimizer);
  update_.attach(*flat_);
}

void LocalData::begin(bool first, bool) {
  if (!first) return;
  for (auto& collector : collectors_) collector->begin();
  flat_->header().zero_();
}

void LocalData::add_loss(const Loss& loss) { flat_->add_to_header(loss.weight, loss.sum, false); }

UpdateStatistics LocalData::update(double nominal, bool /*log_step*/) {
  for (auto& collector : collectors_) collector->finish();
  update_.begin(nominal);
  for (int bucket = 0; bucket < int(flat_->buckets().size()); ++bucket) update_.reduced(bucket);
  return update_.finish();
}

void LocalData::visit_state(const StateVisitor& visit) { visit_parts(parts_, *flat_, update_, {}, visit); }

}  // namespace

std::unique_ptr<Strategy> make_model_parallel(const Options& options) {
  MeshComponents components{step_options(options)};
  components.runner = [devices = device_options(options), step = components.options](const Context& context,
                                                                                     ModelPtr model, LossPtr loss) {
    return make_device_runner(context, std::move(model), std::move(loss), devices, step.micro_batches,
                              part_request(context, step));
  };
  components.data = [every = components.options.sync.every](const Context& context,
                                                            const std::vector<ModelPart*>& model_parts) {
    return std::make_unique<LocalData>(context, model_parts, every);
  };
  return make_mesh_strategy(std::move(components));
}

}  // namespace convoy
