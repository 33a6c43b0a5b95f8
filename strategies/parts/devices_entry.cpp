#include "strategies/parts/devices_entry.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/units.h"

namespace convoy {
namespace {

constexpr const char* forms = "must be cuda:0, cores:0, cores:0-3 or cores:0+2";

std::set<int> allowed_units(const Host& host) {
  std::set<int> units;
  for (const Core& core : host.cores) units.insert(core.siblings.begin(), core.siblings.end());
  return units;
}

}  // namespace

DevicePlan parse_device(const Options& options, const std::string& key, const std::string& text, const Host& host) {
  const auto fail = [&](const std::string& reason) { options.fail(key, str("is '", text, "', ", reason)); };
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  DevicePlan device;
  if (kind == "cuda") {
    device.kind = DevicePlan::Kind::gpu;
    const std::vector<int> number = units_from_text(rest);
    if (number.size() != 1) fail(forms);
    device.gpu = number.front();
    if (device.gpu >= static_cast<int>(host.gpus.size()))
      fail(str("and ", host.name, " has ", host.gpus.size(), " GPUs"));
    return device;
  }
  if (kind != "cores") fail(forms);
  device.cores = units_from_text(rest);
  if (device.cores.empty()) fail(forms);
  const std::set<int> allowed = allowed_units(host);
  for (int unit : device.cores) {
    if (allowed.count(unit) != 0) continue;
    std::vector<std::string> names;
    for (int known : allowed) names.push_back(std::to_string(known));
    fail(str("and this run may use the cores ", join(names, ", "), " of ", host.name, ", not ", unit));
  }
  return device;
}

std::vector<DevicePlan> parse_devices(const Options& options, const std::string& key, const Host& host) {
  if (options.is_auto(key)) return {};
  std::vector<DevicePlan> devices;
  std::set<std::pair<bool, int>> seen;
  const std::vector<std::string> texts = options.texts(key);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string item = str(key, ".", i);
    DevicePlan device = parse_device(options, item, texts[i], host);
    const bool gpu = device.kind == DevicePlan::Kind::gpu;
    for (int unit : gpu ? std::vector<int>{device.gpu} : device.cores)
      if (!seen.insert({gpu, unit}).second)
        options.fail(item,
                     str("names ", gpu ? "GPU " : "core ", unit, ", which a device before it has; name each once"));
    devices.push_back(std::move(device));
  }
  if (devices.empty()) options.fail(key, "is empty; name one device at least, or leave the key out");
  return devices;
}

}  // namespace convoy
