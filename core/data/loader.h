// Loader: assembles this rank's share of the coming batches ahead of time, on its own thread; or each when it is wanted, on the
// caller's, where a thread would only take turns with that one: it would do several batches at a time, and ranks that wait for
// each other would wait for each one's loader in turn.
// Threads: `next` is called by one thread. Destruction ends the loader's own at once.
// Failure: what the data set throws comes out of `next`.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/sampler.h"
#include "core/options.h"

namespace convoy {

struct LoaderOptions {
  int64_t share_index = 0;
  int64_t share_count = 1;
  int64_t micro_batches = 1;  // of training batches
  // Batches held ready; 0: none, and no thread. None given: 0 where the calling thread is bound to one core and the data set
  // is at hand.
  std::optional<int64_t> prefetch = {};
  at::Device device{at::kCPU};  // CUDA: buffers are pinned, `next` copies without blocking
  uint64_t seed = 1;
  // Of members of an ensemble, all of which read equally many rows: tensors are [members, rows, …], member-major, made by
  // one gather, and a batch's counts are one member's. Empty: one model, [rows, …].
  std::vector<MemberDraw> draws = {};

  // prefetch and seed as the section `data` says, in a run with that seed.
  static LoaderOptions from(const Options& data, uint64_t seed);
};

class Loader {
 public:
  // Training: shares of the sampler's global batches, from `first_step` up to `end_step` (exclusive). With `draws` the
  // sampler only counts the rows of a step.
  Loader(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, const Sampler& sampler,
         int64_t first_step, int64_t end_step, const LoaderOptions& options);
  // Evaluation: every row of the split once, in order, rank r taking its share of each slice of `rows` rows.
  Loader(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, int64_t rows,
         const LoaderOptions& options);
  // Evaluation on the rows of the training split that a fold holds out, each once: the sampler's fold, or with `draws` each
  // member's own, [members, rows, …].
  static Loader held_out(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms,
                         const Sampler& sampler, int64_t rows, const LoaderOptions& options);
  Loader(Loader&&) noexcept;
  ~Loader();

  std::optional<Batch> next();    // nothing left: empty. Batch carries first_row, global_rows, nominal_rows.
  double waited_seconds() const;  // by `next` for data
  double cpu_seconds() const;     // CPU time of assembling, on whichever thread

 private:
  class Worker;
  explicit Loader(std::unique_ptr<Worker> worker);
  std::unique_ptr<Worker> worker_;
};

}  // namespace convoy
