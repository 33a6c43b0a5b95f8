#include "convoy/load.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "api/components.h"
#include "api/job_impl.h"
#include "api/loaded_model.h"
#include "core/base/error.h"
#include "core/checkpoint/stored_files.h"
#include "core/checkpoint/weight_source.h"
#include "core/config/node.h"
#include "core/config/reader.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/formats/delimited.h"
#include "core/files/run_files.h"
#include "core/files/weight_files.h"

namespace convoy {
namespace {

// A checkpoint without its tensors.
struct StoredRun {
  std::string folder;  // step-N
  Manifest manifest;
  RunConfig config;
  int members = 0;  // 0: a single model
};

Json changed_config(const Json& config, const std::string& manifest, const std::vector<std::string>& settings) {
  if (settings.empty()) return config;
  Node tree = node_of(without_locations(config), {{"", {manifest, 0, 0}}});
  for (const std::string& setting : settings) apply_override(tree, setting);
  return read_run_tree(tree, builtin_registry().catalogues).resolved;
}

StoredRun stored_run(const MemberPath& named, const LoadOptions& options) {
  std::error_code none;
  if (!std::filesystem::exists(named.path, none))
    throw Error(Failure::command_line, "convoy::load: ", named.path,
                " does not exist; give a run folder or a checkpoint");
  if (!is_checkpoint_path(named.path))
    throw Error(Failure::command_line, "convoy::load: ", named.path, " is neither a run folder nor a checkpoint");
  StoredRun stored;
  stored.folder = named_checkpoint(named.path, "convoy::load");
  stored.manifest = read_manifest_file(stored.folder);
  stored.config = RunConfig::from_resolved(
      changed_config(stored.manifest.config, stored.folder + "/manifest.json", options.settings));
  for (const StoredPiece& piece : stored.manifest.pieces) stored.members = std::max(stored.members, piece.member + 1);
  return stored;
}

void check_device(const c10::Device& device) {
  if (device.is_cpu()) return;
  if (!device.is_cuda())
    throw Error(Failure::device_missing, "convoy::load: device ", device.str(),
                ": convoy computes on CPUs and CUDA's GPUs; take torch::kCPU");
  const int64_t gpus = at::hasCUDA() ? at::detail::getCUDAHooks().getNumGPUs() : 0;
  if (std::max<int64_t>(device.index(), 0) < gpus) return;
  throw Error(Failure::device_missing, "convoy::load: device ", device.str(), " is not there: ",
              gpus == 0 ? std::string("no GPU was found, or this LibTorch is for CPUs; take torch::kCPU")
                        : str("this host has the devices cuda:0 to cuda:", gpus - 1));
}

std::vector<LoadedModel> load_all(const std::string& run, const LoadOptions& options, bool several) {
  check_device(options.device);
  const MemberPath named = checkpoint_path(run, "convoy::load");
  StoredRun stored = stored_run(named, options);
  if (stored.members > 0 && named.member < 0 && !several)
    throw Error(Failure::config, "convoy::load: ", run, " is of an ensemble with ", stored.members,
                " members; name one, as in ", run, "@member0, or call load_members");
  const Registry registry = make_registry(stored.config);
  LoadRequest request;
  request.checkpoint = stored.folder;
  request.schema = stored_schema(stored.manifest, stored.folder, stored.config, registry);
  request.contents = stored_contents(stored.manifest, stored.folder);
  request.config = std::move(stored.config);
  request.device = options.device;
  std::vector<LoadedModel> models;
  const int first = std::max(named.member, 0);
  const int end = stored.members > 0 && named.member < 0 ? stored.members : first + 1;
  for (int member = first; member < end; ++member) {
    request.member = stored.members > 0 ? member : named.member;
    models.push_back(load_model(request, registry));
  }
  return models;
}

Context serving_context(const LoadRequest& request) {
  Context context;
  context.config = request.config;
  context.devices = {request.device};
  return context;
}

// Returns the model's tensors by canonical name. The checkpoint must have exactly these.
std::map<std::string, at::Tensor> tensors_of(const ModelPart& part) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto* list : {&part.parameters(), &part.tables(), &part.frozen()})
    for (const ParameterPtr& parameter : *list) tensors[parameter->name] = parameter->value.detach();
  for (const NamedBuffer& buffer : part.buffers()) tensors[buffer.name] = buffer.value.detach();
  return tensors;
}

void fill_tensors(const LoadRequest& request, const std::map<std::string, at::Tensor>& tensors) {
  const std::string path = request.member < 0 ? request.checkpoint : str(request.checkpoint, "@member", request.member);
  const std::unique_ptr<WeightSource> source = open_weights(path, /*verify=*/false);  // hashes are checked already
  std::map<std::string, std::vector<int64_t>> stored;
  for (const SourceTensor& tensor : source->tensors()) stored[tensor.name] = tensor.shape;
  std::vector<std::string> faults;
  for (const auto& [name, tensor] : tensors) {
    const auto found = stored.find(name);
    if (found == stored.end())
      faults.push_back(str("lacks ", name));
    else if (at::IntArrayRef(found->second) != tensor.sizes())
      faults.push_back(
          convoy::str("has ", name, " of shape ", at::IntArrayRef(found->second), " instead of ", tensor.sizes()));
  }
  for (const auto& [name, shape] : stored)
    if (tensors.count(name) == 0) faults.push_back(str("has ", name, " in addition"));
  if (!faults.empty()) {
    const size_t more = faults.size() - std::min<size_t>(faults.size(), 3);
    faults.resize(faults.size() - more);
    throw Error(Failure::config, "model: ", path, " does not match this model: it ", join(faults, ", it "),
                more > 0 ? str(" and ", more, " more") : "", "; load it with the model that was trained");
  }
  for (const auto& [name, tensor] : tensors) source->read({}, {name}, Piece::whole(tensor.sizes().vec()), tensor);
}

// Returns the name of the only field that the model reads. Error(config) if it may read several.
std::string only_input(const Schema& schema) {
  std::vector<std::string> inputs, all;
  for (const auto& [name, field] : schema.fields) {
    all.push_back(name);
    if (name != "target" && name != "weight") inputs.push_back(name);
  }
  if (inputs.size() == 1) return inputs.front();
  throw Error(Failure::config, "LoadedModel::forward(tensor): rows of this model have the fields ", join(all, ", "),
              "; call forward(Batch) with the fields that the model reads");
}

}  // namespace

Schema stored_schema(const Manifest& manifest, const std::string& folder, const RunConfig& config,
                     const Registry& registry) {
  if (!manifest.schema.is_null()) return schema_from_json(manifest.schema, folder + "/manifest.json");
  RunConfig read = config;
  const std::optional<DataContents> contents = stored_contents(manifest, folder);
  return make_components(read, registry,
                         [&](const DatasetPtr& data) {
                           if (!contents) return data;
                           const DataChange change = data_change(*contents, data->contents());
                           const DatasetPtr numbered = change.renumber ? data->numbered_as(*contents) : data;
                           return numbered ? numbered : data;
                         })
      .data->schema();
}

EvaluationTransforms::EvaluationTransforms(const RunConfig& config, const Registry& registry)
    : seed_(data_seed(config.data.options, config.seed)) {
  for (const Options& options : config.data.options.sections("transforms"))
    if (auto transform = registry.transforms.make(options.text("name"), options); transform->evaluation_too())
      transforms_.push_back(std::move(transform));
}

void EvaluationTransforms::apply(Batch& batch, int64_t first) const {
  const at::Tensor indices = at::arange(first, first + batch.rows);
  for (const auto& transform : transforms_) transform->apply(batch, indices, seed_, 0);
}

LoadedModel::Impl::Impl(LoadRequest given, ModelPtr made, int64_t steps, const Registry& registry)
    : request(std::move(given)),
      model(std::move(made)),
      step(steps),
      transforms(request.config, registry),
      part(serving_context(request), model, nullptr) {
  tensors = tensors_of(part);
  fill_tensors(request, tensors);
}

LoadedModel load_model(LoadRequest request, const Registry& registry) {
  ModelPtr model = registry.models.make(request.config.model.name, request.config.model.options, request.schema);
  const int64_t step = read_manifest_file(request.checkpoint).step;
  return LoadedModel(std::make_unique<LoadedModel::Impl>(std::move(request), std::move(model), step, registry));
}

LoadedModel::LoadedModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LoadedModel::LoadedModel(LoadedModel&&) noexcept = default;
LoadedModel& LoadedModel::operator=(LoadedModel&&) noexcept = default;
LoadedModel::~LoadedModel() = default;

namespace {

// Returns all rows as one batch on the model's device.
Batch whole_batch(NewRows& rows, const LoadedModel::Impl& impl) {
  RowBlock block;
  if (!rows.next(block)) throw Error(Failure::corrupt_data, "LoadedModel::prepare: there are no rows");
  impl.transforms.apply(block.batch, 0);
  for (auto& [name, tensor] : block.batch.tensors) tensor = tensor.to(impl.request.device);
  return std::move(block.batch);
}

NewRowsOptions in_one_block() { return {false, std::numeric_limits<int64_t>::max()}; }

}  // namespace

Batch LoadedModel::prepare(const std::string& text) const {
  return whole_batch(*new_text_rows(text, "LoadedModel::prepare", impl_->trained(), in_one_block()), *impl_);
}

Batch LoadedModel::prepare_arrays(const std::vector<std::pair<std::string, at::Tensor>>& fields) const {
  return whole_batch(*new_array_rows(fields, "LoadedModel::prepare_arrays", impl_->trained(), in_one_block()), *impl_);
}

TensorList LoadedModel::forward(const Batch& batch) const {
  for (const auto& [name, field] : schema().fields) {
    if (name != "target" && name != "weight" && batch.find(name) == nullptr)
      throw Error(Failure::config, "LoadedModel::forward: the batch has no field ", name,
                  ", which rows had in training; LoadedModel::schema() lists the fields");
  }
  for (const auto& [name, tensor] : batch.tensors)
    if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) != batch.rows)
      throw Error(Failure::config, "LoadedModel::forward: field ", name, " is ",
                  tensor.defined() ? convoy::str("of shape ", tensor.sizes()) : "undefined", ", and the batch has ",
                  batch.rows, " rows; dimension 0 is rows");
  return impl_->part.evaluate(batch);
}

at::Tensor LoadedModel::forward(const at::Tensor& input) const {
  Batch batch;
  const std::string name = only_input(schema());
  const Field& field = schema().at(name, "LoadedModel::forward");
  if (input.dim() == 0 || (name == "features" && input.sizes().slice(1) != at::IntArrayRef(field.shape)))
    throw Error(Failure::config, "LoadedModel::forward: rows have the shape ",
                input.dim() == 0 ? at::IntArrayRef() : input.sizes().slice(1), ", and the model takes ",
                at::IntArrayRef(field.shape), "; prepare() makes such rows of the values of the training file");
  batch.tensors.emplace_back(name, input);
  batch.rows = batch.global_rows = batch.nominal_rows = input.size(0);
  return forward(batch).front();
}

const Schema& LoadedModel::schema() const { return impl_->request.schema; }

std::vector<std::string> LoadedModel::names(const std::string& list) const {
  const std::optional<DataContents>& contents = impl_->request.contents;
  if (!contents) return {};
  const auto found = contents->lists.find(list);
  std::vector<std::string> all;
  if (found != contents->lists.end())
    for (const std::string& name : found->second.names.strings()) all.push_back(plain_name(name));
  return all;
}

int64_t LoadedModel::step() const { return impl_->step; }
const std::string& LoadedModel::checkpoint() const { return impl_->request.checkpoint; }

LoadedModel load(const std::string& run, const LoadOptions& options) {
  return std::move(load_all(run, options, /*several=*/false).front());
}

std::vector<LoadedModel> load_members(const std::string& run, const LoadOptions& options) {
  return load_all(run, options, /*several=*/true);
}

}  // namespace convoy
