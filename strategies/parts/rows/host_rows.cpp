#include "strategies/parts/rows/host_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/limits.h"
#include "core/text.h"
#include "strategies/parts/init.h"
#include "strategies/parts/replicas/sync_entry.h"
#include "strategies/parts/rows/row_shares_entry.h"
#include "strategies/parts/rows/row_tables.h"

namespace convoy {
namespace {

Timeout meeting_time(const Context& context) {
  return Timeout(static_cast<int64_t>(context.config.launch.rendezvous * 1000));
}

bool willing(const Context& context) { return context.config.resolved.at("launch").value("host_memory", true); }

// The axis' ranks by host, each list in order.
std::map<std::string, std::vector<int>> ranks_by_host(const Context& context, const std::string& label) {
  Communicator& data = *context.axis("data");
  const std::string here = willing(context) ? this_kernel() + " " + context.host : "";
  const auto hosts = context.channel->agree(label, data.rank(), data.size(), here, meeting_time(context));
  std::map<std::string, std::vector<int>> ranks;
  for (int rank = 0; rank < data.size(); ++rank) ranks[hosts[static_cast<size_t>(rank)]].push_back(rank);
  return ranks;
}

}  // namespace

std::shared_ptr<HostRows> HostRows::meet(const Context& context) {
  Communicator& data = *context.axis("data");
  const std::vector<int> axis = context.mesh.group(context.rank, "data");
  const std::string label = convoy::str("tables/", axis.front());
  const auto by_host = ranks_by_host(context, label + "/hosts");
  const size_t size = by_host.begin()->second.size();
  for (const auto& [host, ranks] : by_host)
    if (host.empty() || ranks.size() != size) return nullptr;
  if (size == 1) return nullptr;
  for (const auto& [host, ranks] : by_host) {
    const auto own = std::find(ranks.begin(), ranks.end(), data.rank());
    if (own == ranks.end()) continue;
    const auto place = static_cast<int>(own - ranks.begin());
    const std::string part = convoy::str(label, "/", ranks.front());
    // Whether all can: a page for a try.
    const bool can = HostMemory::meet(*context.channel, part + "/try", place, static_cast<int>(size), 4096,
                                      meeting_time(context)) != nullptr;
    const auto all =
        context.channel->agree(label + "/can", data.rank(), data.size(), can ? "yes" : "no", meeting_time(context));
    if (std::count(all.begin(), all.end(), "yes") < data.size()) return nullptr;
    return std::shared_ptr<HostRows>(new HostRows(context, part, place, static_cast<int>(size)));
  }
  return nullptr;
}

HostRows::HostRows(const Context& context, std::string label, int rank, int size)
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

at::Tensor HostRows::zeros(at::IntArrayRef shape, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype);
  int64_t bytes = static_cast<int64_t>(options.dtype().itemsize());
  for (const int64_t length : shape) bytes *= length;
  promised_ += bytes;
  if (room_ && promised_ > *room_)
    throw Error(
        Failure::out_of_memory,
        convoy::str(
            "a table of ", human_bytes(static_cast<double>(bytes)),
            " that the ranks of a host share: with it, tables and their moments take ",
            human_bytes(static_cast<double>(promised_)), ", and the host had ",
            human_bytes(static_cast<double>(*room_)),
            " left; take smaller ones, an optimizer with fewer moments, or model.rows: sharded on several hosts"));
  auto memory = HostMemory::first_come(*channel_, convoy::str(label_, "/", made_++), std::max<int64_t>(bytes, 1));
  if (memory == nullptr)
    throw Error(Failure::out_of_memory,
                convoy::str("no memory for a table of ", bytes,
                            " bytes that the ranks of a host share; take a smaller one, or launch.host_memory: false"));
  // A hint, which most systems do not take for memory of this kind.
  madvise(memory->data(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
  kept_.push_back(memory);
  unpublished_ = true;
  char* const data = memory->data();
  return at::from_blob(
      data, shape, [memory](void*) {}, options);
}

std::shared_ptr<const RowBlocks> HostRows::blocks(int64_t rows) const {
  return std::make_shared<RowBlocks>(rows, rank_, size_);
}

// What a rank wrote before its part of the sum is seen by all who have the sum.
void HostRows::publish() {
  if (publishing_) publishing_->wait();
  publishing_ = group_->all_reduce(token_, ReduceOp::max, {"tables of a host", {}});
  unpublished_ = false;
}

void HostRows::read() {
  if (unpublished_) publish();
  if (!publishing_) return;
  publishing_->wait();
  publishing_.reset();
  kept_.clear();
}

namespace {

class HostRowLayers : public PlainLayers {
 public:
  // `tell`: Context's.
  HostRowLayers(std::shared_ptr<LayerStore> store, std::shared_ptr<HostRows> host,
                std::function<void(const Json&)> tell, const std::string& prefix = "")
      : PlainLayers(store, prefix), store_(std::move(store)), host_(std::move(host)), tell_(std::move(tell)) {}

  std::shared_ptr<Layers> scope(const std::string& name) override {
    return std::make_shared<HostRowLayers>(store_, host_, tell_, this->name(name) + ".");
  }

  Layer embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) override {
    const std::string weight = this->name(name) + ".weight";
    if (!store_->rows->applies(weight, rows, options)) return PlainLayers::embedding(name, rows, dim, options);
    return table_embedding(make_table(weight, {rows, dim}, options.weight), *store_, nullptr, host_);
  }

 private:
  ParameterPtr make_table(const std::string& name, const std::vector<int64_t>& shape, const Init& init) {
    check_sizes(name, shape);
    auto parameter = std::make_shared<Parameter>();
    parameter->name = name;
    parameter->counted = store_->counts;
    parameter->value = host_->zeros(shape, store_->dtype);
    parameter->initial = [init, fans = fans_of(shape), seed = store_->seed, name](const at::Tensor& out,
                                                                                  int64_t first) {
      fill_initial(out, init, fans, seed, name, static_cast<uint64_t>(first));
    };
    for (const RowBlocks::Stretch& own : host_->blocks(shape[0])->own())
      parameter->initial(parameter->value.narrow(0, own.first, own.rows), own.first * shape[1]);
    tell_({{"tables_shared_by", host_->group().size()}});
    parameter->value.set_requires_grad(true);
    record_parameter(*store_, parameter);
    return parameter;
  }

  std::shared_ptr<LayerStore> store_;
  std::shared_ptr<HostRows> host_;
  std::function<void(const Json&)> tell_;
};

// Whether there may be row tables that all ranks have, and update together in every update.
bool may_share(const Context& context) {
  if (context.axis("data")->size() == 1 || !context.devices.front().is_cpu()) return false;
  const Json& model = context.config.model.options.json();
  if (asks_for_shares(context.config.model.options) || (model.contains("rows") && model["rows"] == false)) return false;
  const SyncPolicy policy = sync_policy(context.config.strategy.options.json());
  return std::all_of(policy.groups.begin(), policy.groups.end(),
                     [](const SyncGroup& group) { return group.what == Agreement::gradients; });
}

}  // namespace

std::function<std::shared_ptr<Layers>(std::shared_ptr<LayerStore>)> host_row_layers(const Context& context) {
  const std::shared_ptr<HostRows> host = may_share(context) ? HostRows::meet(context) : nullptr;
  if (host == nullptr) return {};
  return [host, tell = context.tell](std::shared_ptr<LayerStore> store) {
    return std::make_shared<HostRowLayers>(std::move(store), host, tell);
  };
}

}  // namespace convoy
