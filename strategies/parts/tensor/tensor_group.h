// What all scopes of one rank's sharded layers share.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "strategies/parts/block_counts.h"
#include "strategies/parts/tensor/passage.h"
#include "strategies/parts/tensor/sharded_parameter.h"

namespace convoy {

struct TensorGroup {
  TensorGroup(CommunicatorPtr ranks, bool sequence_parallel, PlannedCuts of_model)
      : group(std::move(ranks)),
        passage(std::make_shared<Passage>(group, sequence_parallel)),
        planned(std::move(of_model)) {}

  // `whole` elements in `parts`, as this group shares them.
  DimensionCut cut(int64_t whole, int64_t parts = 1) const { return {whole, parts, group->rank(), group->size()}; }

  CommunicatorPtr group;
  std::shared_ptr<Passage> passage;
  std::map<std::string, TensorCut> cuts;  // of the parameters that are cut, by name
  PlannedCuts planned;                    // of those that other parts of the model make
};
using TensorGroupPtr = std::shared_ptr<TensorGroup>;

// What a layer needs to run: its canonical name, the group, and the forward under way.
struct LayerPlace {
  std::string name;
  TensorGroupPtr group;
  std::shared_ptr<const ForwardState> state;

  const CommunicatorPtr& ranks() const { return group->group; }
  Passage& passage() const { return *group->passage; }
};

}  // namespace convoy
