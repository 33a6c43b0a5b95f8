// Inputs of a stage that came from another one: they look like results of something trained, and their gradients are kept.
#pragma once
#include <memory>

#include "strategies/parts/stages/stage_link.h"

namespace convoy {

class StageInputs {
 public:
  // Takes activations, without graph. They are no leaves, so that a block may change them in place as it may change what
  // an earlier block made.
  explicit StageInputs(const Activations& activations);

  const TensorList& tensors() const { return tensors_; }
  bool trained() const { return keeper_ != nullptr; }  // somebody wants gradients
  // Behind backward: of the trained ones, in order; zeros where nothing came. Once.
  TensorList gradients();

 private:
  class Keeper;
  TensorList tensors_;
  std::shared_ptr<Keeper> keeper_;  // null: none is trained
};

}  // namespace convoy
