// LocalData: the DataAxis of a rank that shares its parameters with nobody and has several devices. Gradients are whole when
// backward ends; each device's make one bucket, in the order in which parameters were made, whichever device was first.
#pragma once
#include <memory>
#include <vector>

#include "strategies/parts/data_axis.h"
#include "strategies/parts/flat_parameters.h"
#include "strategies/parts/gradient_collector.h"
#include "strategies/parts/model_part.h"

namespace convoy {

class LocalData : public DataAxis {
 public:
  // `every`: steps an update.
  LocalData(const Context& context, std::vector<ModelPart*> parts, int64_t every);

  void begin(bool first, bool updates) override;
  void add_loss(const Loss& loss) override;
  void last_backward(int) override {}
  void keep() override {}
  UpdateFigures update(double nominal, bool told) override;
  void settle() override {}
  void visit_state(const StateVisitor& visit) override;
  void state_restored() override { update_.restored(); }
  void renumbered(int64_t steps) override { update_.renumbered(steps); }

 private:
  std::vector<ModelPart*> parts_;
  std::unique_ptr<FlatParameters> flat_;
  Update update_;
  std::vector<std::unique_ptr<GradientCollector>> collectors_;  // one per part
};

}  // namespace convoy
