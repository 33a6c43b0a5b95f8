// Loader: assembles this rank's share of the next batches ahead of time, on a separate thread.
//
// If both threads would share one core, it assembles each batch on the calling thread instead. A loader thread would
// occupy the core for several batches, and ranks that wait for each other would wait for every rank's loader.
// Threads: `next` is called by one thread. The destructor stops the loader's thread at once.
// Failure: `next` rethrows exceptions of the data set.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/options.h"
#include "core/data/dataset.h"
#include "core/data/sampler.h"
#include "core/rank_state/time_breakdown.h"

namespace convoy {

struct LoaderOptions {
  int64_t share_index = 0;
  int64_t share_count = 1;
  int64_t micro_batches = 1;  // per training batch
  // Number of batches assembled ahead; 0: no thread. nullopt: 0 if the calling thread is bound to one core and the data
  // set is in memory (Dataset::gathers_from_memory), else 4.
  std::optional<int64_t> prefetch = {};
  at::Device device{at::kCPU};  // CUDA: buffers are pinned, and copies in `next` do not block
  uint64_t seed = 1;
  // Members of an ensemble; all read equally many rows. Tensors are [members, rows, …], member-major, from one gather;
  // counts of a batch are per member. Empty: one model, [rows, …].
  std::vector<MemberSample> samples = {};
  std::shared_ptr<TimeBreakdown> times = nullptr;  // its trace shows the batches; may be null

  // Reads prefetch and seed from the section `data`; `seed`: the run's.
  static LoaderOptions from(const Options& data, uint64_t seed);
};

class Loader {
 public:
  // Training: shares of the sampler's global batches, from `first_step` to `end_step` (exclusive). With `samples` the
  // sampler only determines the number of rows in a step.
  Loader(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, const Sampler& sampler,
         int64_t first_step, int64_t end_step, const LoaderOptions& options);
  // Evaluation: every row of the split once, in order, without the transforms of training. A global batch has `rows`
  // rows. Each rank reads its share of them.
  Loader(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms, int64_t rows,
         const LoaderOptions& options, Split split = Split::evaluate);
  // Held-out evaluation: every held-out row of the training split once. With `samples` each member has its fold, and
  // tensors are [members, rows, …]; otherwise the sampler's fold.
  static Loader held_out(DatasetPtr data, std::vector<std::shared_ptr<const Transform>> transforms,
                         const Sampler& sampler, int64_t rows, const LoaderOptions& options);
  Loader(Loader&&) noexcept;
  ~Loader();

  std::optional<Batch> next();    // empty at the end. Batch carries first_row, global_rows, nominal_rows
  double waited_seconds() const;  // time that `next` waited for data
  double cpu_seconds() const;     // CPU time of assembling, on any thread

 private:
  class Worker;
  explicit Loader(std::unique_ptr<Worker> worker);
  std::unique_ptr<Worker> worker_;
};

}  // namespace convoy
