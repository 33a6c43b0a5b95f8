#include "strategies/sparse/shared_rows.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/limits.h"
#include "core/tensors/init.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "strategies/plans/options/step_options.h"
#include "strategies/sparse/sparse_embedding.h"

namespace convoy {
namespace {

bool host_memory_allowed(const Context& context) { return context.config.launch.host_memory; }

// Ranks of the axis by host, each list in order.
std::map<std::string, std::vector<int>> ranks_by_host(const Context& context, const std::string& label) {
  Communicator& data = *context.axis("data");
  const std::string here = host_memory_allowed(context) ? this_kernel() + " " + context.host : "";
  const auto hosts =
      context.channel->agree(label, data.rank(), data.size(), here, timeout_of(context.config.launch.rendezvous));
  std::map<std::string, std::vector<int>> ranks;
  for (int rank = 0; rank < data.size(); ++rank) ranks[hosts[size_t(rank)]].push_back(rank);
  return ranks;
}

}  // namespace

std::shared_ptr<SharedRows> SharedRows::create(const Context& context) {
  Communicator& data = *context.axis("data");
  const std::vector<int> axis = context.mesh.group(context.rank, "data");
  const std::string label = convoy::str("tables/", axis.front());
  const auto by_host = ranks_by_host(context, label + "/hosts");
  const size_t size = by_host.begin()->second.size();
  for (const auto& [host, ranks] : by_host)
    if (host.empty() || ranks.size() != size) return nullptr;
  if (size == 1) return nullptr;
  for (const auto& [host, ranks] : by_host) {
    const auto found = std::find(ranks.begin(), ranks.end(), data.rank());
    if (found == ranks.end()) continue;
    const auto index = int(found - ranks.begin());
    const std::string part = convoy::str(label, "/", ranks.front());
    // Tries one page, so that all ranks learn whether all can map.
    const bool can = SharedMemory::create_together(*context.channel, part + "/try", index, int(size), 4096,
                                                   timeout_of(context.config.launch.rendezvous)) != nullptr;
    const auto all = context.channel->agree(label + "/can", data.rank(), data.size(), can ? "yes" : "no",
                                            timeout_of(context.config.launch.rendezvous));
    if (std::count(all.begin(), all.end(), "yes") < data.size()) return nullptr;
    return std::shared_ptr<SharedRows>(new SharedRows(context, part, index, int(size)));
  }
  return nullptr;
}

SharedRows::SharedRows(const Context& context, std::string label, int rank, int size)
    : channel_(context.channel),
      label_(std::move(label)),
      rank_(rank),
      size_(size),
      room_(memory_left()),
      token_(at::zeros({1}, at::kByte)) {
  const CommunicatorPtr data = context.axis("data");
  group_ = data;
  if (size < data->size()) group_ = data->split(data->rank() - rank, rank, {"ranks of a host", {}});
}

at::Tensor SharedRows::zeros(at::IntArrayRef shape, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype);
  int64_t bytes = int64_t(options.dtype().itemsize());
  for (const int64_t length : shape) bytes *= length;
  requested_ += bytes;
  if (room_ && requested_ > *room_)
    throw Error(Failure::out_of_memory, "a table of ", human_bytes(double(bytes)),
                " shared by the ranks of a host: with it, tables and their moments take ",
                human_bytes(double(requested_)), ", and the host had ", human_bytes(double(*room_)),
                " free; use smaller ones, an optimizer with fewer moments, or model.rows: sharded on several hosts");
  auto memory = SharedMemory::create_or_open(*channel_, convoy::str(label_, "/", made_++), std::max<int64_t>(bytes, 1));
  if (memory == nullptr)
    throw Error(Failure::out_of_memory, "no memory for a table of ", bytes,
                " bytes shared by the ranks of a host; use a smaller one, or set launch.host_memory: false: ",
                no_memory_text());
  // Only a hint: most systems ignore it for shared memory.
  madvise(memory->data(), size_t(bytes), MADV_HUGEPAGE);
  kept_.push_back(memory);
  unpublished_ = true;
  char* const data = memory->data();
  return at::from_blob(
      data, shape, [memory](void*) {}, options);
}

std::shared_ptr<const SparseRowBlocks> SharedRows::blocks(int64_t rows) const {
  return std::make_shared<SparseRowBlocks>(rows, rank_, size_);
}

// A rank's earlier writes are visible to every rank that has the sum.
void SharedRows::publish() {
  if (publishing_) publishing_->wait();
  publishing_ = group_->all_reduce(token_, ReduceOp::max, {"tables of a host", {}});
  unpublished_ = false;
}

bool SharedRows::agree(bool yes) {
  if (publishing_) publishing_->wait();
  token_.fill_(yes ? 0 : 1);
  publish();
  read();
  const bool all = token_.item<uint8_t>() == 0;
  token_.zero_();
  return all;
}

void SharedRows::read() {
  if (unpublished_) publish();
  if (!publishing_) return;
  publishing_->wait();
  publishing_.reset();
  kept_.clear();
}

namespace {

class SharedRowLayers : public DefaultLayers {
 public:
  // `report`: Context::add_to_summary.
  SharedRowLayers(std::shared_ptr<LayerStore> store, std::shared_ptr<SharedRows> host,
                  std::function<void(const Json&)> report, const std::string& prefix = "")
      : DefaultLayers(std::move(store), prefix), host_(std::move(host)), report_(std::move(report)) {}

  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<SharedRowLayers>(store_, host_, report_, this->name(name) + ".");
  }

  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override {
    const std::string weight = this->name(name) + ".weight";
    if (!store_->rows->applies(weight, rows, options)) return DefaultLayers::embedding(name, rows, dim, options);
    return sparse_embedding_layer(make_table(weight, {rows, dim}, options.weight), *store_, nullptr, host_);
  }

 private:
  ParameterPtr make_table(const std::string& name, const std::vector<int64_t>& shape, const Init& init) {
    check_sizes(name, shape);
    const at::Tensor value = host_->zeros(shape, store_->dtype);
    const auto initial = initial_values(*store_, name, shape, init);
    for (const SparseRowBlocks::Range& range : host_->blocks(shape[0])->local_ranges())
      initial(value.narrow(0, range.first, range.rows), range.first * shape[1]);
    report_({{"tables_shared_by", host_->group().size()}});
    ParameterPtr parameter = add_parameter(*store_, name, value);
    parameter->initial = initial;
    return parameter;
  }

  std::shared_ptr<SharedRows> host_;
  std::function<void(const Json&)> report_;
};

// Returns true if the run may have sparse embeddings that all ranks hold and update together in every update.
bool may_share(const Context& context) {
  if (context.axis("data")->size() == 1 || !context.devices.front().is_cpu()) return false;
  if (context.config.launch.min_ranks > 0) return false;  // a lost rank may have written half of its rows
  const RowsOption rows = rows_option(context.config.model.options);
  if (rows == RowsOption::sharded || rows == RowsOption::dense) return false;
  return !sync_policy(context.config.strategy.options).ever_local();
}

}  // namespace

LayersFactory shared_row_layers(const Context& context) {
  const std::shared_ptr<SharedRows> host = may_share(context) ? SharedRows::create(context) : nullptr;
  if (host == nullptr) return {};
  return [host, report = context.add_to_summary](std::shared_ptr<LayerStore> store) {
    return std::make_shared<SharedRowLayers>(std::move(store), host, report);
  };
}

}  // namespace convoy
