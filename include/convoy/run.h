// Run: a training that counts, reports, saves and resumes by itself. Share: this rank's rows of each global batch.
//
//   auto run = job.resume("runs/mine", replicas);
//   for (auto& batch : run.share(dataset, options)) {
//     auto loss = loss_sum(net->forward(batch.data), batch.target);
//     replicas.step(loss, batch.rows);
//     run.log("loss", loss);
//   }
//
// Job::resume takes the newest complete checkpoint of the run folder, or starts from the beginning. Under `convoy run`
// the run folder is the one that `convoy run` prints; the argument of resume is then only compared with it. Without a
// supervisor (Job::embedded, Job over MPI) the argument is the run folder. It has the same files in both cases:
// checkpoints/, metrics.jsonl, summary.json, logs/.
// A global batch is a function of (seed, epoch, step), and not of the number of ranks. So a resumed run continues with
// the next batch, also on another number of ranks and in the middle of an epoch.
// Call order: Job::resume once per job, after Replicas or Shards. Then keep; then share. Every rank makes the same
// calls in the same order.
// Threads: the thread of the rank.
// Ownership: the job and the trained object outlive the Run; the Run outlives its Share.
// Errors: Error(config) for options that cannot be, and for ranks that give different ones; Error(output) for a run
// folder of another training, with the differences; Error(corrupt_data) if no checkpoint is intact; CommError if a peer
// is gone, too slow, or made another call. What a data set throws leaves the loop.
#pragma once
#include <convoy/job.h>
#include <convoy/share.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy {

class Trained;  // convoy/trained.h

class Run {
 public:
  Run(Run&&) noexcept;
  Run& operator=(Run&&) = delete;
  // Calls finish(), unless an exception is leaving the scope.
  ~Run() noexcept(false);

  // --- Data ---

  // The training loop over a map-style data set of torch::data (with get_batch(indices) or get(index), and size()), or
  // a shared_ptr to one. It makes one step for each batch. It ends after `epochs` or `max_steps`, or earlier if the job
  // is asked to stop; then a checkpoint exists. Another call continues after the last step. So a loop over epochs may
  // call share with 1, 2, … epochs; the calls for epochs before the resumed step make no steps.
  template <class Dataset, class = detail::EnableForDatasets<Dataset>>
  Share share(Dataset&& dataset, const ShareOptions& options = {}) {
    return share_rows(detail::source_of(std::forward<Dataset>(dataset)), options);
  }
  // The same over a data set of convoy, with the keys of the section `data` of a YAML file. Rows are those of its
  // training split.
  Share share(const std::string& name, const DataOptions& data, const ShareOptions& options = {});
  // The same without data: the batches have indices from 0 to `rows` - 1.
  Share share(int64_t rows, const ShareOptions& options = {});

  // Every row once, in order, in batches of `batch_size` rows over all ranks. Makes no steps. For evaluation, inside of
  // the training loop or outside.
  template <class Dataset, class = detail::EnableForDatasets<Dataset>>
  Share once(Dataset&& dataset, int64_t batch_size) {
    return once_rows(detail::source_of(std::forward<Dataset>(dataset)), batch_size);
  }
  // The evaluation split of a data set of convoy.
  Share once(const std::string& name, const DataOptions& data, int64_t batch_size);
  Share once(int64_t rows, int64_t batch_size);

  // --- Metrics ---

  // Adds to a metric of the training: the sum over this rank's rows, and its weight, by default the rows of the current
  // batch. Every `log_every` steps, the sum over all ranks and steps divided by the weight is written. A rank may leave
  // a metric out. "loss" appears in the progress line; unless the program logs it, it is that of step(). Does not wait
  // for the device.
  void log(const std::string& name, const at::Tensor& sum, std::optional<double> weight = {});
  void log(const std::string& name, double sum, std::optional<double> weight = {});
  // Collective. Writes an evaluation of the current state, and its best value into summary.json. Returns the mean over
  // ranks.
  double evaluated(const std::string& name, const at::Tensor& sum, double weight, Best best = Best::highest);
  double evaluated(const std::string& name, double sum, double weight, Best best = Best::highest);

  // --- State ---

  // Collective. Saves now, in addition to `checkpoint_every`. Not between accumulate() and step().
  void save();
  // Collective, before share. Begins from the state that `path` names: a run folder, or one of its step-N folders.
  // Settings that differ are only logged. Without effect if the run continues from a checkpoint of its own folder.
  void resume(const std::string& path);
  // Adds an object to every checkpoint, before share. If the run resumed, the object is restored at once. Objects:
  // numbers, std::string, torch::optim::LRScheduler, and objects with `std::string save() const` and
  // `void load(const std::string&)`. Each rank saves its own; another number of ranks restores that of rank 0.
  template <class Object>
  void keep(const std::string& name, Object& object) {
    keep(name, detail::saver_of(object), detail::loader_of(object));
  }
  void keep(const std::string& name, std::function<std::string()> save, std::function<void(const std::string&)> load);

  int64_t step() const;  // steps done
  bool resumed() const;  // from a checkpoint
  bool stopped() const;  // the job was asked to stop, and the loop ended early
  const std::string& folder() const;

  // Collective. Makes the summary. Nothing but destruction is allowed afterwards.
  void finish();

  // Internal: api/run/run_impl.h.
  struct Impl;
  Impl& impl() const { return *impl_; }
  explicit Run(std::unique_ptr<Impl> impl);

 private:
  Share share_rows(detail::RowSource source, const ShareOptions& options);
  Share once_rows(detail::RowSource source, int64_t batch_size);

  std::unique_ptr<Impl> impl_;
};

}  // namespace convoy
