#include "strategies/plans/options/devices.h"

#include "core/base/describe.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/sharded.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {
namespace {

constexpr const char* forms = "must be cuda:0, cores:0, cores:0-3 or cores:0+2";

std::set<int> allowed_hardware_threads(const Host& host) {
  std::set<int> hardware_threads;
  for (const Core& core : host.cores) hardware_threads.insert(core.siblings.begin(), core.siblings.end());
  return hardware_threads;
}

}  // namespace

DevicePlan parse_device(const Options& options, const std::string& key, const std::string& text, const Host& host,
                        TakenDevices& taken) {
  const auto fail = [&](const std::string& reason) { options.fail(key, "is '", text, "', ", reason); };
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const auto take = [&](bool gpu, int number) {
    if (!taken.insert({gpu, number}).second)
      options.fail(key, "names ", gpu ? "GPU " : "core ", number, ", which a device before it has; name each once");
  };
  const std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  DevicePlan device;
  if (kind == "cuda") {
    device.kind = DevicePlan::Kind::gpu;
    const std::vector<int> number = hardware_threads_from_text(rest);
    if (number.size() != 1) fail(forms);
    device.gpu = number.front();
    if (device.gpu >= int(host.gpus.size())) fail(str("and ", host.name, " has ", host.gpus.size(), " GPUs"));
    take(true, device.gpu);
    return device;
  }
  if (kind != "cores") fail(forms);
  device.cores = hardware_threads_from_text(rest);
  if (device.cores.empty()) fail(forms);
  const std::set<int> allowed = allowed_hardware_threads(host);
  for (const int core : device.cores) {
    if (allowed.count(core) != 0) continue;
    std::vector<std::string> names;
    for (int known : allowed) names.push_back(std::to_string(known));
    fail(str("and this run may use the cores ", join(names, ", "), " of ", host.name, ", not ", core));
  }
  for (const int core : device.cores) take(false, core);
  return device;
}

DeviceOptions device_options(const Options& strategy) {
  DeviceOptions options;
  options.section = strategy;
  if (!strategy.is_auto("devices")) options.devices = strategy.texts("devices");
  if (!strategy.has("placement") || strategy.is_auto("placement")) return options;
  options.placement.emplace();
  for (const Options& item : strategy.sections("placement"))
    options.placement->push_back({parse_blocks(item, "blocks", item.text("blocks")), item.text("device"), item});
  return options;
}

std::vector<DevicePlan> parse_devices(const DeviceOptions& options, const Host& host) {
  std::vector<DevicePlan> devices;
  if (!options.devices) return devices;
  TakenDevices taken;
  for (size_t i = 0; i < options.devices->size(); ++i)
    devices.push_back(parse_device(options.section, str("devices.", i), (*options.devices)[i], host, taken));
  if (devices.empty()) options.section.fail("devices", "is empty; name one device at least, or leave the key out");
  return devices;
}

namespace {

// Copies of the parameters on the data axis: none, one shared copy, or a whole replica per rank.
enum class Copies { none, shared, whole };

Copies copies_of(const RunConfig& config) {
  const Options& section = config.strategy.options;
  if (section.has("mesh")) {
    const MeshOptions mesh = mesh_options(section);
    return mesh.sharded ? Copies::shared : mesh.data == 1 ? Copies::none : Copies::whole;
  }
  if (strategy_of(config).replicas) return Copies::whole;
  return section.json().contains("shard") ? Copies::shared : Copies::none;
}

// Returns the message for ranks without replicas that are to synchronise `what`.
std::string no_replicas(const std::string& what, const std::string& strategy, Copies copies) {
  if (what != "parameters" && what != "diloco") {
    const std::string near = nearest(what, {"gradients"});
    return str("is ", shown(what), ", must be gradients", near.empty() ? "" : "; did you mean " + near + "?");
  }
  const std::string trained = str("is ", what, ": ranks would train copies of the parameters locally and ",
                                  what == "diloco" ? "step along their mean difference" : "average them", ", and ");
  if (copies == Copies::shared)
    return trained +
           "here the ranks shard one copy, so there are none to train locally; set what: gradients, or use a data axis "
           "of whole replicas";
  return str(trained, "strategy ", strategy, " has one copy only; set what: gradients");
}

std::vector<std::string> check_sync_kinds(const RunConfig& config) {
  const Options& section = config.strategy.options;
  if (!section.has("sync")) return {};
  const Copies copies = copies_of(config);
  if (copies == Copies::whole) return check_sync(config, true);
  refuse_local_updates(section,
                       [&](const std::string& what) { return no_replicas(what, config.strategy.name, copies); });
  return section.section("sync").json().contains("groups") ? check_sync(config, false) : std::vector<std::string>();
}

}  // namespace

std::vector<std::string> check_shared_effects(const RunConfig& config) {
  std::vector<std::string> left_out = check_sync_kinds(config);
  const Options& section = config.strategy.options;
  if (config.precision != "fp16" && section.has("loss_scale"))
    refuse_without_effect(section, "loss_scale",
                          str("needs precision fp16, where it keeps small gradients above zero, but precision is ",
                              config.precision, "; leave it out, or set precision: fp16"),
                          {location_of(config.resolved, "precision")}, &left_out);
  return left_out;
}

std::vector<std::string> check_shard_effects(const Options& section) {
  std::vector<std::string> left_out;
  const Shard shard = shard_of(section);
  if (shard != Shard::parameters)
    refuse_without_effect(section, "reshard_after_forward",
                          str("needs shard: parameters, which frees and gathers them again, but shard is ",
                              name_of(shard), ", which keeps parameters whole; leave one of them out"),
                          {section.location("shard")}, &left_out);
  return left_out;
}

std::vector<std::string> refuse_keys_of(const Options& section, const std::vector<std::string>& keys,
                                        const std::string& reason, const SourceLocation& because) {
  std::vector<std::string> left_out;
  for (const std::string& key : keys) refuse_without_effect(section, key, reason, {because}, &left_out);
  return left_out;
}

Option graph_option() {
  return describe::choice(
      "graph",
      "record a step as one CUDA graph on a GPU. auto: if a test gives the same results and is faster; always: end "
      "with an error if it is impossible; never",
      graph_modes, graph_modes.front());
}

void check_graph(const RunConfig& config, const Topology& topology) {
  const Options& options = config.strategy.options;
  const StepOptions step = step_options(options);
  if (step.graph != GraphMode::always) return;
  const SyncPolicy& sync = step.sync;
  if (sync.every > 1)
    options.fail("graph", "is always, but with sync.every: ", sync.every,
                 " not every step makes an update; set auto, or sync.every: 1");
  if (sync.ever_local())
    options.fail("graph",
                 "is always, but replicas with local updates (sync.what) synchronise at updates that the host counts; "
                 "set auto, or sync.what: gradients");
  if (!on_gpus(config, topology)) options.fail("graph", "is always, but graphs are recorded on GPUs only; write auto");
}

}  // namespace convoy
