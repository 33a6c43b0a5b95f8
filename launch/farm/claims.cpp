#include "launch/farm/claims.h"

#include <algorithm>
#include <map>
#include <set>

#include "backends/catalogue.h"
#include "core/config/run_config.h"
#include "core/data/data_files.h"
#include "core/units.h"
#include "launch/core_pool.h"
#include "launch/plugin_check.h"
#include "launch/resume_path.h"
#include "strategies/catalogue.h"

namespace convoy {
namespace {

constexpr double rounding = 1e-9;

std::vector<int> allowed_units(const Host& host) { return host.bound.empty() ? units_of(host.cores) : host.bound; }

// All of it but slots.
void add_host(const Host& host, int index, Machines& machines) {
  for (const Gpu& gpu : host.gpus) machines.gpus.push_back({index, gpu.index, gpu.memory});
  machines.memory.push_back(host.memory);
}

int cores_in(const Yard& yard) {
  int cores = 0;
  for (const Machines::Slot& slot : yard.machines.slots) cores += slot.size;
  return cores;
}

// Of the cores that agents on one host may all use, each gets a share, of at least one.
std::vector<Core> share_of(const std::vector<Core>& cores, size_t index, size_t count) {
  if (cores.size() < count) return {cores[index % cores.size()]};
  const size_t first = cores.size() * index / count, last = cores.size() * (index + 1) / count;
  return {cores.begin() + static_cast<std::ptrdiff_t>(first), cores.begin() + static_cast<std::ptrdiff_t>(last)};
}

class Checks {
 public:
  // Without a yard only what no machine has to be known for.
  Checks(Farm& farm, const Yard* yard) : farm_(farm), yard_(yard) {}

  std::vector<ConfigError> all(const std::string& rank_program, size_t known) {
    for (size_t i = 0; i < farm_.pipelines.size(); ++i) {
      Pipeline& pipeline = farm_.pipelines[i];
      const bool fresh = i >= known;
      const bool whole = fresh && has_its_files(pipeline, rank_program);
      if (yard_ == nullptr) continue;
      claims_.push_back(claim_of(pipeline, *yard_, farm_.max_parallel));
      if (fresh && devices_are_there(pipeline) && fits(pipeline, claims_.back()) && whole)
        planned(pipeline, claims_.back());
    }
    twice("core", [](const Pipeline& pipeline) { return pipeline.terms.core_list; });
    twice("GPU", [](const Pipeline& pipeline) { return pipeline.terms.gpu_list; });
    if (yard_ == nullptr) return std::move(mistakes_);
    gpu_memory();
    host_memory();
    return std::move(mistakes_);
  }

 private:
  void mistake(const Pipeline& pipeline, const std::string& key, const std::string& reason,
               Failure kind = Failure::config) {
    mistakes_.emplace_back(pipeline.mark, str(pipeline.name, ".", key), reason, kind);
  }

  template <class Check>
  void attempt(const Pipeline& pipeline, const Check& check) {
    try {
      check();
    } catch (const ConfigError& error) {
      if (!error.mark().file.empty()) {
        mistakes_.push_back(error);
        return;
      }
      // Plans are made without knowing where keys were written.
      const std::string prefix = error.key() + ": ";
      std::string reason = error.what();
      if (reason.rfind(prefix, 0) == 0) reason.erase(0, prefix.size());
      mistakes_.emplace_back(mark_of(pipeline.config, error.key()), error.key(), reason, error.kind());
    } catch (const Error& error) {
      mistakes_.emplace_back(pipeline.mark, pipeline.name, error.what(), error.kind());
    }
  }

  // Plugins, data and what it goes on from; whether its configuration is complete.
  bool has_its_files(Pipeline& pipeline, const std::string& rank_program) {
    if (pipeline.config.is_null()) return false;  // its mistakes are told by who has read it
    bool whole = true;
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
    if (whole && looked_for_.insert(pipeline.config.at("data").dump()).second)
      attempt(pipeline, [&] {
        const RunConfig config = RunConfig::from_resolved(pipeline.config);
        check_data_files(config.data.name, config.data.options);
      });
    const std::string& resume = pipeline.config.at("train").at("resume").get_ref<const std::string&>();
    if (whole && resume != "auto" && resume != "never")
      attempt(pipeline, [&] { check_resume_path(resume, pipeline.config); });
    return whole;
  }

  // That it names.
  bool devices_are_there(const Pipeline& pipeline) {
    const size_t before = mistakes_.size();
    const QueueTerms& terms = pipeline.terms;
    const Host& first = yard_->hosts.front();
    const std::vector<int> units = terms.core_list.empty() ? std::vector<int>{} : units_of(first.cores);
    for (int core : terms.core_list)
      if (std::find(units.begin(), units.end(), core) == units.end())
        mistake(pipeline, "cores", str("names ", core, ", and ", first.name, " lets this job use ", units_text(units)));
    for (int gpu : terms.gpu_list)
      if (gpu >= static_cast<int>(first.gpus.size()))
        mistake(pipeline, "gpus", str("names GPU ", gpu, ", and ", first.name, " shows ", first.gpus.size()),
                Failure::device_missing);
    return mistakes_.size() == before;
  }

  static Claim without_memory(Claim claim) {
    claim.memory = claim.gpu_memory = 0;
    return claim;
  }

  bool fits(const Pipeline& pipeline, const Claim& claim) {
    const Queue empty(yard_->machines, 0);
    if (claim.gpus > 0 && std::none_of(yard_->hosts.begin(), yard_->hosts.end(), [&](const Host& host) {
          return static_cast<int>(host.gpus.size()) >= claim.gpus;
        })) {
      mistake(pipeline, "gpus", str("are ", claim.gpus, ", which no host here has"), Failure::device_missing);
      return false;
    }
    if (empty.possible(without_memory(claim))) return true;  // of memory others tell
    mistake(pipeline, "cores",
            str("are ", claim.cores, claim.gpus > 0 ? str(", with ", claim.gpus, " GPUs") : "",
                ", and no host has slots for that; there are ", cores_in(*yard_), " cores in ",
                yard_->machines.slots.size(), " slots"));
    return false;
  }

  // In all that a plan may depend on.
  static bool alike(const Pipeline& a, const Pipeline& b) {
    if (a.terms.cores != b.terms.cores || a.terms.core_list != b.terms.core_list || a.terms.gpus != b.terms.gpus ||
        a.config.size() != b.config.size())
      return false;
    for (auto left = a.config.begin(), right = b.config.begin(); left != a.config.end(); ++left, ++right) {
      const std::string& key = left.key();
      if (key != right.key() || (key != "marks" && key != "name" && key != "seed" && *left != *right)) return false;
    }
    return true;
  }

  // As the strategy of its own will find it in its slot. Where its ranks go depends on neither its name nor its seed, so of
  // those that differ in nothing else the first is planned.
  void planned(const Pipeline& pipeline, const Claim& claim) {
    if (last_planned_ != nullptr && alike(*last_planned_, pipeline)) return;
    last_planned_ = &pipeline;
    Json unmarked = Json::object();  // marks are looked up where something is wrong: they cost more than all the rest
    std::string about = str(claim.cores, " ", claim.gpus, " ", Json(claim.core_list).dump());
    for (const auto& [key, value] : pipeline.config.items())
      if (key != "marks" && key != "name" && key != "seed") about += value.dump();
    if (!planned_.insert(std::move(about)).second) return;
    for (const auto& [key, value] : pipeline.config.items())
      if (key != "marks") unmarked[key] = value;
    attempt(pipeline, [&] {
      const RunConfig config = RunConfig::from_resolved(unmarked);
      PlanRequest request;
      request.ranks = static_cast<int>(config.launch.ranks);
      strategy_entry(config.strategy.name).plan(config, slot_topology(claim), request);
      if (config.backend == "nccl" && claim.gpus == 0)
        throw ConfigError(Mark{}, "backend",
                          "is nccl, which needs a GPU for each rank, and there is none for it; take gloo",
                          Failure::device_missing);
      for (const BackendEntry& backend : backend_catalogue())
        if (backend.name == config.backend && !backend.built)
          throw ConfigError(Mark{}, "backend", str("this build has no ", backend.name, "; ", backend.how_to_get));
    });
  }

  Topology slot_topology(const Claim& claim) const {
    Host host = yard_->hosts.front();
    for (const Host& other : yard_->hosts)
      if (other.cores.size() > host.cores.size()) host = other;
    if (!claim.core_list.empty()) host.cores = restricted(host.cores, claim.core_list);
    host.cores.resize(std::min(host.cores.size(), static_cast<size_t>(std::max(claim.cores, 1))));
    host.gpus.resize(std::min(host.gpus.size(), static_cast<size_t>(claim.gpus)));
    host.bound.clear();
    return Topology{{host}};
  }

  template <class List>
  void twice(const char* what, const List& list_of) {
    std::map<int, std::vector<const Pipeline*>> named;
    for (const Pipeline& pipeline : farm_.pipelines)
      for (int device : list_of(pipeline)) named[device].push_back(&pipeline);
    const std::string key = what == std::string("GPU") ? "gpus" : "cores";
    for (const auto& [device, pipelines] : named) {
      if (pipelines.size() < 2) continue;
      double sum = 0;
      const Pipeline* whole = nullptr;
      for (const Pipeline* pipeline : pipelines) {
        sum += pipeline->terms.share;
        if (pipeline->terms.share >= 1 && whole == nullptr) whole = pipeline;
      }
      if (whole != nullptr)
        mistake(*pipelines[1], key,
                str("gives ", what, " ", device, " a second time, after ", pipelines[0]->name,
                    "; give each a `share` of it, or other ", key));
      else if (sum > 1 + rounding)
        mistake(*pipelines.back(), "share",
                str("makes ", sum, " of ", what, " ", device, " in all; at most 1 can be given"));
    }
  }

  // Limits of those that name a GPU, together; others are put where there is room for theirs, if there is such a place.
  void gpu_memory() {
    std::map<int, int64_t> together;
    for (size_t i = 0; i < claims_.size(); ++i) {
      const Pipeline& pipeline = farm_.pipelines[i];
      const int64_t limit = claims_[i].gpu_memory;
      if (limit == 0) continue;
      if (pipeline.terms.gpu_list.empty()) {
        gpu_with_room(pipeline, limit);
        continue;
      }
      // Of hosts with the same GPUs, as one farm's are, any.
      for (const Gpu& gpu : yard_->hosts.front().gpus) {
        const std::vector<int>& list = pipeline.terms.gpu_list;
        if (std::find(list.begin(), list.end(), gpu.index) == list.end()) continue;
        const int64_t sum = together[gpu.index] += limit;
        if (gpu.memory <= 0 || sum <= gpu.memory) continue;
        mistake(pipeline, "gpu_memory",
                str("makes ", human_bytes(static_cast<double>(sum)), " on GPU ", gpu.index, ", which has ",
                    human_bytes(static_cast<double>(gpu.memory))));
        break;
      }
    }
  }

  void gpu_with_room(const Pipeline& pipeline, int64_t limit) {
    int64_t most = 0;
    for (const Machines::Device& gpu : yard_->machines.gpus) {
      if (gpu.memory <= 0) return;
      most = std::max(most, gpu.memory);
    }
    if (most > 0 && limit > most)
      mistake(pipeline, "gpu_memory",
              str("is ", human_bytes(static_cast<double>(limit)), " on each of its GPUs, and the largest here has ",
                  human_bytes(static_cast<double>(most))));
  }

  // Of one host: whether some that may run at a time are promised more than it has, tried with those first that have the
  // largest limits, and with those that have the largest for each core. Of several each is put where there is room for it.
  void host_memory() {
    if (!each_fits_a_host() || yard_->hosts.size() > 1 || yard_->hosts.front().memory <= 0) return;
    if (!memory_in_order([&](size_t index) { return static_cast<double>(farm_.pipelines[index].terms.memory); }))
      return;
    memory_in_order([&](size_t index) {
      const double cores = index < claims_.size() ? std::max(claims_[index].cores, 1) * claims_[index].share : 1;
      return static_cast<double>(farm_.pipelines[index].terms.memory) / cores;
    });
  }

  // Also of one that no host has slots for.
  bool each_fits_a_host() {
    int64_t most = 0;
    std::string name;
    for (const Host& host : yard_->hosts) {
      if (host.memory <= 0) return true;
      if (host.memory > most) name = host.name;
      most = std::max(most, host.memory);
    }
    bool all = true;
    for (const Pipeline& pipeline : farm_.pipelines) {
      if (pipeline.terms.memory <= most) continue;
      all = false;
      mistake(pipeline, "memory",
              str("makes ", human_bytes(static_cast<double>(pipeline.terms.memory)), " for it alone, and ", name,
                  " has ", human_bytes(static_cast<double>(most)), " for this job; give less"));
    }
    return all;
  }

  // False where a mistake was found.
  template <class Weight>
  bool memory_in_order(const Weight& weight) {
    const int64_t available = yard_->hosts.front().memory;
    std::vector<size_t> order(farm_.pipelines.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weight(a) > weight(b); });
    Queue running(yard_->machines, farm_.max_parallel);
    int64_t sum = 0;
    for (size_t index : order) {
      const Pipeline& pipeline = farm_.pipelines[index];
      if (pipeline.terms.memory == 0 || index >= claims_.size()) continue;
      running.add(static_cast<int>(index), without_memory(claims_[index]));
      if (!running.next(0)) {
        running.drop(static_cast<int>(index));
        continue;
      }
      sum += pipeline.terms.memory;
      if (sum <= available) continue;
      mistake(pipeline, "memory",
              str("makes ", human_bytes(static_cast<double>(sum)), " of those that may run at a time, and ",
                  yard_->hosts.front().name, " has ", human_bytes(static_cast<double>(available)),
                  " for this job; give less, or max_parallel"));
      return false;
    }
    return true;
  }

  Farm& farm_;
  const Yard* yard_;
  std::vector<Claim> claims_;
  const Pipeline* last_planned_ = nullptr;
  std::set<std::string> looked_for_, planned_;  // as text
  std::vector<ConfigError> mistakes_;
};

}  // namespace

Yard yard_of(const Host& host) {
  Yard yard;
  yard.hosts = {host};
  for (const Core& core : host.cores)
    yard.machines.slots.push_back({0, core.siblings.empty() ? std::vector<int>{core.id} : core.siblings, 1});
  add_host(host, 0, yard.machines);
  return yard;
}

Yard yard_of(const std::vector<Host>& agents) {
  Yard yard;
  std::map<std::string, int> index;
  std::map<std::pair<int, std::vector<int>>, size_t> sharing, given;  // agents of a host with the same cores
  std::vector<std::pair<int, std::vector<int>>> keys;
  for (const Host& agent : agents) {
    const auto [host, fresh] = index.emplace(agent.name, static_cast<int>(yard.hosts.size()));
    if (fresh) {
      yard.hosts.push_back(agent);
      add_host(agent, host->second, yard.machines);
    }
    keys.emplace_back(host->second, allowed_units(agent));
    ++sharing[keys.back()];
  }
  for (size_t i = 0; i < agents.size(); ++i) {
    const std::vector<Core> cores = restricted(agents[i].cores, keys[i].second);
    const std::vector<Core> own = share_of(cores, given[keys[i]]++, sharing[keys[i]]);
    yard.machines.slots.push_back({keys[i].first, units_of(own), static_cast<int>(own.size())});
  }
  return yard;
}

Claim claim_of(const Pipeline& pipeline, const Yard& yard, int max_parallel) {
  const QueueTerms& terms = pipeline.terms;
  Claim claim;
  claim.priority = terms.priority;
  claim.preempt = terms.preempt;
  claim.estimate = terms.estimate;
  claim.share = terms.share;
  claim.core_list = terms.core_list;
  claim.gpu_list = terms.gpu_list;
  const bool known = !pipeline.config.is_null();
  const auto count = [&](const char* key) {
    if (!known) return 1;
    const Json& launch = pipeline.config.at("launch");
    return launch.at(key).is_number_integer() ? std::max(1, launch.at(key).get<int>()) : 1;
  };
  const int ranks = count("ranks");
  claim.cores = terms.cores;
  if (claim.cores == 0) {
    // Where the number at a time is known, all cores are put to use.
    const int each = max_parallel > 0 ? cores_in(yard) / max_parallel : 0;
    claim.cores = std::max(ranks * count("cores_per_rank"), each);
  }
  const bool any =
      std::any_of(yard.hosts.begin(), yard.hosts.end(), [](const Host& host) { return !host.gpus.empty(); });
  const bool wants = known && any && pipeline.config.at("device") != "cpu";
  claim.gpus = terms.gpus >= 0 ? terms.gpus : wants ? ranks : 0;
  claim.memory = terms.memory;
  claim.gpu_memory = claim.gpus > 0 ? terms.gpu_memory : 0;
  return claim;
}

std::vector<int> units_of(const Grant& grant, const Claim& claim, const Machines& machines) {
  if (!claim.core_list.empty()) return claim.core_list;
  std::vector<int> units;
  for (int slot : grant.slots) {
    const std::vector<int>& cores = machines.slots[static_cast<size_t>(slot)].cores;
    units.insert(units.end(), cores.begin(), cores.end());
  }
  std::sort(units.begin(), units.end());
  return units;
}

std::vector<ConfigError> check_claims(Farm& farm, const Yard& yard, const std::string& rank_program, size_t known) {
  return Checks(farm, &yard).all(rank_program, known);
}

std::vector<ConfigError> check_anywhere(Farm& farm, const std::string& rank_program) {
  return Checks(farm, nullptr).all(rank_program, 0);
}

}  // namespace convoy
