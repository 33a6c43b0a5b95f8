#include "strategies/plans/options/replicated.h"

#include <algorithm>
#include <cmath>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "strategies/plans/options/sync.h"

namespace convoy {
namespace {

int gpu_count(const Topology& topology) {
  size_t count = 0;
  for (const Host& host : topology.hosts) count += host.gpus.size();
  return int(count);
}

// Host of each rank: from the launcher, or contiguous runs in proportion to the hosts' devices.
std::vector<int> hosts_of(const Topology& topology, const PlanRequest& request, int ranks, bool gpus) {
  if (!request.rank_hosts.empty()) {
    CONVOY_CHECK(int(request.rank_hosts.size()) == ranks, "hosts for ", request.rank_hosts.size(), " ranks, planned ",
                 ranks);
    return request.rank_hosts;
  }
  std::vector<double> room;
  double total = 0;
  for (const Host& host : topology.hosts) {
    room.push_back(std::max<double>(1, double(gpus ? host.gpus.size() : host.cores.size())));
    total += room.back();
  }
  std::vector<int> hosts;
  double until = 0;
  for (size_t host = 0; host < room.size(); ++host) {
    until += room[host] / total * ranks;
    const bool last = host + 1 == room.size();
    while (int(hosts.size()) < ranks && (last || double(hosts.size()) + 0.5 < until)) hosts.push_back(int(host));
  }
  return hosts;
}

std::string backend_of(const RunConfig& config, bool gpus, int ranks) {
  if (config.backend != "auto") return config.backend;
  if (ranks == 1) return "local";
  return gpus ? "nccl" : "gloo";
}

}  // namespace

int moments_of(const Json& config) {
  const Json& optimizer = config.at("optimizer");
  const auto momentum = optimizer.find("momentum");
  if (momentum == optimizer.end()) return optimizer.value("name", "adam") == "adagrad" ? 1 : 2;  // 2: Adam family
  return momentum->is_number() && momentum->get<double>() > 0 ? 1 : 0;
}

double rows_per_rank(const Json& config, int ranks) {
  const Json& batch = config.at("train").at("batch");
  const auto per_rank = batch.find("per_rank");
  if (per_rank != batch.end() && per_rank->is_number()) return per_rank->get<double>();
  const auto global = batch.find("global");
  return global != batch.end() && global->is_number() ? std::ceil(global->get<double>() / ranks) : 0;
}

bool on_gpus(const RunConfig& config, const Topology& topology) {
  const int gpus = gpu_count(topology);
  if (config.device == "cuda" && gpus == 0) {
    throw ConfigError(SourceLocation{}, "device",
                      "cuda, and no GPU was found on any host; use `device: cpu` or `device: auto`",
                      Failure::device_missing);
  }
  return gpus > 0 && config.device != "cpu";
}

void check_memory_options(const RunConfig& config) {
  const Options& options = config.strategy.options;
  if (config.precision == "fp16" && !options.has("loss_scale"))
    throw ConfigError(
        SourceLocation{}, "precision",
        str("fp16 needs a loss scaler, which strategy ", config.strategy.name, " does not have; use bf16 or fp32"));
  if (!options.has("recompute")) return;
  const Json& value = options.at("recompute");
  bool known = value == "none" || value == "blocks" || (value.is_array() && !value.empty());
  if (value.is_array())
    for (const Json& name : value) known = known && name.is_string();
  if (!known) options.fail("recompute", "must be none, blocks, or a list of names of blocks");
}

void check_recomputed_names(const std::vector<std::string>& named, const std::vector<std::string>& blocks) {
  for (const std::string& name : named) {
    if (std::find(blocks.begin(), blocks.end(), name) != blocks.end()) continue;
    const std::string near = nearest(name, blocks);
    throw ConfigError(SourceLocation{}, "strategy.recompute",
                      str("the model has no block '", name, "'; it has ", join(blocks, ", "),
                          near.empty() ? "" : "; did you mean " + near + "?"));
  }
}

void check_micro_batches(const RunConfig& config, int64_t data_degree) {
  const Options& options = config.strategy.options;
  if (!options.has("micro_batches")) return;
  const int64_t rows = config.train.batch.rows * (config.train.batch.per_rank ? data_degree : 1);
  const int64_t slices = options.integer("micro_batches");
  if (slices > rows)
    options.fail("micro_batches", str("is ", slices, ", and the global batch has ", rows, " rows; take at most that"));
}

namespace {

// A host with more ranks than GPUs; null if there is none.
const Host* short_of_gpus(const Topology& topology, const std::vector<int>& hosts) {
  std::vector<size_t> ranks(topology.hosts.size(), 0);
  for (const int host : hosts) ++ranks.at(size_t(host));
  for (size_t host = 0; host < ranks.size(); ++host)
    if (ranks[host] > topology.hosts[host].gpus.size()) return &topology.hosts[host];
  return nullptr;
}

}  // namespace

Plan plan_replicas(const RunConfig& config, const Topology& topology, const PlanRequest& request, int ranks) {
  return plan_on_mesh(config, topology, request, Mesh({{"data", ranks}}));
}

Plan plan_data_axis(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  int ranks = request.ranks;
  if (ranks == 0 && on_gpus(config, topology)) ranks = gpu_count(topology);
  return plan_replicas(config, topology, request, std::max(ranks, 1));
}

Plan plan_on_mesh(const RunConfig& config, const Topology& topology, const PlanRequest& request, const Mesh& mesh,
                  bool share_gpus) {
  const int ranks = mesh.size();
  check_memory_options(config);
  const std::vector<std::string> left_out = check_shared_effects(config);
  check_micro_batches(config, mesh.degree("data"));
  bool gpus = on_gpus(config, topology);
  std::vector<int> hosts = hosts_of(topology, request, ranks, gpus);
  std::string note;
  if (gpus && config.device == "auto") {
    if (const Host* host = short_of_gpus(topology, hosts)) {
      gpus = false;
      hosts = hosts_of(topology, request, ranks, gpus);
      note = str("device: auto takes cores: ", host->name, " has ", host->gpus.size(),
                 host->gpus.size() == 1 ? " GPU" : " GPUs", ", fewer than ranks; take fewer ranks for the GPUs");
    }
  }
  const bool shared = gpus && share_gpus && short_of_gpus(topology, hosts) != nullptr;
  const std::string backend = backend_of(config, gpus && !shared, ranks);
  const bool threads = backend == "local";
  if (threads && hosts.front() != hosts.back())
    throw ConfigError(SourceLocation{}, "backend",
                      "local reaches the threads of one process only, and the ranks are on several "
                      "hosts; use gloo, mpi or nccl");
  JobPlan job;
  job.name = config.name;
  job.mesh = mesh;
  job.backend = backend;
  job.config = config.resolved;
  std::vector<int> used(topology.hosts.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    RankPlan plan;
    plan.rank = rank;
    plan.host = hosts[size_t(rank)];
    plan.process = threads ? 0 : rank;
    plan.threads = int(std::max<int64_t>(config.launch.threads, 1));
    const auto host = size_t(plan.host);
    DevicePlan device;
    if (gpus) {
      const int here = int(topology.hosts[host].gpus.size());
      if (used[host] >= here && (!shared || backend == "nccl" || here == 0))
        throw ConfigError(SourceLocation{}, "launch.ranks",
                          str("host ", topology.hosts[host].name, " has ", here, " GPUs for more ranks than that; ",
                              "take fewer ranks or `device: cpu`"));
      device.kind = DevicePlan::Kind::gpu;
      device.gpu = used[host]++ % here;
    }
    plan.devices.push_back(device);
    if (!threads || rank == 0) job.processes.push_back({plan.host, {}});
    job.processes.back().ranks.push_back(rank);
    job.ranks.push_back(std::move(plan));
  }
  Plan made{{std::move(job)}, left_out};
  if (!note.empty()) made.warnings.push_back(note);
  if (config.precision == "fp16" && !gpus)
    made.warnings.push_back("precision: fp16 is slow on the CPU, which computes in fp32; take fp32, or bf16, there");
  return made;
}

bool recomputed(const Json& strategy, const std::string& block) {
  const Json recompute = strategy.value("recompute", Json("none"));
  return recompute == "blocks" ||
         (recompute.is_array() && std::find(recompute.begin(), recompute.end(), block) != recompute.end());
}

KeptBytes kept_bytes(const Json& strategy, const ModelDescription& description, int64_t begin, int64_t end,
                     double rows) {
  KeptBytes bytes;
  // Blocks run backward from the last one. When a block's backward begins, later blocks have freed their activations.
  for (int64_t index = end - 1; index >= begin; --index) {
    const BlockDescription& block = description.blocks[size_t(index)];
    const double input = index == 0 ? 0 : double(description.blocks[size_t(index - 1)].row_output_bytes);
    const double saved = rows * double(block.row_saved_bytes) + double(block.saved_bytes);
    const double works = rows * double(block.row_working_bytes) + double(block.working_bytes);
    const bool again = recomputed(strategy, block.name);
    bytes.largest = std::max(bytes.largest, works + (again ? saved : 0) - bytes.kept);
    bytes.kept += again ? rows * input : saved;
  }
  return bytes;
}

double rows_of_slice(double rows, int slice, int slices) {
  const double each = std::floor(rows / slices);
  return each + (slice < rows - each * slices ? 1 : 0);
}

double activation_bytes(const Json& config, const ModelDescription& description, int ranks) {
  const Json& strategy = config.at("strategy");
  const auto slices = double(strategy.value("micro_batches", 1));
  const KeptBytes bytes = kept_bytes(strategy, description, 0, int64_t(description.blocks.size()),
                                     std::ceil(rows_per_rank(config, ranks) / slices));
  return bytes.kept + bytes.largest;
}

RankWork whole_work(const Json& config, int degree) {
  const Json& strategy = config.at("strategy");
  RankWork work;
  work.passes = strategy.value("micro_batches", 1.0);
  work.rows = std::ceil(rows_per_rank(config, degree) / work.passes);
  work.span = work.busy = work.passes;
  work.updates = 1 / double(sync_policy(strategy).every);
  return work;
}

double during_backward(const Json& config, double messages) {
  // The last message cannot overlap: its bucket is complete when backward ends.
  return config.at("strategy").value("overlap", false) && messages > 1 ? (messages - 1) / messages : 0;
}

namespace {
constexpr double mib = 1024 * 1024;
}

double bucket_cap(double gradient_bytes) { return std::clamp(gradient_bytes / 4, 1.0 * mib, 25.0 * mib); }

BucketSizes bucket_sizes(const Options& strategy, double gradient_bytes) {
  return {strategy.real("first_bucket_mb") * mib,
          strategy.is_auto("bucket_cap_mb") ? bucket_cap(gradient_bytes) : strategy.real("bucket_cap_mb") * mib};
}

double parameters_of(const ModelDescription& description) {
  double elements = 0;
  for (const BlockDescription& block : description.blocks) elements += double(block.parameters);
  return elements;
}

double replicated_bytes(const ModelDescription& description) {
  return parameters_of(description) * double(description.element_bytes);
}

double buffer_bytes(const ModelDescription& description) {
  double elements = 0;
  for (const BlockDescription& block : description.blocks) elements += double(block.buffers);
  return elements * double(description.element_bytes);
}

namespace {

// Adds one all-gather of a count and two numbers per channel in forward (twice with activation checkpointing), and one
// all-reduce of two numbers per channel in backward. Numbers are doubles in every precision.
void add_batch_norms(const Json& strategy, const ModelDescription& description, int ranks, RankCost& cost) {
  if (strategy.value("batch_norm", "local") != "sync") return;
  constexpr double number = 8;
  double layers = 0, gathers = 0, gathered = 0, summed = 0;
  for (const BlockDescription& block : description.blocks) {
    const auto norms = double(block.norms), channels = double(block.norm_channels);
    const double forwards = recomputed(strategy, block.name) ? 2 : 1;
    layers += norms;
    gathers += forwards * norms;
    gathered += forwards * (2 * channels + norms) * number;
    summed += 2 * channels * number;
  }
  if (layers == 0) return;
  const double slices = strategy.value("micro_batches", 1.0), others = ranks - 1;
  cost.add({"data", slices * others * gathered, slices * gathers, Exchange::gather});
  cost.add({"data", slices * 2 * others / ranks * summed, slices * layers});
}

// Adds one all-reduce of all gradients per update, in buckets.
void add_buckets(const Json& config, int ranks, RankCost& cost) {
  const BucketSizes sizes = bucket_sizes(Options(config.at("strategy")), cost.gradient_bytes);
  const double rest = std::max(0.0, cost.gradient_bytes - sizes.first_bytes),
               messages = 1 + std::ceil(rest / sizes.other_bytes);
  const double updates = whole_work(config, ranks).updates;
  cost.add({"data", 2.0 * (ranks - 1) / ranks * cost.gradient_bytes * updates, messages * updates, Exchange::all_reduce,
            during_backward(config, messages)});
}

}  // namespace

void add_buffer_exchanges(const Json& config, const ModelDescription& description, int ranks, int data_rank,
                          RankCost& cost) {
  if (ranks == 1) return;
  const Json& strategy = config.at("strategy");
  add_batch_norms(strategy, description, ranks, cost);
  const std::string how = strategy.value("buffers", "local");
  const double bytes = buffer_bytes(description), others = ranks - 1;
  if (how == "local" || bytes == 0) return;
  const double updates = whole_work(config, ranks).updates;
  if (how == "mean")
    cost.add({"data", 2 * others / ranks * bytes * updates, updates});
  else
    cost.add({"data", data_rank == 0 ? others * bytes * updates : 0, updates, Exchange::gather});
}

std::vector<RankCost> replica_costs(const JobPlan& job, const ModelDescription& description, bool sparse_embeddings) {
  const auto ranks = int(job.ranks.size());
  std::vector<TouchedTable> tables;
  if (sparse_embeddings) tables = touched_tables(job.config, description, ranks);
  const ModelDescription dense = without(description, tables);
  RankCost cost;
  cost.parameter_bytes = cost.gradient_bytes = replicated_bytes(dense);
  cost.buffer_bytes = buffer_bytes(description);
  cost.moment_bytes = cost.parameter_bytes * moments_of(job.config);
  cost.activation_bytes = activation_bytes(job.config, description, ranks);
  cost.work = whole_work(job.config, ranks);
  double with_rows = 0;
  if (!sync_policy(job.config.at("strategy")).plain()) {
    add_sync_cost(job.config, dense, ranks, cost);
  } else if (ranks > 1) {
    if (!tables.empty() && cost.gradient_bytes <= most_dense_with_rows)
      with_rows = cost.gradient_bytes;
    else
      add_buckets(job.config, ranks, cost);
  }
  add_row_cost(job.config, tables, row_ranks(job), with_rows, cost);
  std::vector<RankCost> costs(job.ranks.size(), cost);
  for (size_t rank = 0; rank < costs.size(); ++rank)
    add_buffer_exchanges(job.config, description, ranks, int(rank), costs[rank]);
  return costs;
}

std::vector<Option> joined(const std::vector<std::vector<Option>>& lists) {
  std::vector<Option> all;
  for (const std::vector<Option>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Option micro_batches_option() {
  return describe::integer(
             "micro_batches",
             "micro-batches of each global batch, which run one after another and make one update; more of "
             "them need less memory for activations; the gradients are the same",
             1)
      .between(1, 1 << 20)
      .in("micro-batches");
}

std::vector<Option> memory_options() {
  return {
      describe::any("recompute", "none, blocks or list of texts",
                    "activation checkpointing: blocks that keep only their inputs and run forward again in "
                    "backward: none, blocks (all), or a list of their names",
                    "none"),
      describe::section(
          "loss_scale", "precision fp16: dynamic factor on the loss that keeps small gradients above zero",
          {describe::real("initial", "first factor", 65536.0).between(1, 4294967296.0),
           describe::real("growth", "multiplier after growth_interval updates in a row", 2.0).above(1),
           describe::integer("growth_interval", "number of updates with finite gradients before growth", 2000)
               .between(1, most_steps)
               .in("updates"),
           describe::real("backoff", "multiplier after gradients that are not finite", 0.5).above(0).at_most(1)}),
  };
}

std::vector<Option> replicated_data_options() {
  return joined(
      {{
           describe::real("bucket_cap_mb",
                          "size of the gradients that one message reduces; auto: a quarter of them, between 1 and 25",
                          "auto")
               .above(0)
               .in("MiB")
               .or_auto(),
           describe::real("first_bucket_mb", "size of the first bucket, small so that sending starts early", 1)
               .above(0)
               .in("MiB"),
           describe::boolean("overlap", "reduce a bucket as soon as its gradients are ready, during the backward pass",
                             true),
       },
       buffer_options()});
}

std::vector<Option> buffer_options() {
  return {
      describe::choice("buffers", "batch norm's buffers after an update: rank 0's, their mean, or each rank's own",
                       {"broadcast", "mean", "local"}, "broadcast"),
      describe::choice(
          "batch_norm",
          "rows for mean and variance of batch norm in training: the rank's own (local), or all ranks' (sync)",
          {"local", "sync"}, "local"),
  };
}

Option sync_option() {
  return describe::section(
      "sync", "how often gradients are reduced and an update is made",
      {describe::integer("every", "steps whose gradients are accumulated for one update", 1)
           .between(1, 1 << 20)
           .in("steps"),
       describe::text("what", "what ranks synchronise: gradients, for every update", "gradients")});
}

}  // namespace convoy
