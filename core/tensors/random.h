// Counter-based random numbers: a value is a function of its key and counter, so any rank can draw any element.
// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Thread-safe: no state.
// Keys and single draws are in core/base/random_keys.h, which needs no LibTorch.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/base/random_keys.h"
#include "core/context.h"

namespace convoy {

// Fills `out` (any float dtype, contiguous, CPU) with draws number first, first+1, … of `key`. Element i is
// random_X(key, first + i), scaled in double and rounded once to the dtype. Shards therefore equal the range of the
// whole tensor, bit for bit, for any number of threads. Uniform draws are in [low, high); rounding to half precision
// may reach `high`.
void fill_uniform(at::Tensor out, uint64_t key, uint64_t first, double low, double high);
void fill_normal(at::Tensor out, uint64_t key, uint64_t first, double mean, double deviation);

// Fills `out` (fp32 or fp64, contiguous, CPU) with factors of dropout: 0 where an element's 16-bit draw is below
// `threshold`, else 65536 ÷ (65536 − threshold). `out` has runs of `run` elements, each a part of a run of `whole`:
// element i of run r has the draw number begin + r · whole + i of `key`.
void fill_dropout(at::Tensor out, uint64_t key, int64_t begin, int64_t run, int64_t whole, uint32_t threshold);

// State of LibTorch's default generator of a device.
at::Tensor generator_state(at::Device device);
void set_generator_state(at::Device device, const at::Tensor& state);

// DefaultGenerators: LibTorch's default generators of a rank, from which blocks draw directly (torch::nn::Dropout,
// rand_like).
//
// Their first state is a function of (seed, position in the mesh). It is equal on the ranks of one tensor group, which
// compute the same. A checkpoint contains the states of generators that were used; a run with the same layout resumes
// with them.
// Threads: the thread of one rank. Ranks that are threads of one process share the CPU's generator. Their draws depend
// on timing, so a warning is logged and no state is stored.

// Locks the CPU's generator while a thread seeds it temporarily, for example to build blocks. Threads that read its
// state lock it too.
std::mutex& default_generator_mutex();

class DefaultGenerators {
 public:
  // `shares_device`: another rank of this process has the same GPU.
  DefaultGenerators(const Context& context, bool shares_device);

  void seed();
  // Returns fields for a checkpoint's trainer section, without the states.
  Json description() const;
  // Returns {generators: this rank's states, as text by device}; null if nothing was drawn, or if generators are
  // shared.
  Json states() const;
  // Restores from the trainer section of a checkpoint at `path`. Warns if the states belong to a different layout.
  void restore(const Json& trainer, const std::string& path);
  // Warns once when blocks have drawn numbers that cannot be reproduced. Called often, because a block may begin to
  // draw in any step or evaluation.
  void check_drawn(bool resumed);

 private:
  using State = std::pair<at::Device, at::Tensor>;
  std::vector<State> current() const;
  bool drew() const;
  bool shared(at::Device device) const;

  const Context& context_;
  bool shares_device_;
  std::vector<State> begun_;  // as seeded or restored
  bool seeded_ = true;        // false: restored
  bool warned_ = false;
  bool unknown_ = false;  // the checkpoint is from a version that stored none
};

}  // namespace convoy
