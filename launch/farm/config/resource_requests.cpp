#include "launch/farm/config/farm.h"

#include <algorithm>
#include <map>
#include <set>

#include "backends/catalogue/catalogue.h"
#include "core/base/text.h"
#include "core/config/run_config.h"
#include "core/data/catalogue/catalogue.h"
#include "launch/machine/topology.h"
#include "launch/prepare/describe.h"
#include "launch/prepare/prepare.h"
#include "launch/prepare/used_run.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

constexpr double rounding = 1e-9;

std::vector<int> allowed_hardware_threads(const Host& host) {
  return host.bound.empty() ? hardware_threads_of(host.cores) : host.bound;
}

// Adds the host's GPUs and memory, without slots.
void add_host(const Host& host, int index, Inventory& inventory) {
  for (const Gpu& gpu : host.gpus) inventory.gpus.push_back({index, gpu.index, gpu.memory});
  inventory.memory.push_back(host.memory);
}

int cores_in(const Cluster& cluster) {
  int cores = 0;
  for (const Inventory::Slot& slot : cluster.inventory.slots) cores += slot.size;
  return cores;
}

// Share of agent `index` of the cores that `count` agents of a host may use; at least one core.
std::vector<Core> share_of(const std::vector<Core>& cores, size_t index, size_t count) {
  if (cores.size() < count) return {cores[index % cores.size()]};
  const size_t first = cores.size() * index / count, last = cores.size() * (index + 1) / count;
  return {cores.begin() + static_cast<std::ptrdiff_t>(first), cores.begin() + static_cast<std::ptrdiff_t>(last)};
}

class Checks {
 public:
  // Null `cluster`: only the checks that need none.
  Checks(Farm& farm, const Cluster* cluster) : farm_(farm), cluster_(cluster) {}

  std::vector<ConfigError> all(const std::string& rank_program, size_t known) {
    for (size_t i = 0; i < farm_.pipelines.size(); ++i) {
      Pipeline& pipeline = farm_.pipelines[i];
      const bool fresh = i >= known;
      const bool whole = fresh && check_files(pipeline, rank_program);
      if (cluster_ == nullptr) continue;
      requests_.push_back(request_of(pipeline, *cluster_, farm_.max_parallel));
      if (fresh && check_named_present(pipeline) && fits(pipeline, requests_.back()) && whole)
        check_plan(pipeline, requests_.back());
    }
    check_named_devices("core", [](const Pipeline& pipeline) { return pipeline.options.core_list; });
    check_named_devices("GPU", [](const Pipeline& pipeline) { return pipeline.options.gpu_list; });
    if (cluster_ == nullptr) return std::move(mistakes_);
    gpu_memory();
    host_memory();
    return std::move(mistakes_);
  }

 private:
  void mistake(const Pipeline& pipeline, const std::string& key, const std::string& reason,
               Failure kind = Failure::config) {
    mistakes_.emplace_back(pipeline.location, str(pipeline.name, ".", key), reason, kind);
  }

  template <class Check>
  void attempt(const Pipeline& pipeline, const Check& check) {
    try {
      check();
    } catch (const ConfigError& error) {
      if (!error.location().file.empty()) {
        mistakes_.push_back(error);
        return;
      }
      // Plans are made without source locations.
      mistakes_.emplace_back(location_of(pipeline.config, error.key()), error.key(), error.reason(), error.kind());
    } catch (const Error& error) {
      mistakes_.emplace_back(pipeline.location, pipeline.name, error.what(), error.kind());
    }
  }

  // Checks plugins, data and `train.resume`. True if the configuration is complete.
  bool check_files(Pipeline& pipeline, const std::string& rank_program) {
    if (pipeline.config.is_null()) return false;  // its reader reports its mistakes
    bool whole = true;
    if (pipeline.config.contains("program")) {
      attempt(pipeline, [&] { executable_path(pipeline.config["program"].at(0), program_advice); });
      return true;
    }
    const Json& model = pipeline.config.at("model");
    if (model.contains("plugin") || !pipeline.config.at("plugins").empty()) {
      whole = false;
      attempt(pipeline, [&] {
        RunConfig config = RunConfig::from_resolved(pipeline.config);
        check_plugins(config, rank_program);
        pipeline.config = config.resolved;
        whole = true;
      });
    }
    if (whole && checked_data_.insert(pipeline.config.at("data").dump()).second)
      attempt(pipeline, [&] {
        const RunConfig config = RunConfig::from_resolved(pipeline.config);
        check_data_files(config.data.name, config.data.options);
      });
    const std::string& resume = pipeline.config.at("train").at("resume").get_ref<const std::string&>();
    if (whole && resume != "auto" && resume != "never")
      attempt(pipeline, [&] { check_resume_path(resume, pipeline.config); });
    return whole;
  }

  // Checks that listed cores and GPUs exist.
  bool check_named_present(const Pipeline& pipeline) {
    const size_t before = mistakes_.size();
    const QueueOptions& options = pipeline.options;
    const Host& first = cluster_->hosts.front();
    const std::vector<int> threads = options.core_list.empty() ? std::vector<int>{} : hardware_threads_of(first.cores);
    for (int core : options.core_list)
      if (std::find(threads.begin(), threads.end(), core) == threads.end())
        mistake(pipeline, "cores",
                str("names core ", core, ", but this job may use cores ", hardware_threads_text(threads), " of ",
                    first.name));
    for (int gpu : options.gpu_list)
      if (gpu >= static_cast<int>(first.gpus.size()))
        mistake(pipeline, "gpus",
                str("names GPU ", gpu, ", but ", first.name, " has ", counted(first.gpus.size(), "GPU")),
                Failure::device_missing);
    return mistakes_.size() == before;
  }

  static ResourceRequest without_memory(ResourceRequest request) {
    request.memory = request.gpu_memory = 0;
    return request;
  }

  bool fits(const Pipeline& pipeline, const ResourceRequest& request) {
    const Queue empty(cluster_->inventory, 0);
    if (request.gpus > 0 && std::none_of(cluster_->hosts.begin(), cluster_->hosts.end(), [&](const Host& host) {
          return static_cast<int>(host.gpus.size()) >= request.gpus;
        })) {
      mistake(pipeline, "gpus", str("needs ", counted(request.gpus, "GPU"), " of one host; no host has them"),
              Failure::device_missing);
      return false;
    }
    if (empty.possible(without_memory(request))) return true;  // host_memory() and gpu_memory() check memory
    mistake(
        pipeline, "cores",
        str("needs ", counted(request.cores, "core"), request.gpus > 0 ? " and " + counted(request.gpus, "GPU") : "",
            " of one host; no host has them: there ", cores_in(*cluster_) == 1 ? "is " : "are ",
            counted(cores_in(*cluster_), "core"), " in ", counted(cluster_->inventory.slots.size(), "slot")));
    return false;
  }

  // Plans the pipeline as its strategy will in its slot. Skips a plan that was checked for an earlier pipeline.
  void check_plan(const Pipeline& pipeline, const ResourceRequest& request) {
    // Leaves out the source locations (key `marks`), which would cost more than all other keys; attempt() looks them up
    // for mistakes. A plan depends neither on the name nor on the seed.
    Json planned = Json::object();
    for (const auto& [key, value] : pipeline.config.items())
      if (key != "marks") planned[key] = value;
    planned["name"] = "";
    planned["seed"] = 0;
    if (!checked_plans_.insert(str(request.cores, " ", request.gpus, " ", Json(request.core_list), planned)).second)
      return;
    attempt(pipeline, [&] {
      const RunConfig config = RunConfig::from_resolved(planned);
      if (config.program.empty()) check_components(config);
      PlanRequest plan_request;
      plan_request.ranks = static_cast<int>(config.launch.ranks);
      strategy_of(config).plan(config, slot_topology(request), plan_request);
      if (config.backend == "auto") return;
      const BackendEntry& backend = backend_entry(config.backend);
      if (backend.needs_gpu && request.gpus == 0)
        throw ConfigError(SourceLocation{}, "backend",
                          str("is ", backend.name,
                              ", which needs a GPU for each rank, but this pipeline has no GPU; "
                              "use gloo"),
                          Failure::device_missing);
      if (!backend.built)
        throw ConfigError(SourceLocation{}, "backend", "this build has no ", backend.name, "; ", backend.how_to_get);
    });
  }

  Topology slot_topology(const ResourceRequest& request) const {
    Host host = cluster_->hosts.front();
    for (const Host& other : cluster_->hosts)
      if (other.cores.size() > host.cores.size()) host = other;
    if (!request.core_list.empty()) host.cores = restricted(host.cores, request.core_list);
    host.cores.resize(std::min(host.cores.size(), static_cast<size_t>(std::max(request.cores, 1))));
    host.gpus.resize(std::min(host.gpus.size(), static_cast<size_t>(request.gpus)));
    host.bound.clear();
    return Topology{{host}};
  }

  template <class List>
  void check_named_devices(const char* what, const List& list_of) {
    std::map<int, std::vector<const Pipeline*>> named;
    for (const Pipeline& pipeline : farm_.pipelines)
      for (int device : list_of(pipeline)) named[device].push_back(&pipeline);
    const std::string key = what == std::string("GPU") ? "gpus" : "cores";
    for (const auto& [device, pipelines] : named) {
      if (pipelines.size() < 2) continue;
      double sum = 0;
      const Pipeline* whole = nullptr;
      for (const Pipeline* pipeline : pipelines) {
        sum += pipeline->options.share;
        if (pipeline->options.share >= 1 && whole == nullptr) whole = pipeline;
      }
      if (whole != nullptr)
        mistake(*pipelines[1], key,
                str("gives ", what, " ", device, " also to ", pipelines[0]->name,
                    "; set a `share` in both pipelines, or "
                    "choose other ",
                    key));
      else if (sum > 1 + rounding)
        mistake(*pipelines.back(), "share",
                str("sums to ", sum, " on ", what, " ", device, "; the sum must be at most 1"));
    }
  }

  // Checks the sum of limits on each listed GPU; other limits need one GPU that is large enough.
  void gpu_memory() {
    std::map<int, int64_t> together;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const Pipeline& pipeline = farm_.pipelines[i];
      const int64_t limit = requests_[i].gpu_memory;
      if (limit == 0) continue;
      if (pipeline.options.gpu_list.empty()) {
        gpu_with_room(pipeline, limit);
        continue;
      }
      // All hosts of a farm have the same GPUs.
      for (const Gpu& gpu : cluster_->hosts.front().gpus) {
        const std::vector<int>& list = pipeline.options.gpu_list;
        if (std::find(list.begin(), list.end(), gpu.index) == list.end()) continue;
        const int64_t sum = together[gpu.index] += limit;
        if (gpu.memory <= 0 || sum <= gpu.memory) continue;
        mistake(pipeline, "gpu_memory",
                str("sums to ", human_bytes(sum), " on GPU ", gpu.index, ", which has ", human_bytes(gpu.memory),
                    "; set smaller limits"));
        break;
      }
    }
  }

  void gpu_with_room(const Pipeline& pipeline, int64_t limit) {
    int64_t most = 0;
    for (const Inventory::Device& gpu : cluster_->inventory.gpus) {
      if (gpu.memory <= 0) return;
      most = std::max(most, gpu.memory);
    }
    if (most > 0 && limit > most)
      mistake(
          pipeline, "gpu_memory",
          str("is ", human_bytes(limit), " for each of its GPUs, but the largest GPU here has ", human_bytes(most)));
  }

  // On one host: refuses pipelines that may run at the same time with limits above its memory. Tries the largest limits
  // first, then the largest limits per core. On several hosts the queue finds a host with enough memory.
  void host_memory() {
    if (!each_fits_a_host() || cluster_->hosts.size() > 1 || cluster_->hosts.front().memory <= 0) return;
    if (!memory_in_order([&](size_t index) { return static_cast<double>(farm_.pipelines[index].options.memory); }))
      return;
    memory_in_order([&](size_t index) {
      const double cores = index < requests_.size() ? std::max(requests_[index].cores, 1) * requests_[index].share : 1;
      return static_cast<double>(farm_.pipelines[index].options.memory) / cores;
    });
  }

  // Checks each limit against the largest host, also of pipelines that fit on no host's slots.
  bool each_fits_a_host() {
    int64_t most = 0;
    std::string name;
    for (const Host& host : cluster_->hosts) {
      if (host.memory <= 0) return true;
      if (host.memory > most) name = host.name;
      most = std::max(most, host.memory);
    }
    bool all = true;
    for (const Pipeline& pipeline : farm_.pipelines) {
      if (pipeline.options.memory <= most) continue;
      all = false;
      mistake(pipeline, "memory",
              str("is ", human_bytes(pipeline.options.memory), ", but this job may use ", human_bytes(most), " of ",
                  name, "; set a smaller limit"));
    }
    return all;
  }

  // Allocates cores in the order of `weight` and sums the memory limits. False if a mistake was found.
  template <class Weight>
  bool memory_in_order(const Weight& weight) {
    const int64_t available = cluster_->hosts.front().memory;
    std::vector<size_t> order(farm_.pipelines.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weight(a) > weight(b); });
    Queue running(cluster_->inventory, farm_.max_parallel);
    int64_t sum = 0;
    for (size_t index : order) {
      const Pipeline& pipeline = farm_.pipelines[index];
      if (pipeline.options.memory == 0 || index >= requests_.size()) continue;
      running.add(static_cast<int>(index), without_memory(requests_[index]));
      if (!running.next(0)) {
        running.drop(static_cast<int>(index));
        continue;
      }
      sum += pipeline.options.memory;
      if (sum <= available) continue;
      mistake(
          pipeline, "memory",
          str("sums to ", human_bytes(sum), " over the pipelines that may run at a time, but this job may use ",
              human_bytes(available), " of ", cluster_->hosts.front().name, "; set smaller limits, or max_parallel"));
      return false;
    }
    return true;
  }

  Farm& farm_;
  const Cluster* cluster_;
  std::vector<ResourceRequest> requests_;
  std::set<std::string> checked_data_, checked_plans_;  // as text
  std::vector<ConfigError> mistakes_;
};

}  // namespace

Cluster cluster_of(const Host& host) {
  Cluster cluster;
  cluster.hosts = {host};
  for (const Core& core : host.cores)
    cluster.inventory.slots.push_back({0, core.siblings.empty() ? std::vector<int>{core.id} : core.siblings, 1});
  add_host(host, 0, cluster.inventory);
  return cluster;
}

Cluster cluster_of(const std::vector<Host>& agents) {
  Cluster cluster;
  std::map<std::string, int> index;
  std::map<std::pair<int, std::vector<int>>, size_t> sharing, assigned;  // agents by host and cores
  std::vector<std::pair<int, std::vector<int>>> keys;
  for (const Host& agent : agents) {
    const auto [host, fresh] = index.emplace(agent.name, static_cast<int>(cluster.hosts.size()));
    if (fresh) {
      cluster.hosts.push_back(agent);
      add_host(agent, host->second, cluster.inventory);
    }
    keys.emplace_back(host->second, allowed_hardware_threads(agent));
    ++sharing[keys.back()];
  }
  for (size_t i = 0; i < agents.size(); ++i) {
    const std::vector<Core> cores = restricted(agents[i].cores, keys[i].second);
    const std::vector<Core> share = share_of(cores, assigned[keys[i]]++, sharing[keys[i]]);
    cluster.inventory.slots.push_back({keys[i].first, hardware_threads_of(share), static_cast<int>(share.size())});
  }
  return cluster;
}

ResourceRequest request_of(const Pipeline& pipeline, const Cluster& cluster, int max_parallel) {
  const QueueOptions& options = pipeline.options;
  ResourceRequest request{options.priority, options.preempt, options.estimate, options.cores, options.core_list, 0,
                          options.gpu_list, options.share,   options.memory};
  const bool known = !pipeline.config.is_null();
  const auto count = [&](const char* key) {
    if (!known) return 1;
    const Json& launch = pipeline.config.at("launch");
    return launch.at(key).is_number_integer() ? std::max(1, launch.at(key).get<int>()) : 1;
  };
  const int ranks = count("ranks");
  if (request.cores == 0) {
    // With max_parallel, the pipelines that run at a time use all cores.
    const int each = max_parallel > 0 ? cores_in(cluster) / max_parallel : 0;
    request.cores = std::max(ranks * count("cores_per_rank"), each);
  }
  const bool any =
      std::any_of(cluster.hosts.begin(), cluster.hosts.end(), [](const Host& host) { return !host.gpus.empty(); });
  const bool wants = known && any && pipeline.config.at("device") != "cpu";
  request.gpus = options.gpus >= 0 ? options.gpus : wants ? ranks : 0;
  request.gpu_memory = request.gpus > 0 ? options.gpu_memory : 0;
  return request;
}

std::vector<int> hardware_threads_of(const Allocation& allocation, const ResourceRequest& request,
                                     const Inventory& inventory) {
  if (!request.core_list.empty()) return request.core_list;
  std::vector<int> threads;
  for (int slot : allocation.slots) {
    const std::vector<int>& cores = inventory.slots[static_cast<size_t>(slot)].cores;
    threads.insert(threads.end(), cores.begin(), cores.end());
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::vector<ConfigError> check_requests(Farm& farm, const Cluster& cluster, const std::string& rank_program,
                                        size_t known) {
  return Checks(farm, &cluster).all(rank_program, known);
}

std::vector<ConfigError> check_anywhere(Farm& farm, const std::string& rank_program) {
  return Checks(farm, nullptr).all(rank_program, 0);
}

}  // namespace convoy
