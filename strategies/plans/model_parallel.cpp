// model_parallel: one rank with several devices, each with consecutive blocks of the model.
#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/text.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "strategies/plans/schedule.h"
#include "strategies/plans/stages.h"

namespace convoy {
namespace {

// Default devices: every GPU of the host, else two halves of the rank's cores.
std::vector<DevicePlan> chosen_devices(const RunConfig& config, const Host& host, bool gpus) {
  if (!gpus) {
    const int64_t cores = config.launch.cores_per_rank > 0 ? config.launch.cores_per_rank : int64_t(host.cores.size());
    return std::vector<DevicePlan>(size_t(std::clamp<int64_t>(cores, 1, 2)));
  }
  std::vector<DevicePlan> devices(host.gpus.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    devices[i].kind = DevicePlan::Kind::gpu;
    devices[i].gpu = int(i);
  }
  return devices;
}

// Binds the rank to the cores that the user listed by number.
void bind_listed(const RunConfig& config, const DeviceOptions& options, const Host& host, RankPlan& rank) {
  std::set<int> units;
  for (const DevicePlan& device : rank.devices) units.insert(device.cores.begin(), device.cores.end());
  if (units.empty()) return;
  rank.cores.assign(units.begin(), units.end());
  const auto cores =
      std::count_if(host.cores.begin(), host.cores.end(), [&](const Core& core) { return units.count(core.id) != 0; });
  rank.threads = int(cores);
  if (config.launch.cores_per_rank > 0 && config.launch.cores_per_rank != cores)
    throw ConfigError(SourceLocation{}, "launch.cores_per_rank", "is ", config.launch.cores_per_rank, ", and strategy.",
                      options.devices ? "devices" : "placement", " names ", cores, cores == 1 ? " core" : " cores",
                      "; leave it out");
}

Plan plan_model_parallel(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  if (request.ranks > 1)
    throw ConfigError(SourceLocation{}, "launch.ranks", request.ranks,
                      " ranks were requested, and strategy model_parallel has one rank with several "
                      "devices; use strategy pipeline, or one rank");
  const DeviceOptions options = device_options(config.strategy.options);
  check_placement(options);
  check_sparse_embeddings(config, false);
  Plan plan = plan_replicas(config, topology, request, 1);
  RankPlan& rank = plan.jobs.front().ranks.front();
  const Host& host = topology.hosts.at(size_t(rank.host));
  const bool gpus = on_gpus(config, topology);
  rank.devices = listed_devices(options, host);
  if (rank.devices.empty()) rank.devices = chosen_devices(config, host, gpus);
  for (const DevicePlan& device : rank.devices)
    if (device.kind == DevicePlan::Kind::gpu && !gpus)
      options.section.fail(options.devices ? "devices" : "placement", "names GPU ", device.gpu,
                           ", but device is cpu; use cores, or set device: auto");
  bind_listed(config, options, host, rank);
  if (const std::vector<std::string> idle = idle_devices(options); !idle.empty())
    plan.warnings.push_back(str("strategy.devices: ", join(idle, ", "), idle.size() == 1 ? " has" : " have",
                                " no block by strategy.placement and will be idle; leave out what is not used"));
  return plan;
}

bool separate_memory(const RankPlan& rank) {
  return std::any_of(rank.devices.begin(), rank.devices.end(),
                     [](const DevicePlan& device) { return device.kind == DevicePlan::Kind::gpu; });
}

std::vector<PlacedBlocks> placed_blocks(const JobPlan& job, const ModelDescription& description) {
  const RankPlan& rank = job.ranks.front();
  return place_blocks(device_options(job.config.strategy.options), int(rank.devices.size()), separate_memory(rank),
                      description);
}

std::vector<std::string> check_model_parallel(const JobPlan& job, const ModelDescription& description) {
  placed_blocks(job, description);
  return {};
}

// Adds gradients of tied parameters: each stage that uses one has a gradient.
void add_tied_gradients(const std::vector<PlacedBlocks>& placed, const ModelDescription& description, RankCost& cost) {
  const auto stage_of = [&](int64_t block) {
    return std::find_if(placed.begin(), placed.end(),
                        [&](const PlacedBlocks& one) { return block >= one.blocks.begin && block < one.blocks.end; });
  };
  std::set<std::pair<std::string, const PlacedBlocks*>> counted;
  for (size_t block = 0; block < description.blocks.size(); ++block)
    for (const TiedTensor& tie : description.blocks[block].ties) {
      const auto user = stage_of(int64_t(block));
      if (user == stage_of(tie.block) || !counted.insert({tie.name, &*user}).second) continue;
      cost.gradient_bytes += double(tie.elements * description.element_bytes);
    }
}

// Cost of the whole rank with all of its devices.
std::vector<RankCost> model_parallel_cost(const JobPlan& job, const ModelDescription& description) {
  const StepOptions step = step_options(job.config.strategy.options);
  RankCost cost = replica_costs(job, description).front();
  const std::vector<PlacedBlocks> placed = placed_blocks(job, description);
  const auto micro = int(step.micro_batches);
  std::vector<int> device_of;
  for (const PlacedBlocks& one : placed) device_of.push_back(one.device);
  Durations durations;
  const std::vector<double> shares = time_shares(description);
  for (const PlacedBlocks& one : placed) durations.of_stage.push_back(total_share(shares, one.blocks));
  const StepSchedule steps = placed_schedule(device_of, micro);
  const ScheduleReport report = examine(steps, micro, durations);
  // Devices wait for each other within this rank, so waits count as time of the rank.
  cost.work.span = cost.work.busy = report.span / (durations.forward + durations.backward);
  const double rows = rows_per_rank(job.config, 1);
  add_tied_gradients(placed, description, cost);
  cost.activation_bytes = 0;
  const auto held = [&](const Action& action) {
    const BlockRange& blocks = placed[size_t(action.stage)].blocks;
    return kept_bytes(step.recompute, description, blocks.begin, blocks.end,
                      rows_of_micro_batch(rows, action.micro, micro));
  };
  for (const std::vector<Action>& actions : steps.actions) cost.activation_bytes += most_held(actions, held);
  return {cost};
}

std::string model_parallel_schedule(const JobPlan& job, const ModelDescription& description) {
  const auto micro = int(step_options(job.config.strategy.options).micro_batches);
  std::vector<BlockRange> stages;
  std::vector<int> device_of;
  std::vector<std::string> devices;
  for (const PlacedBlocks& one : placed_blocks(job, description)) {
    stages.push_back(one.blocks);
    device_of.push_back(one.device);
    devices.push_back(str("device ", one.device));
  }
  const double idle = 100 * examine(placed_schedule(device_of, micro), micro).bubble;
  return str(stages_text(stages, devices, description), micro,
             " micro-batches go through them; idle: ", std::lround(idle),
             " % of the devices' time, where a backward takes as long as two forwards\n");
}

}  // namespace

StrategyEntry model_parallel_entry() {
  StrategyEntry entry;
  entry.name = "model_parallel";
  entry.help = "one rank with several devices, consecutive blocks of the model on each";
  entry.options = joined({placement_options(), {micro_batches_option(), sync_option()}, memory_options()});
  entry.plan = plan_model_parallel;
  entry.cost = model_parallel_cost;
  entry.check = check_model_parallel;
  entry.report = model_parallel_schedule;
  return entry;
}

}  // namespace convoy
