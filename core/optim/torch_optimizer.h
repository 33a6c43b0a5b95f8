// TorchOptimizer: adapts a torch::optim::Optimizer of the user to the interface Optimizer.
//
// The user's object makes the update. This class gives it gradients and keeps its state in flat tensors. So the state
// is saved, averaged and sharded like that of convoy's optimizers. A parameter that is whole in a slot stays in its
// group. For a sharded parameter the group gets this rank's piece instead, a view of the slot; its state moves along.
// The state of SGD, Adam, AdamW, Adagrad and RMSprop is known by name. The state of other classes is not saved.
// Call order: layout; then for each update `update` for every slot → finish. A layout replaces the previous one.
// Threads: the rank's thread. The user may change options of the groups between updates.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/optim/optimizer.h"

namespace convoy {

class TorchOptimizer : public std::enable_shared_from_this<TorchOptimizer> {
 public:
  // `parameters`: all of the module, with their names. Error(config) if the optimizer has other tensors, or needs
  // several evaluations of the loss.
  TorchOptimizer(torch::optim::Optimizer& optimizer, const NamedTensors& parameters);
  ~TorchOptimizer();
  TorchOptimizer(const TorchOptimizer&) = delete;
  TorchOptimizer& operator=(const TorchOptimizer&) = delete;

  // Returns an empty Optimizer. Ranges added to it replace those of earlier layouts.
  std::unique_ptr<Optimizer> layout();

  // True if the state of this class is known.
  static bool knows(torch::optim::Optimizer& optimizer);
  // Returns the class if its state is not saved; "" if it is.
  std::string unknown_class() const;
  double learning_rate() const;  // rate of the first group

  // Called in each update before parameters change, after all gradients have been summed. It may communicate.
  void before_step(std::function<void()> call) { before_step_ = std::move(call); }
  // `reached`: by parameter, true if it has received a gradient on any rank. The optimizer sees no gradient for the
  // others, as after zero_grad(set_to_none).
  void set_reached(const std::vector<bool>& reached) { reached_ = reached; }
  bool was_stepped(size_t parameter) const;
  // Takes over a state that the program loaded into its optimizer since the last step. Error(config) if this rank holds
  // a part of a parameter.
  void adopt_loaded_state();

 private:
  class Layout;
  class Rule;
  template <class Options, class State>
  class AdamRule;
  class SgdRule;
  class AdagradRule;
  class RmspropRule;
  struct Piece;
  struct Slot;
  using Group = torch::optim::OptimizerParamGroup;
  using State = torch::optim::OptimizerParamState;

  static std::unique_ptr<Rule> rule_of(torch::optim::Optimizer& optimizer);
  size_t number_of(const at::Tensor& parameter) const;
  std::vector<std::string> moment_names() const;
  void add(Slot& slot, const ParameterPiece& piece);
  void take_state(const Slot& slot, const Piece& piece, const at::Tensor& from, int64_t begin);
  void fill_groups();
  void update(Slot& slot, const at::Tensor& gradient, const UpdateScalars& scalars);
  void finish();
  void check_groups() const;
  void check_steps() const;
  bool was_loaded(const Slot& slot, const Piece& piece) const;
  void keep_state(const Slot& slot, const Piece& piece);
  NamedTensors counters();
  void restored(int64_t updates);
  void restore_state(const Slot& slot, const Piece& piece);

  torch::optim::Optimizer& optimizer_;
  std::unique_ptr<Rule> rule_;                      // null: a class whose state is not known
  std::vector<std::vector<at::Tensor>> originals_;  // by group: the parameters that the user gave
  std::vector<at::Tensor> parameters_;
  std::unordered_map<void*, size_t> numbers_;  // numbers of parameters
  std::vector<size_t> groups_;                 // by parameter: index of its group; the number of groups: it has none
  std::vector<int64_t> uses_;        // by parameter: how often the groups list it; each time is a step of torch
  std::vector<bool> reached_;        // by parameter
  std::vector<at::Tensor> targets_;  // by parameter: tensor in its group; undefined: no piece on this rank
  std::vector<char> held_;           // by parameter: a slot of the layout has a piece of it
  std::vector<Slot> slots_;          // slots of the newest layout
  std::function<void()> before_step_;
  bool counts_steps_ = false;  // the optimizer's class counts the steps of each parameter
  bool any_applied_ = false;   // this update changes something
  at::Tensor steps_;           // int64 [parameters]: updates of each
  at::Tensor rates_;           // double [groups]: learning rates at the last visit of the state
};

}  // namespace convoy
