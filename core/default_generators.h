// LibTorch's default generators of a rank: what blocks draw from by themselves (torch::nn::Dropout, rand_like).
//
// They begin as a function of (seed, place in the mesh), the same on ranks of one tensor group, which compute the same.
// A checkpoint holds the states of those that a run has drawn from, and a run of the same layout goes on with them.
// Threads: one rank's. Ranks that are threads of one process share the CPU's generator, and what each draws then depends on
// the clock: that is told, and no state is kept.
#pragma once
#include <ATen/core/Tensor.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/options.h"

namespace convoy {

// Held while somebody seeds the CPU's generator for a while and puts it back, as blocks are built; other threads that look at
// its state wait.
std::mutex& default_generator_mutex();

class DefaultGenerators {
 public:
  // `shares_device`: another rank of this process has the same GPU.
  DefaultGenerators(const Context& context, bool shares_device);

  void seed();
  // What a checkpoint's trainer section tells of them besides the states.
  Json description() const;
  // {generators: this rank's states, as text by device}; null where nothing was drawn, or generators are shared.
  Json states() const;
  // From the trainer section of a checkpoint at `path`. Warns where the states are of another layout.
  void restore(const Json& trainer, const std::string& path);
  // Warns once, as soon as blocks have drawn what no run can draw again. Called often: a block may begin to draw in any
  // step, or in an evaluation.
  void check_drawn(bool resumed);

 private:
  using State = std::pair<at::Device, at::Tensor>;
  std::vector<State> current() const;
  bool drew() const;
  bool shared(at::Device device) const;

  const Context& context_;
  bool shares_device_;
  std::vector<State> begun_;  // as seeded or restored
  bool seeded_ = true;        // else restored
  bool warned_ = false;
  bool unknown_ = false;  // the checkpoint is of a version that kept none
};

}  // namespace convoy
