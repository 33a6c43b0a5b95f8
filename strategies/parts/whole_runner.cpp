#include "strategies/parts/runner.h"

namespace convoy {
namespace {

class WholeRunner : public Runner {
 public:
  WholeRunner(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss, PartRequest request)
      : part_(context, std::move(model), std::move(loss), std::move(request)) {}

  const std::vector<ModelPart*>& parts() const override { return parts_; }

  void train(const std::vector<Batch>& micro, int64_t step, double nominal, const Hooks& hooks) override {
    for (size_t i = 0; i < micro.size(); ++i) {
      const Loss loss = part_.loss(part_.forward(micro[i], step), micro[i]);
      hooks.loss(loss);
      if (i + 1 == micro.size()) hooks.last_backward(0);
      part_.backward(loss, nominal);
    }
  }

  std::vector<Metric> evaluate(const Batch& batch) override { return part_.metrics(part_.evaluate(batch), batch); }

 private:
  ModelPart part_;
  std::vector<ModelPart*> parts_{&part_};
};

}  // namespace

std::unique_ptr<Runner> make_whole_runner(const Context& context, ModelPtr model,
                                          std::shared_ptr<const LossFunction> loss, PartRequest request) {
  return std::make_unique<WholeRunner>(context, std::move(model), std::move(loss), std::move(request));
}

}  // namespace convoy
