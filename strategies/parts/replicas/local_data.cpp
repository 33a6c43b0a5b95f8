#include "strategies/parts/replicas/local_data.h"

#include <ATen/core/Tensor.h>

#include "strategies/parts/visit_parts.h"

namespace convoy {

LocalData::LocalData(const Context& context, std::vector<ModelPart*> parts, int64_t every)
    : parts_(std::move(parts)), update_(context, every) {
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
      buckets[bucket].push_back(static_cast<int>(parameters.size()));
      parameters.push_back(parameter);
    }
    collectors_.push_back(std::make_unique<GradientCollector>(part->parameters(), part->state(), [](int) {}));
    part->state()->loss_scale = update_.loss_scale();
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

void LocalData::add_loss(const Loss& loss) { flat_->add_to_header(loss.weight, loss.sum.detach(), false); }

UpdateFigures LocalData::update(double nominal, bool /*told*/) {
  for (auto& collector : collectors_) collector->finish();
  update_.begin(nominal);
  for (int bucket = 0; bucket < static_cast<int>(flat_->buckets().size()); ++bucket) update_.reduced(bucket);
  return update_.finish();
}

void LocalData::visit_state(const StateVisitor& visit) { visit_parts(parts_, *flat_, update_, {}, visit); }

}  // namespace convoy
