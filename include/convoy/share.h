// Batches of a Run: options, one rank's rows, and the range of batches.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <torch/data/example.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy {

// An interval in steps or epochs.
struct Every {
  enum class Unit { never, steps, epochs };
  Unit unit = Unit::never;
  int64_t count = 0;

  static Every never() { return {}; }
  static Every steps(int64_t count) { return {Unit::steps, count}; }
  static Every epochs(int64_t count) { return {Unit::epochs, count}; }
};

enum class Best { highest, lowest };

// Keys and values of the section `data`, as in `convoy run --set data.KEY=VALUE`: {"path", "shop.csv"}.
using DataOptions = std::vector<std::pair<std::string, std::string>>;

// Options that are not set have the value of the job: `seed`, `train.checkpoint_every`, `train.keep_last` and
// `train.log_every` in YAML or --set, or their defaults. A value that the user wrote there overrides a value set here.
struct ShareOptions {
  int64_t epochs = 1;       // 0: no limit; max_steps ends the training
  int64_t batch_size = 64;  // rows of a global batch, over all ranks
  int64_t max_steps = 0;    // 0: no limit
  bool shuffle = true;
  bool drop_last = false;  // leave out the last batch of an epoch if it is smaller
  std::optional<uint64_t> seed = {};
  std::optional<Every> checkpoint_every = {};
  std::optional<int64_t> keep_last = {};  // checkpoints to keep; 0: all
  std::optional<int64_t> log_every = {};  // steps between metrics
  // Batches that a thread reads ahead; 0: no thread. Default for data sets of convoy: data.prefetch. Default for data
  // sets of torch::data: 0, because one that draws from LibTorch's generators cannot be read ahead and resume exactly.
  std::optional<int64_t> prefetch = {};
};

// This rank's rows of a global batch, on the device of the rank. A rank may get no rows; its tensors then have 0 rows.
// Loops over indices have undefined tensors.
struct ShareBatch {
  at::Tensor data;    // features of the rows; field "features" of a data set of convoy
  at::Tensor target;  // field "target"; undefined if the data set has none
  std::vector<std::pair<std::string, at::Tensor>> fields;  // all tensors of a data set of convoy, by name
  at::Tensor indices;                                      // int64 on the CPU: row numbers in the data set
  int64_t rows = 0;                                        // rows of this rank
  int64_t first_row = 0;                                   // number of its first row in the global batch
  int64_t global_rows = 0;                                 // rows over all ranks
  int64_t step = 0;                                        // counts from 0
  int64_t epoch = 0;                                       // counts from 1
  bool ends_epoch = false;                                 // last batch of an epoch

  const at::Tensor& at(const std::string& field) const;  // Error(config) that lists the fields
};

// A range of batches, for one range-based for loop.
//
// Leaving the body of a training loop by `break` after step() completes that step. Errors: as for Run.
class Share {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = ShareBatch;
    using difference_type = std::ptrdiff_t;
    using pointer = ShareBatch*;
    using reference = ShareBatch&;

    ShareBatch& operator*() const { return share_->batch(); }
    ShareBatch* operator->() const { return &share_->batch(); }
    Iterator& operator++() {
      if (!share_->next()) share_ = nullptr;
      return *this;
    }
    bool operator==(const Iterator& other) const { return share_ == other.share_; }
    bool operator!=(const Iterator& other) const { return share_ != other.share_; }

   private:
    friend class Share;
    explicit Iterator(Share* share) : share_(share) {}
    Share* share_;
  };

  Share(Share&&) noexcept;
  Share& operator=(Share&&) = delete;
  ~Share() noexcept(false);

  Iterator begin() { return Iterator(next() ? this : nullptr); }
  Iterator end() { return Iterator(nullptr); }
  int64_t steps_per_epoch() const;
  int64_t steps() const;  // steps of the whole range, with those before a resume

  struct Impl;
  explicit Share(std::unique_ptr<Impl> impl);

 private:
  bool next();  // completes the current batch and reads the next one; false: there is none
  ShareBatch& batch() const;

  std::unique_ptr<Impl> impl_;
};

// Adapters for data sets of torch::data and for objects of Run::keep. Internal.
namespace detail {

struct Rows {
  at::Tensor data, target;
};

struct RowSource {
  int64_t rows = 0;
  std::function<Rows(const std::vector<size_t>&)> read;
};

inline Rows rows_from(const at::Tensor& data) { return {data, {}}; }
inline Rows rows_from(const torch::data::Example<>& batch) { return {batch.data, batch.target}; }
inline Rows rows_from(const torch::data::TensorExample& batch) { return {batch.data, {}}; }
inline Rows rows_from(const std::pair<at::Tensor, at::Tensor>& batch) { return {batch.first, batch.second}; }

// Stacks examples to a batch.
template <class Example>
Rows rows_from(const std::vector<Example>& examples) {
  std::vector<at::Tensor> data, targets;
  for (const Example& example : examples) {
    Rows one = rows_from(example);
    data.push_back(std::move(one.data));
    if (one.target.defined()) targets.push_back(std::move(one.target));
  }
  return {at::stack(data), targets.empty() ? at::Tensor() : at::stack(targets)};
}

template <class Dataset, class = void>
struct HasGetBatch : std::false_type {};
template <class Dataset>
struct HasGetBatch<Dataset,
                   std::void_t<decltype(std::declval<Dataset&>().get_batch(std::declval<std::vector<size_t>&>()))>>
    : std::true_type {};

template <class Dataset>
using EnableForDatasets =
    std::enable_if_t<std::is_class_v<std::decay_t<Dataset>> && !std::is_convertible_v<Dataset, std::string>>;

inline int64_t size_from(size_t size) { return static_cast<int64_t>(size); }
inline int64_t size_from(const std::optional<size_t>& size) { return size ? static_cast<int64_t>(*size) : -1; }

template <class Dataset>
RowSource source_of(std::shared_ptr<Dataset> dataset) {
  const int64_t rows = size_from(dataset->size());
  return {rows, [dataset](const std::vector<size_t>& indices) {
            if constexpr (HasGetBatch<Dataset>::value) {
              return rows_from(dataset->get_batch(indices));
            } else {
              std::vector<std::decay_t<decltype(dataset->get(size_t{0}))>> examples;
              for (size_t index : indices) examples.push_back(dataset->get(index));
              return rows_from(examples);
            }
          }};
}

template <class Dataset>
RowSource source_of(Dataset&& dataset) {
  using Held = std::decay_t<Dataset>;
  return source_of(std::make_shared<Held>(std::forward<Dataset>(dataset)));
}

// --- Objects of Run::keep as text ---

// Gives access to the step count of a scheduler, which is its state; learning rates belong to the optimizer.
struct SchedulerState : torch::optim::LRScheduler {
  static unsigned& count(torch::optim::LRScheduler& scheduler) { return scheduler.*(&SchedulerState::step_count_); }
};

template <class Object>
std::function<std::string()> saver_of(Object& object) {
  if constexpr (std::is_arithmetic_v<Object>) {
    return [&object] {
      std::ostringstream text;
      text.precision(17);
      text << +object;
      return text.str();
    };
  } else if constexpr (std::is_same_v<Object, std::string>) {
    return [&object] { return object; };
  } else if constexpr (std::is_base_of_v<torch::optim::LRScheduler, Object>) {
    return [&object] { return std::to_string(SchedulerState::count(object)); };
  } else {
    return [&object] { return object.save(); };
  }
}

template <class Object>
std::function<void(const std::string&)> loader_of(Object& object) {
  if constexpr (std::is_floating_point_v<Object>) {
    return [&object](const std::string& text) { object = static_cast<Object>(std::stod(text)); };
  } else if constexpr (std::is_arithmetic_v<Object>) {
    return [&object](const std::string& text) {
      object =
          std::is_unsigned_v<Object> ? static_cast<Object>(std::stoull(text)) : static_cast<Object>(std::stoll(text));
    };
  } else if constexpr (std::is_same_v<Object, std::string>) {
    return [&object](const std::string& text) { object = text; };
  } else if constexpr (std::is_base_of_v<torch::optim::LRScheduler, Object>) {
    return
        [&object](const std::string& text) { SchedulerState::count(object) = static_cast<unsigned>(std::stoul(text)); };
  } else {
    return [&object](const std::string& text) { object.load(text); };
  }
}

}  // namespace detail

}  // namespace convoy
