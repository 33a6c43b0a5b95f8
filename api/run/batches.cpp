#include "api/run/batches.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <mutex>
#include <utility>

#include "core/config/node.h"
#include "core/config/option_reader.h"
#include "core/config/reader.h"
#include "core/data/catalogue/catalogue.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/registry.h"

namespace convoy {
namespace {

// A data set of the program, as a data set of convoy with the fields `data` and `target`.
class SourceDataset : public Dataset {
 public:
  explicit SourceDataset(detail::RowSource source) : source_(std::move(source)) {}

  Schema schema() const override { return {}; }
  int64_t size(Split) const override { return source_.rows; }
  int64_t instances_per_row() const override { return 1; }

  Batch gather(Split, const at::Tensor& indices, int64_t, BatchBuffers&) const override {
    const int64_t* from = indices.const_data_ptr<int64_t>();
    const std::vector<size_t> rows(from, from + indices.numel());
    const detail::Rows read = rows.empty() ? no_rows() : source_.read(rows);
    Batch batch;
    batch.rows = indices.numel();
    for (const auto& [name, tensor] : {std::pair("data", read.data), std::pair("target", read.target)}) {
      if (!tensor.defined()) continue;
      if (tensor.dim() == 0 || tensor.size(0) != batch.rows)
        throw Error(Failure::config, "the data set of share returned '", name, "' of shape ", tensor.sizes(), " for ",
                    batch.rows, " rows; dimension 0 must be the rows, in the order of the indices");
      batch.tensors.emplace_back(name, tensor);
    }
    return batch;
  }

 private:
  // Tensors with the shape and type of a row, and no rows.
  detail::Rows no_rows() const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!empty_.data.defined()) {
      empty_ = source_.read({0});
      for (at::Tensor* tensor : {&empty_.data, &empty_.target})
        if (tensor->defined()) *tensor = tensor->narrow(0, 0, 0).clone();
    }
    return empty_;
  }

  const detail::RowSource source_;
  mutable std::mutex mutex_;
  mutable detail::Rows empty_;
};

const Option& data_option() {
  for (const Option& option : run_options())
    if (option.name == "data") return option;
  throw Error(Failure::internal, "no option data");
}

}  // namespace

OpenData open_source(detail::RowSource source) {
  if (source.rows < 0)
    throw Error(Failure::config,
                "the data set of share has no size: its size() returned nothing; give a map-style data set");
  if (!source.read) throw Error(Failure::config, "the data set of share has no function that reads rows");
  OpenData open;
  open.rows = source.rows;
  open.data = std::make_shared<SourceDataset>(std::move(source));
  return open;
}

OpenData open_indices(int64_t rows) {
  OpenData open;
  open.rows = rows;
  return open;
}

OpenData open_named(const std::string& name, const DataOptions& options, uint64_t seed) {
  const SourceLocation location{"share(\"" + name + "\")", 0, 0};
  Node root = map_node(location);
  root.fields.push_back({"data", location, map_node(location)});
  root.fields.front().value.fields.push_back({"name", location, scalar_node(name, location, true)});
  for (const auto& [key, value] : options) apply_override(root, "data." + key + "=" + value);
  Catalogues catalogues;
  catalogues.kinds["data"] = dataset_catalogue();
  catalogues.kinds["transform"] = transform_catalogue();
  OptionReader reader(catalogues, {});
  const Json values = reader.read_component(data_option(), *root.find("data"), "data");
  const Options data(values, reader.locations(), "data");
  if (const Entry* entry = catalogues.find("data", name); entry != nullptr && entry->check) entry->check(data);
  check_data_files(name, data);
  check_data_sizes(name, data);
  check_transforms(data, declared_schema(name, data));

  Registry registry;
  register_core(registry);
  OpenData open;
  open.seed = data_seed(data, seed);
  open.data = registry.datasets.make(name, data, open.seed);
  for (const Options& transform : data.sections("transforms"))
    open.transforms.push_back(registry.transforms.make(transform.text("name"), transform));
  open.rows = open.data->size(Split::train);
  open.identity = str(name, " ", open.data->contents().fingerprint);
  open.prefetch = LoaderOptions::from(data, seed).prefetch;
  open.counts = {open.data->instances_per_row(), open.data->tokens_per_row()};
  return open;
}

Batches::Batches(const OpenData& data, const Sampler& sampler, const Request& request)
    : sampler_(sampler), request_(request), step_(request.first_step) {
  if (!data.data || request.first_step >= request.end_step) return;
  if (request.split == Split::train)
    loader_.emplace(data.data, data.transforms, sampler_, request.first_step, request.end_step, request.loader);
  else
    loader_.emplace(data.data, data.transforms, sampler_.rows_of(0), request.loader);
}

Batches::~Batches() = default;

void Batches::read(ShareBatch& batch) {
  const LoaderOptions& loader = request_.loader;
  batch = {};
  batch.step = step_;
  batch.epoch = sampler_.epoch_of(step_) + 1;
  batch.global_rows = sampler_.rows_of(step_);
  batch.indices = sampler_.indices(step_, loader.share_index, loader.share_count);
  batch.rows = batch.indices.numel();
  batch.first_row = share_of(batch.global_rows, loader.share_index, loader.share_count).first;
  ++step_;
  if (!loader_) return;
  std::optional<Batch> read = loader_->next();
  CONVOY_CHECK(read && read->rows == batch.rows, "the loader and the sampler differ at step ", batch.step);
  for (const auto& [name, tensor] : read->tensors) {
    if (name == "data" || name == "features") batch.data = tensor;
    if (name == "target") batch.target = tensor;
  }
  batch.fields = std::move(read->tensors);
}

DataTime Batches::time() const {
  return loader_ ? DataTime{loader_->waited_seconds(), loader_->cpu_seconds()} : DataTime{};
}

const at::Tensor& ShareBatch::at(const std::string& field) const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : fields) {
    if (name == field) return tensor;
    names.push_back(name);
  }
  throw Error(Failure::config, "the batch has no field '", field, "'; it has ",
              names.empty() ? std::string("only indices") : join(names, ", "));
}

}  // namespace convoy
