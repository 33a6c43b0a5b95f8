// RankLink: boundaries between stages on different ranks of the axis `pipeline`.
//
// Messages between two ranks follow the sender's schedule, which the receiver knows. So only the tensors are sent.
// Receives are posted ahead, and the rank waits for its sends at the end of the step. So both overlap with computation.
// Shapes are not declared. When a batch with new tensor sizes first crosses a boundary, a header precedes it: number of
// tensors; dtype, shape and trained flag of each. Both sides remember it. Gradients need no header. Consecutive stages
// of one rank pass tensors without a copy.
// Memory: two receives ahead of the current action. Failure: CommError; Error(training) if a stage's outputs change
// shape for batches of equal sizes.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/context.h"
#include "strategies/plans/schedule.h"
#include "strategies/stages/stage_loop.h"

namespace convoy {

class RankLink : public StageLink {
 public:
  // Collective. `context` has the axis `pipeline`. Tensors arrive on `device`.
  RankLink(const Context& context, at::Device device);

  // Begins a step; call it equally on all ranks. Waits until earlier sends have arrived.
  void begin(const StepSchedule& schedule, const std::vector<Batch>& micro, bool training);
  // Waits until all sends have arrived.
  void finish();

  void ahead(size_t index) override;
  void give_activations(int stage, int micro, Activations activations) override;
  Activations take_activations(int stage, int micro) override;
  void give_gradients(int stage, int micro, TensorList gradients) override;
  TensorList take_gradients(int stage, int micro) override;

 private:
  struct Shape {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;
    bool trained = false;
    bool operator==(const Shape& other) const {
      return dtype == other.dtype && sizes == other.sizes && trained == other.trained;
    }
  };
  using Shapes = std::vector<Shape>;
  using MessageKey = std::tuple<Action::Kind, int, int>;  // kind, receiving stage, micro-batch
  struct Incoming {
    MessageKey key;
    size_t due = 0;  // action by which it must be posted, because a later message is needed there
    TensorList tensors;
    WorkPtr work;
  };
  struct Peer {
    std::deque<Incoming> incoming;  // in the peer's sending order
    size_t posted = 0;
  };

  int rank_of(int stage) const { return rank_of_[size_t(stage)]; }
  CommunicatorPtr group_for(int from, int to) const { return from < to ? down_ : up_; }
  void expect(const StepSchedule& schedule, int peer);
  bool post(int peer, Incoming& incoming, bool may_wait);
  void post_until(int peer, size_t action, bool may_wait);
  TensorList take(int peer, const MessageKey& key);
  Activations take_local(const MessageKey& key);
  void send(int peer, const TensorList& tensors, const std::string& name);
  std::string boundary(int stage, int micro) const;
  void send_shapes(int peer, const std::string& boundary, const Shapes& shapes);
  Shapes receive_shapes(int peer);
  const Shapes& shapes_of(int stage, int micro) const;  // shapes of the inputs of `stage`

  int rank_;
  at::Device device_;
  CommunicatorPtr down_, up_;  // from lower to higher ranks, and back
  std::vector<int> rank_of_;
  std::vector<std::string> sizes_;       // size of each micro-batch; shapes at boundaries follow from them
  std::map<MessageKey, size_t> needed_;  // action that uses the message
  std::map<int, Peer> peers_;
  std::map<MessageKey, Activations> local_messages_;  // between stages of this rank; for gradients only the tensors
  std::map<std::string, Shapes> known_;               // by boundary
  std::deque<WorkPtr> sent_;                          // in order; finished ones leave at the front
};

}  // namespace convoy
