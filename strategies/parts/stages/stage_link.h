// StageLink: carries what crosses the boundaries between stages: activations forward, gradients back.
//
// Call order: for each action of a schedule (parts/stages/schedule.h): ahead, then what it takes and gives. Each thing is given
// once and taken once. Threads: one link per thread that executes a list. Ownership: what is given may be on its way until
// the link says otherwise; it must not be changed. Failure: CommError from ranks, and what stopped another thread.
#pragma once
#include <vector>

#include "core/model_interface.h"

namespace convoy {

// Outputs of a stage that are inputs of the next one, without graph.
struct Activations {
  TensorList tensors;
  std::vector<char> trained;  // by tensor: a gradient comes back
};

class StageLink {
 public:
  virtual ~StageLink() = default;

  // Action number `index` of the list is next: what later ones take may be asked for already.
  virtual void ahead(size_t index) = 0;
  // Inputs of `stage`.
  virtual void give_activations(int stage, int micro, Activations activations) = 0;
  virtual Activations take_activations(int stage, int micro) = 0;
  // Of the outputs of `stage` that are trained, in order.
  virtual void give_gradients(int stage, int micro, TensorList gradients) = 0;
  virtual TensorList take_gradients(int stage, int micro) = 0;
};

}  // namespace convoy
