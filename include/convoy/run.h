// Run: counts, reports, saves and resumes the training of a program. Share: this rank's rows of each global batch.
//
//   auto run = job.resume("runs/mine", replicas);
//   for (auto& batch : run.share(dataset, options)) {
//     auto loss = loss_sum(net->forward(batch.data), batch.target);
//     replicas.step(loss, batch.rows);
//     run.log("loss", loss);
//   }
//
// Job::resume loads the newest complete checkpoint of the run folder, or starts from the beginning. Under `convoy run`
// the run folder is the one that `convoy run` prints; the argument of resume is only compared with it. Without a
// supervisor (Job::embedded, Job over MPI) the argument is the run folder. It has the same files in both cases:
// checkpoints/, metrics.jsonl, summary.json, logs/.
// A global batch depends on (seed, epoch, step) and not on the number of ranks. So a resumed run continues with the
// next batch, also on a different number of ranks and in the middle of an epoch.
// The first call of share seeds LibTorch's default generators: each rank then draws other numbers, and a resumed run
// continues them. Before this call all ranks and all starts draw equal numbers, so a program may draw its data there.
// Call order: Job::resume once per job, after Replicas or Shards. Then keep; then share. Every rank makes the same
// calls in the same order.
// With launch.min_ranks (docs/debugging.md) use each_batch instead of share: it continues with the ranks that are left
// when a peer is lost, and with ranks that join.
// Threads: the thread of the rank.
// A checkpoint contains the Replicas or Shards of resume. If the program has a second Replicas, such as that of a
// discriminator, keep its module and optimizer:
//   run.keep("discriminator", [&] { return text_of(net, adam); }, [&](const std::string& text) { … });
// where text_of writes both to a torch::serialize::OutputArchive. The second function loads the values into the module,
// and Replicas take them over. This does not work for Shards, and not with local updates.
// Ownership: the job and the trained object outlive the Run; the Run outlives its Share.
// Errors: Error(config) for invalid options. Error(output) with the differences if the run folder belongs to a
// different run. Error(corrupt_data) if no checkpoint is intact. CommError if a peer is gone, too slow, or made a
// different call; CommError(disagreement) if ranks give different options. Error(disagreement) before a checkpoint if
// parameters of Replicas differ between ranks. Exceptions of a data set leave the loop.
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

using BatchBody = std::function<void(ShareBatch&)>;

class Run {
 public:
  Run(Run&&) noexcept;
  Run& operator=(Run&&) = delete;
  // Calls finish(), unless an exception is leaving the scope.
  ~Run() noexcept(false);

  // --- Data ---

  // Returns the training loop over a map-style data set of torch::data, or over a shared_ptr to one. Such a data set
  // has get_batch(indices) or get(index), and size(). The loop makes one step for each batch. It ends after `epochs` or
  // `max_steps`, or earlier if the job receives a stop request; then a checkpoint exists.
  // Another call continues after the last step. So a loop over epochs may call share with 1, 2, … epochs; calls for
  // epochs before the resumed step make no steps. Code between the calls runs again then, and a checkpoint at the end
  // of an epoch is written before that code. So change kept objects, such as a scheduler, in the body of the loop,
  // where ShareBatch::ends_epoch is true; otherwise a resumed run ends with Error(config).
  template <class Dataset, class = detail::EnableForDatasets<Dataset>>
  Share share(Dataset&& dataset, const ShareOptions& options = {}) {
    return share_rows(detail::source_of(std::forward<Dataset>(dataset)), options);
  }
  // Does the same for a data set of convoy, with the keys of the section `data` of a YAML file. Uses the rows of its
  // training split.
  Share share(const std::string& name, const DataOptions& data, const ShareOptions& options = {});
  // Does the same without data: the batches have indices from 0 to `rows` - 1.
  Share share(int64_t rows, const ShareOptions& options = {});

  // Makes the steps of `share`, and calls `body` with each batch.
  //
  // In a job with launch.min_ranks it does not end when a peer is lost, or when a rank joins: the exception leaves
  // `body`, the ranks form the next membership of the job, all take the state after the last update, and the loop
  // continues. Rules for such a job:
  // - The interrupted body runs again from its beginning, with the same global batch. If its update is part of the
  //   state already, calls of step() and accumulate() make no second one. They return `updated` as before, and a
  //   gradient norm of NaN; log() then adds nothing. So the body changes objects of the program only if they are kept
  //   (keep): these, and learning rates, return to their values at the beginning of the body. The body must not catch
  //   the exception. Evaluate after step(), since a metric from before step() would be written twice; save()
  //   before step() is then postponed to the end of the body.
  // - job.rank(), job.size() and job.world() change between two calls of `body`; do not keep them.
  // - Call it once, with all epochs. Before and after it a lost peer ends the job, as without launch.min_ranks.
  // - A rank that joins runs the program from main() on. The others are in the body, so the program does not
  //   communicate between Job and each_batch, except by Replicas and Job::resume.
  // - The program has one Replicas, with sync.what gradients and without compress, and no Shards. Checkpoints must
  //   support its optimizer (convoy/replicas.h).
  template <class Dataset, class = detail::EnableForDatasets<Dataset>>
  void each_batch(Dataset&& dataset, const ShareOptions& options, const BatchBody& body) {
    each_batch_of(detail::source_of(std::forward<Dataset>(dataset)), options, body);
  }
  void each_batch(const std::string& name, const DataOptions& data, const ShareOptions& options, const BatchBody& body);
  void each_batch(int64_t rows, const ShareOptions& options, const BatchBody& body);

  // Returns every row once, in order, in batches of `batch_size` rows over all ranks. Makes no steps. For evaluation,
  // inside or outside of the training loop.
  template <class Dataset, class = detail::EnableForDatasets<Dataset>>
  Share once(Dataset&& dataset, int64_t batch_size) {
    return once_rows(detail::source_of(std::forward<Dataset>(dataset)), batch_size);
  }
  // Does the same for the evaluation split of a data set of convoy.
  Share once(const std::string& name, const DataOptions& data, int64_t batch_size);
  Share once(int64_t rows, int64_t batch_size);

  // --- Metrics ---

  // Adds to a metric of the training: the sum over this rank's rows, and its weight. The default weight is the number
  // of rows of the current batch. Every `log_every` steps, writes the sum over all ranks and steps divided by the
  // weight. A rank may leave a metric out. Does not wait for the device.
  // The progress line shows "loss". If the program does not log it, it is the loss of step().
  void log(const std::string& name, const at::Tensor& sum, std::optional<double> weight = {});
  void log(const std::string& name, double sum, std::optional<double> weight = {});
  // Collective. Writes an evaluation of the current state into the metrics, and its best value into summary.json.
  // Returns the mean over ranks.
  double evaluated(const std::string& name, const at::Tensor& sum, double weight, Best best = Best::highest);
  double evaluated(const std::string& name, double sum, double weight, Best best = Best::highest);

  // --- State ---

  // Collective. Saves now, in addition to `checkpoint_every`. Do not call it between accumulate() and step().
  void save();
  // Collective, before share. Starts from the state at `path`: a run folder, or one of its step-N folders. Settings
  // that differ are only logged. Learning rates of a torch optimizer, and a rate that set_learning_rate has set, are
  // part of the state. Does nothing if the run resumes from a checkpoint of its folder.
  void resume(const std::string& path);
  // Adds an object to every checkpoint; call it before share. If the run resumed, restores the object at once. Supports
  // numbers, std::string, torch::optim::LRScheduler, and objects with `std::string save() const` and `void load(const
  // std::string&)`. Each rank saves its object. On a different number of ranks, all restore that of rank 0.
  template <class Object>
  void keep(const std::string& name, Object& object) {
    keep(name, detail::saver_of(object), detail::loader_of(object));
  }
  void keep(const std::string& name, std::function<std::string()> save, std::function<void(const std::string&)> load);

  int64_t step() const;  // steps done
  bool resumed() const;  // started from a checkpoint, or from the state of other ranks
  bool stopped() const;  // ended early on a stop request
  const std::string& folder() const;

  // Collective. Writes the summary. Only destruction is allowed afterwards.
  void finish();

  // Internal: api/run/run_impl.h.
  struct Impl;
  Impl& impl() const { return *impl_; }
  explicit Run(std::unique_ptr<Impl> impl);

 private:
  Share share_rows(detail::RowSource source, const ShareOptions& options);
  void each_batch_of(detail::RowSource source, const ShareOptions& options, const BatchBody& body);
  Share once_rows(detail::RowSource source, int64_t batch_size);

  std::unique_ptr<Impl> impl_;
};

}  // namespace convoy
