// hybrid: data, pipeline and tensor axes at once.
#include <algorithm>

#include "core/describe.h"
#include "strategies/parts/sharded_entry.h"
#include "strategies/parts/tensor_group_entry.h"

namespace convoy {
namespace {

constexpr double mib = 1024 * 1024;

// `mesh`, with `data` a number or {degree, how}.
struct Degrees {
  int data = 1, pipeline = 1, tensor = 1;
  std::string how = "ddp";

  int of(const std::string& axis) const { return axis == "data" ? data : axis == "pipeline" ? pipeline : tensor; }
  int64_t product() const { return static_cast<int64_t>(data) * pipeline * tensor; }
};

int degree_of(const Options& mesh, const std::string& key, const Json& value) {
  if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > 1 << 20)
    mesh.fail(key, str("is ", value.dump(), ", must be a number of ranks, at least 1"));
  return static_cast<int>(value.get<int64_t>());
}

Degrees degrees_of(const Options& mesh) {
  Degrees degrees;
  degrees.pipeline = degree_of(mesh, "pipeline", mesh.at("pipeline"));
  degrees.tensor = degree_of(mesh, "tensor", mesh.at("tensor"));
  const Json& data = mesh.at("data");
  if (!data.is_object()) {
    degrees.data = degree_of(mesh, "data", data);
    return degrees;
  }
  for (const auto& [key, value] : data.items()) {
    if (key != "degree" && key != "how")
      mesh.fail("data", str("has the unknown key ", key, "; it takes a number, or {degree: 2, how: ddp | fsdp}"));
  }
  degrees.data = degree_of(mesh, "data", data.value("degree", Json(1)));
  const Json how = data.value("how", Json("ddp"));
  if (how != "ddp" && how != "fsdp") mesh.fail("data", str("has how: ", how.dump(), ", must be ddp or fsdp"));
  degrees.how = how.get<std::string>();
  return degrees;
}

// What a later build takes.
void refuse_what_is_missing(const Options& mesh, const Degrees& degrees) {
  if (degrees.pipeline > 1)
    mesh.fail("pipeline", "above 1 is not in this build; take 1, and more data or tensor ranks");
}

Mesh mesh_of(const Options& options, const Degrees& degrees) {
  const std::vector<std::string> order = options.texts("order");
  for (const std::string axis : {"data", "pipeline", "tensor"}) {
    if (std::count(order.begin(), order.end(), axis) != 1)
      options.fail("order", str("must name data, pipeline and tensor once each, outermost first; it has ", axis, " ",
                                std::count(order.begin(), order.end(), axis), " times"));
  }
  std::vector<Axis> axes;
  for (const std::string& axis : order)
    if (degrees.of(axis) > 1) axes.push_back({axis, degrees.of(axis)});
  if (axes.empty()) axes.push_back({"data", 1});
  return Mesh(std::move(axes));
}

Plan plan(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  const Options& options = config.strategy.options;
  const Options mesh = options.section("mesh");
  const Degrees degrees = degrees_of(mesh);
  refuse_what_is_missing(mesh, degrees);
  if (request.ranks > 0 && degrees.product() != request.ranks)
    options.fail("mesh", str("multiplies to data ", degrees.data, " × pipeline ", degrees.pipeline, " × tensor ",
                             degrees.tensor, " = ", degrees.product(), " ranks, and there are ", request.ranks,
                             "; change a degree, or start ", degrees.product(), " ranks"));
  check_tensor_degree(config, degrees.tensor);
  return plan_on_mesh(config, topology, request, mesh_of(options, degrees));
}

// With `how: fsdp` the data axis divides what the axis tensor leaves of each block.
std::vector<RankCost> sharded_cost(const Job& job, const Description& description) {
  const RankCost group = tensor_group_cost(job, description);
  Description cut = description;
  for (BlockDescription& block : cut.blocks)
    block.parameters += block.cut_parameters / job.mesh.degree("tensor") - block.cut_parameters;
  std::vector<RankCost> costs = sharded_costs(job, cut);
  for (RankCost& cost : costs) {
    cost.bytes_sent_per_step += group.bytes_sent_per_step;
    cost.messages_per_step += group.messages_per_step;
    cost.activation_bytes = group.activation_bytes;
  }
  return costs;
}

std::vector<RankCost> cost(const Job& job, const Description& description) {
  const Options options(job.config.at("strategy"));
  if (degrees_of(options.section("mesh")).how == "fsdp") return sharded_cost(job, description);
  const BucketSizes buckets{options.real("first_bucket_mb") * mib, options.real("bucket_cap_mb") * mib};
  return tensor_costs(job, description, buckets, options.section("sync").integer("every"));
}

Option data_axis() {
  Option data = describe::option(OptionType::any, "data",
                                 "ranks along it, or {degree: 2, how: ddp | fsdp}: replicas, or shards of one", 1);
  return data;
}

}  // namespace

StrategyEntry hybrid_entry() {
  StrategyEntry entry;
  entry.name = "hybrid";
  entry.help = "data, pipeline and tensor axes at once: layers shared out within a replica, rows among replicas";
  entry.options = {
      describe::section("mesh", "degrees of the axes, whose product is the number of ranks",
                        {data_axis(), describe::integer("pipeline", "ranks along it", 1).at_least(1),
                         describe::integer("tensor", "ranks along it", 1).at_least(1)}),
      describe::list("order", "of the axes, outermost first: ranks that are next to each other lie along the last",
                     describe::choice("", "an axis", {"data", "pipeline", "tensor"}),
                     Json::array({"data", "pipeline", "tensor"})),
  };
  for (std::vector<Option> more : {tensor_options(), replicated_data_options(), shard_options()})
    for (Option& option : more) entry.options.push_back(std::move(option));
  entry.options.push_back(sync_option());
  entry.options.push_back(micro_batches_option());
  for (const Option& option : memory_options()) entry.options.push_back(option);
  entry.plan = plan;
  entry.cost = cost;
  return entry;
}

}  // namespace convoy
