// hybrid: data, pipeline and tensor axes at once.
#include <algorithm>
#include <map>
#include <set>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/pipeline.h"
#include "strategies/plans/options/sharded.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "strategies/plans/options/step_options.h"
#include "strategies/plans/options/tensor_group.h"

namespace convoy {
namespace {

Mesh mesh_of(const Options& options, const MeshOptions& degrees) {
  const std::vector<std::string>& order = degrees.order;
  for (const std::string axis : {"data", "pipeline", "tensor"}) {
    if (std::count(order.begin(), order.end(), axis) != 1)
      options.fail("order", "must name data, pipeline and tensor once each, outermost first; it has ", axis, " ",
                   std::count(order.begin(), order.end(), axis), " times");
  }
  std::vector<Axis> axes;
  for (const std::string& axis : order)
    if (degrees.of(axis) > 1) axes.push_back({axis, degrees.of(axis)});
  if (axes.empty()) axes.push_back({"data", 1});
  return Mesh(std::move(axes));
}

// Refuses keys of an axis that the mesh does not have or has in another kind.
std::vector<std::string> check_axis_keys(const Options& options, const MeshOptions& degrees) {
  const SourceLocation data = options.location("mesh.data");
  std::vector<std::string> left_out;
  const auto refuse = [&](const std::vector<std::string>& keys, const std::string& reason,
                          const SourceLocation& because) {
    for (std::string& line : refuse_keys_of(options, keys, reason, because)) left_out.push_back(std::move(line));
  };
  const std::vector<std::string> shards = {"shard", "reshard_after_forward", "units"};
  const std::vector<std::string> buckets = {"bucket_cap_mb", "first_bucket_mb"};
  if (degrees.sharded) {
    refuse(buckets,
           "needs a data axis of replicas, but mesh.data has how: fsdp, which sends unit by unit; leave it out", data);
    for (std::string& line : check_shard_effects(options)) left_out.push_back(std::move(line));
  } else {
    refuse(shards,
           "needs a sharded data axis, but mesh.data has replicas; write mesh.data: {degree: 2, how: fsdp}, or leave "
           "it out",
           data);
    if (degrees.data == 1)
      refuse(buckets, "needs a data axis, but mesh.data is 1, so no replicas reduce gradients; leave it out", data);
  }
  if (degrees.pipeline == 1)
    refuse({"schedule", "stages", "virtual"},
           "needs the axis pipeline, but mesh.pipeline is 1; raise it, or leave this key out",
           options.location("mesh.pipeline"));
  if (degrees.tensor == 1 && tensor_group_options(options).sequence_parallel)
    refuse({"sequence_parallel"}, "needs the axis tensor, but mesh.tensor is 1; raise it, or leave this key out",
           options.location("mesh.tensor"));
  return left_out;
}

Plan plan_hybrid(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  const Options& options = config.strategy.options;
  const MeshOptions degrees = mesh_options(options);
  constexpr int64_t most = 65536;  // as for launch.ranks
  if (degrees.product() > most) options.fail("mesh", "multiplies to ", degrees.product(), " ranks, more than ", most);
  if (request.ranks > 0 && degrees.product() != request.ranks)
    options.fail("mesh", "multiplies to data ", degrees.data, " × pipeline ", degrees.pipeline, " × tensor ",
                 degrees.tensor, " = ", degrees.product(), " ranks, but there are ", request.ranks,
                 "; change a degree, or start ", degrees.product(), " ranks");
  const std::vector<std::string> left_out = check_axis_keys(options, degrees);
  check_tensor_degree(config, degrees.tensor);
  if (degrees.pipeline > 1) check_pipeline(pipeline_options(options), degrees.pipeline);
  check_sparse_embeddings(config, false);
  Plan plan = plan_on_mesh(config, topology, request, mesh_of(options, degrees));
  plan.warnings.insert(plan.warnings.end(), left_out.begin(), left_out.end());
  const int64_t micro_batches = step_options(options).micro_batches;
  if (degrees.pipeline > 1 && micro_batches < degrees.pipeline)
    plan.warnings.push_back(str("strategy.micro_batches: ", micro_batches, " for ", degrees.pipeline,
                                " ranks of the axis pipeline, which wait for each other most of the time; take ",
                                4 * degrees.pipeline));
  return plan;
}

// Refuses a parameter that two stages of one rank use, if its gradient is sharded: the stages share the tensor, and the
// memory of a sharded gradient is freed after each backward.
void check_shared_ties(const Options& options, const JobPlan& job, const std::vector<BlockRange>& stages,
                       const ModelDescription& description) {
  const Shard shard = shard_of(options);
  if (!mesh_options(options).sharded || shard == Shard::optimizer) return;
  const auto ranks = size_t(job.mesh.degree("pipeline"));
  for (size_t block = 0; block < description.blocks.size(); ++block) {
    for (const TiedTensor& tie : description.blocks[block].ties) {
      const size_t maker = stage_of(stages, tie.block), user = stage_of(stages, int64_t(block));
      if (maker != user && maker % ranks == user % ranks)
        options.fail("shard", "is ", name_of(shard), ", and two stages of one rank use ", tie.name,
                     "; set shard: optimizer, or use other stages");
    }
  }
}

std::vector<std::string> check_hybrid(const JobPlan& job, const ModelDescription& description) {
  check_shards(job, description);
  if (job.mesh.degree("pipeline") > 1) {
    const Options& options = job.config.strategy.options;
    check_shared_ties(options, job, job_stages(job, description), description);
  }
  return tensor_notes(job, description, "strategy.mesh.tensor");
}

// The model of a data axis with only these stages. A copy of a tensor of another stage counts as the tensor of the
// block that uses it, or does not count, if `copies` is false.
ModelDescription blocks_of(const ModelDescription& model, const std::vector<BlockRange>& stages, bool copies = true) {
  ModelDescription part;
  part.element_bytes = model.element_bytes;
  std::set<std::string> counted;
  std::map<int64_t, int64_t> new_index;  // model's block → block of the result
  for (const BlockRange& stage : stages)
    for (int64_t index = stage.begin; index < stage.end; ++index) {
      const BlockDescription& block = model.blocks[size_t(index)];
      new_index.emplace(index, int64_t(part.blocks.size()));
      part.blocks.push_back(block);
      part.blocks.back().ties.clear();
      for (TiedTensor tie : block.ties) {
        const auto here = new_index.find(tie.block);
        if (here != new_index.end()) {
          tie.block = here->second;
          part.blocks.back().ties.push_back(tie);
        } else if (copies && counted.insert(tie.name).second) {
          part.blocks.back().parameters += tie.elements;
          ++part.blocks.back().tensors;
        }
      }
    }
  return part;
}

// Adds the cost of the data axis to a rank that holds `model`, which the axis tensor has sharded already.
void add_data_axis(const JobPlan& job, const MeshOptions& mesh, const ModelDescription& model, bool ends, int rank,
                   RankCost& cost) {
  if (mesh.sharded) {
    const RankCost sharded = sharded_costs(job, model, ends).at(size_t(rank));
    cost.bytes_sent_per_step += sharded.bytes_sent_per_step;
    cost.messages_per_step += sharded.messages_per_step;
    cost.axes.insert(cost.axes.end(), sharded.axes.begin(), sharded.axes.end());
    cost.work.updated /= job.mesh.degree("data");
    cost.parameter_bytes = sharded.parameter_bytes;
    cost.gradient_bytes = sharded.gradient_bytes;
    cost.moment_bytes = sharded.moment_bytes;
    cost.owned_bytes = sharded.owned_bytes;
    return;
  }
  const int data = job.mesh.degree("data");
  const StepOptions step = step_options(job.config.strategy.options);
  if (!step.sync.plain())
    add_sync_cost(job.config, model, data, cost);
  else if (data > 1)
    add_buckets(step, data, cost);
  add_buffer_exchanges(step, model, data, job.mesh.coordinate(rank, "data"), cost);
}

// Stages of the rank with this index along a pipeline axis of `ranks`.
std::vector<BlockRange> stages_at(const std::vector<BlockRange>& stages, int index, int ranks) {
  std::vector<BlockRange> found;
  for (auto stage = size_t(index); stage < stages.size(); stage += size_t(ranks)) found.push_back(stages[stage]);
  return found;
}

// Costs by index along the pipeline axis, without the data axis.
std::vector<RankCost> stage_costs(const JobPlan& job, const MeshOptions& mesh, const ModelDescription& model,
                                  const ModelDescription& cut) {
  const int ranks = job.mesh.degree("pipeline");
  if (ranks == 1) return {tensor_group_cost(job, model)};
  const std::vector<BlockRange> stages = job_stages(job, model);
  PipelineShape shape = pipeline_shape(job);
  shape.tensor = job.mesh.degree("tensor");
  shape.stage_time = stage_times(model, stages, shape.tensor);
  if (mesh.sharded) shape.tie_shares = job.mesh.degree("data");
  std::vector<RankCost> costs = pipeline_costs(shape, stages, cut);
  for (int index = 0; index < ranks; ++index) {
    RankCost& cost = costs[size_t(index)];
    cost.work.updated *= parameters_of(cut) / std::max(1.0, parameters_of(model));
    const RankCost group = tensor_group_cost(job, blocks_of(model, stages_at(stages, index, ranks)));
    cost.axes.insert(cost.axes.begin(), group.axes.begin(), group.axes.end());
    cost.bytes_sent_per_step += group.bytes_sent_per_step;
    cost.messages_per_step += group.messages_per_step;
  }
  return costs;
}

std::vector<RankCost> hybrid_cost(const JobPlan& job, const ModelDescription& description) {
  const MeshOptions mesh = mesh_options(job.config.strategy.options);
  const ModelDescription cut = shard_description(job, description);
  const std::vector<RankCost> of_stages = stage_costs(job, mesh, description, cut);
  const int ranks = job.mesh.degree("pipeline");
  const std::vector<BlockRange> stages = ranks == 1 ? std::vector<BlockRange>{} : job_stages(job, description);
  std::vector<ModelDescription> parts;       // by index along the pipeline axis
  std::vector<std::vector<double>> written;  // by that index, then along the data axis
  for (int index = 0; index < ranks; ++index) {
    const std::vector<BlockRange> here = stages_at(stages, index, ranks);
    parts.push_back(ranks == 1 ? cut : blocks_of(cut, here));
    const ModelDescription local = ranks == 1 ? cut : blocks_of(cut, here, false);
    written.push_back(owned_bytes(job.config, local, {}, job.mesh.degree("data")));
  }
  std::vector<RankCost> costs;
  for (int rank = 0; rank < int(job.ranks.size()); ++rank) {
    const auto index = size_t(job.mesh.coordinate(rank, "pipeline"));
    costs.push_back(of_stages[index]);
    costs.back().owned_bytes = written[index][size_t(job.mesh.coordinate(rank, "data"))];
    add_data_axis(job, mesh, parts[index], int(index) == ranks - 1, rank, costs.back());
  }
  return costs;
}

std::string hybrid_schedule(const JobPlan& job, const ModelDescription& description) {
  const std::string sync = sync_text(job.config, description, job.mesh.degree("data"));
  return job.mesh.degree("pipeline") == 1 ? sync : pipeline_text(job, description) + sync;
}

Option data_axis() {
  return describe::any("data", "integer, or map",
                       "ranks along the axis, or {degree: 2, how: ddp | fsdp}: replicas, or shards of one",
                       MeshOptions().data);
}

}  // namespace

StrategyEntry hybrid_entry() {
  StrategyEntry entry;
  entry.name = "hybrid";
  entry.help = "data, pipeline and tensor axes at once: layers sharded within a replica, rows divided over replicas";
  entry.options = joined(
      {{
           describe::section("mesh", "degrees of the axes; their product is the number of ranks",
                             {data_axis(), describe::integer("pipeline", "ranks along the axis", 1).between(1, 65536),
                              describe::integer("tensor", "ranks along the axis", 1).between(1, 65536)}),
           describe::list("order", "order of the axes, outermost first; neighbouring ranks are along the last axis",
                          describe::choice("", "an axis", {"data", "pipeline", "tensor"}),
                          Json::array({"data", "pipeline", "tensor"})),
       },
       tensor_options(),
       pipeline_section_options(),
       replicated_data_options(),
       shard_options(),
       {replica_sync_option(), micro_batches_option()},
       memory_options()});
  entry.plan = plan_hybrid;
  entry.cost = hybrid_cost;
  entry.check = check_hybrid;
  entry.report = hybrid_schedule;
  entry.replicas = true;
  entry.state_of_lost_rank = [](const JobPlan& job) {
    const MeshOptions degrees = mesh_options(job.config.strategy.options);
    if (degrees.sharded) return str("mesh.data with how: fsdp keeps each part of the state on one rank");
    return degrees.data > 1 ? state_of_lost_replica(job) : state_of_lost_shard(job);
  };
  return entry;
}

}  // namespace convoy
