// Batches: reads one rank's rows of each global batch, from a data set or as indices alone.
// Threads: the rank's thread. A loader may read ahead on another thread. Errors: those of the data set.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <convoy/share.h>
#include "core/data/dataset.h"
#include "core/data/loader.h"
#include "core/data/sampler.h"
#include "core/training/progress.h"

namespace convoy {

// A data set with its transforms.
struct OpenData {
  DatasetPtr data;  // null: indices alone
  std::vector<std::shared_ptr<const Transform>> transforms = {};
  int64_t rows = 0;           // rows of the training split
  std::string identity = "";  // equal on all ranks, and equal again for a resumed run; "": unknown
  uint64_t seed = 1;          // seed of the sampler and of random values
  // Batches that a thread reads ahead. nullopt: the loader chooses.
  std::optional<int64_t> prefetch = 0;
  RowCounts counts = {};
};

// Opens a source; both splits have its rows.
OpenData open_source(detail::RowSource source);
OpenData open_indices(int64_t rows);
// Reads a data set of convoy. `options`: pairs of key and value, as of --set. ConfigError names the key.
OpenData open_named(const std::string& name, const DataOptions& options, uint64_t seed);

class Batches {
 public:
  struct Request {
    Split split = Split::train;  // evaluate: one pass, in order
    int64_t first_step = 0, end_step = 0;
    LoaderOptions loader = {};  // share, device, prefetch and seed
  };
  Batches(const OpenData& data, const Sampler& sampler, const Request& request);
  ~Batches();

  // Reads the rows of the next step, from first_step on. Sets all fields except the end of the epoch.
  void read(ShareBatch& batch);
  DataTime time() const;

 private:
  const Sampler sampler_;
  const Request request_;
  int64_t step_;
  std::optional<Loader> loader_;
};

}  // namespace convoy
