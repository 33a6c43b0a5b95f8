#include "strategies/parts/shards/unit_plan.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace convoy {
namespace {

// The units of one part, in the order in which its blocks first use them.
class PartUnits {
 public:
  PartUnits(const ModelPart& part, size_t number, const UnitOptions& options)
      : part_(part), number_(number), options_(options) {
    for (size_t block = 0; block < part.blocks(); ++block)
      for (const ParameterPtr& parameter : part.block_parameters(block)) users_[parameter.get()].push_back(block);
    CONVOY_CHECK(users_.size() == part.parameters().size(), "blocks use ", users_.size(), " parameters of ",
                 part.parameters().size());
  }

  std::vector<PlannedUnit> made() {
    for (size_t block = 0; block < part_.blocks(); ++block) {
      open_.clear();
      for (const ParameterPtr& parameter : part_.block_parameters(block))
        if (users_.at(parameter.get()).front() == block) place(parameter, block);
    }
    return std::move(units_);
  }

 private:
  bool alone(const Parameter& parameter) const {
    return options_.by_tensor || users_.at(&parameter).size() > 1 ||
           (parameter.partial && parameter.partial != options_.tensor);
  }

  void place(const ParameterPtr& parameter, size_t block) {
    const bool narrow = options_.narrow && options_.shard == Shard::parameters && parameter->products_only;
    const std::pair<bool, Communicator*> key{narrow, parameter->partial.get()};
    if (!alone(*parameter)) {
      const auto known = open_.find(key);
      if (known != open_.end()) {
        units_[known->second].request.parameters.push_back(parameter);
        return;
      }
      open_.emplace(key, units_.size());
    }
    PlannedUnit unit;
    unit.request.name = alone(*parameter) ? parameter->name : part_.block_name(block);
    unit.request.parameters = {parameter};
    unit.request.shard = options_.shard;
    if (narrow) unit.request.gathered = options_.narrow;
    unit.partial = parameter->partial;
    unit.part = number_;
    unit.blocks = users_.at(parameter.get());
    units_.push_back(std::move(unit));
  }

  const ModelPart& part_;
  size_t number_;
  const UnitOptions& options_;
  std::map<const Parameter*, std::vector<size_t>> users_;  // blocks, ascending
  std::map<std::pair<bool, Communicator*>, size_t> open_;  // of the block under way
  std::vector<PlannedUnit> units_;
};

}  // namespace

std::vector<PlannedUnit> plan_units(const std::vector<ModelPart*>& parts, const UnitOptions& options) {
  std::vector<PlannedUnit> all;
  for (size_t part = 0; part < parts.size(); ++part)
    for (PlannedUnit& unit : PartUnits(*parts[part], part, options).made()) all.push_back(std::move(unit));
  return all;
}

}  // namespace convoy
