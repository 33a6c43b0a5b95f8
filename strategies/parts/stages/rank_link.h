// RankLink: boundaries between stages on different ranks of the axis `pipeline`.
//
// Messages of a pair of ranks go in the order of the sender's list, which the receiver knows, so nothing but the tensors is
// sent; receives are posted ahead, and sends are waited for behind the list, so both overlap with computing. Shapes are not
// declared by anybody: the first time that a boundary is crossed by a batch whose tensors have new sizes, one header (number
// of tensors; dtype, shape, whether it is trained of each) goes in front, and both sides remember it. Gradients need none.
// Stages of one rank that follow each other hand over without a copy.
// Memory: two receives ahead of what is being computed. Failure: CommError; Error(training) when a stage's outputs have other
// shapes than before for a batch of the same sizes.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/context.h"
#include "strategies/parts/stages/schedule.h"
#include "strategies/parts/stages/stage_link.h"

namespace convoy {

class RankLink : public StageLink {
 public:
  // Of the axis `pipeline`; collective. Tensors arrive on `device`.
  RankLink(const Context& context, at::Device device);

  // A list begins; the same on all ranks. Waits until what earlier ones sent has arrived.
  void begin(const StepSchedule& schedule, const std::vector<Batch>& micro, bool training);
  // Waits until all that was sent has arrived.
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
  };
  using Shapes = std::vector<Shape>;
  using MessageKey = std::tuple<Action::Kind, int, int>;  // kind, receiving stage, micro-batch
  struct Incoming {
    MessageKey key;
    size_t due = 0;  // action in front of which it has to be posted: something behind it is needed there
    TensorList tensors;
    WorkPtr work;
  };
  struct Peer {
    std::deque<Incoming> incoming;  // in the order in which it sends
    size_t posted = 0;
  };

  int rank_of(int stage) const { return rank_of_[static_cast<size_t>(stage)]; }
  CommunicatorPtr way(int from, int to) const { return from < to ? down_ : up_; }
  void expect(const StepSchedule& schedule, int peer);
  bool post(int peer, Incoming& incoming, bool may_wait);
  void post_until(int peer, size_t action, bool may_wait);
  TensorList take(int peer, const MessageKey& key);
  void send(int peer, const TensorList& tensors, const std::string& name);
  std::string boundary(int stage, int micro) const;
  void announce(int peer, const std::string& boundary, const Shapes& shapes);
  Shapes hear(int peer);
  const Shapes& shapes_of(int stage, int micro) const;  // of activations that are inputs of `stage`

  int rank_;
  at::Device device_;
  CommunicatorPtr down_, up_;  // from lower to higher ranks, and back
  std::vector<int> rank_of_;
  std::vector<std::string> sizes_;       // of each micro-batch: what shapes at boundaries follow from
  std::map<MessageKey, size_t> needed_;  // which action takes it
  std::map<int, Peer> peers_;
  std::map<MessageKey, Activations> handed_over_;  // between stages of this rank; of gradients, the tensors alone
  std::map<std::string, Shapes> known_;            // by boundary
  std::deque<WorkPtr> sent_;                       // in order; arrived ones leave at the front
};

}  // namespace convoy
