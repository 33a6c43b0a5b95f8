// calibration.json. Every field is written and read; whoever edits it by hand is told what is wrong with it.
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "core/files.h"
#include "launch/calibration.h"

namespace convoy {
namespace {

constexpr const char* format = "convoy calibration";
constexpr int format_version = 1;
constexpr size_t most_bytes = 16 << 20;

// Reads what must be there, and says which key is not as it must be.
class Reader {
 public:
  Reader(const Json& json, std::string path, std::string key = "")
      : json_(json), path_(std::move(path)), key_(std::move(key)) {
    if (!json_.is_object()) fail("", "must be an object");
  }

  std::string text(const char* name) const {
    const Json& value = at(name);
    if (!value.is_string()) fail(name, "must be text");
    return value.get<std::string>();
  }
  double number(const char* name, double least, bool more = false) const {
    const Json& value = at(name);
    const bool fits = value.is_number() && std::isfinite(value.get<double>()) &&
                      (more ? value.get<double>() > least : value.get<double>() >= least);
    if (!fits) fail(name, str("is ", value.dump(), ", must be a number ", more ? "above " : "of at least ", least));
    return value.get<double>();
  }
  int whole(const char* name, int least) const {
    const Json& value = at(name);
    if (!value.is_number_integer() || value.get<int64_t>() < least || value.get<int64_t>() > 1 << 24)
      fail(name, str("is ", value.dump(), ", must be a whole number of at least ", least));
    return value.get<int>();
  }
  const Json& object(const char* name) const {
    if (!at(name).is_object()) fail(name, "must be an object");
    return at(name);
  }
  std::vector<Reader> list(const char* name, size_t least) const {
    const Json& value = at(name);
    if (!value.is_array() || value.size() < least) fail(name, str("must be a list of at least ", least));
    std::vector<Reader> items;
    for (size_t index = 0; index < value.size(); ++index)
      items.emplace_back(value[index], path_, str(key_.empty() ? "" : key_ + ".", name, ".", index));
    return items;
  }
  const Json& at(const char* name) const {
    if (!json_.contains(name)) fail(name, "is missing");
    return json_[name];
  }
  [[noreturn]] void fail(const std::string& name, const std::string& reason) const {
    const std::string key = key_.empty() || name.empty() ? key_ + name : key_ + "." + name;
    throw Error(Failure::config, str(path_, ": ", key.empty() ? "" : key + " ", reason,
                                     "; write a new one with `convoy explain CONFIG --calibrate`"));
  }

 private:
  const Json& json_;
  std::string path_, key_;
};

Json to_json(const Timing& timing) { return {{"seconds", timing.seconds}, {"spread", timing.spread}}; }

Timing timing(const Reader& reader, double least, bool more) {
  return {reader.number("seconds", least, more), reader.number("spread", 0)};
}

template <class Item, class Key>
void check_ascending(const Reader& reader, const char* name, const std::vector<Item>& items, Key key) {
  for (size_t index = 1; index < items.size(); ++index)
    if (key(items[index]) <= key(items[index - 1])) reader.fail(name, "must ascend");
}

StepTimings steps_from(const Reader& reader) {
  StepTimings steps;
  steps.ranks = reader.whole("ranks", 1);
  steps.threads = reader.whole("threads", 1);
  steps.update = {reader.number("update_seconds", 0), reader.number("update_spread", 0)};
  for (const Reader& item : reader.list("passes", 1))
    steps.passes.push_back({item.number("rows", 0, true), timing(item, 0, true), item.number("apart", 0),
                            item.number("updated", 0, true)});
  check_ascending(reader, "passes", steps.passes, [](const PassTiming& pass) { return pass.rows; });
  return steps;
}

ExchangeTimings exchange_from(const Reader& reader) {
  ExchangeTimings exchange;
  exchange.backend = reader.text("backend");
  try {
    exchange.kind = exchange_named(reader.text("kind"));
  } catch (const Error& error) {
    reader.fail("kind", str("is ", error.what()));
  }
  exchange.busy = reader.number("busy", 0);
  if (exchange.busy > 1) reader.fail("busy", "must be at most 1");
  for (const Reader& item : reader.list("messages", 1))
    exchange.messages.push_back({item.number("bytes", 0), timing(item, 0, true)});
  check_ascending(reader, "messages", exchange.messages, [](const MessageTiming& message) { return message.bytes; });
  return exchange;
}

}  // namespace

Json to_json(const Calibration& calibration) {
  Json steps = Json::array(), exchanges = Json::array(), blocks = Json::array();
  for (const StepTimings& one : calibration.steps) {
    Json passes = Json::array();
    for (const PassTiming& pass : one.passes) {
      Json item{{"rows", pass.rows}};
      item.update(to_json(pass.step));
      item["apart"] = pass.apart;
      item["updated"] = pass.updated;
      passes.push_back(item);
    }
    steps.push_back({{"ranks", one.ranks},
                     {"threads", one.threads},
                     {"update_seconds", one.update.seconds},
                     {"update_spread", one.update.spread},
                     {"passes", passes}});
  }
  for (const ExchangeTimings& one : calibration.exchanges) {
    Json messages = Json::array();
    for (const MessageTiming& message : one.messages) {
      Json item{{"bytes", message.bytes}};
      item.update(to_json(message.time));
      messages.push_back(item);
    }
    exchanges.push_back({{"backend", one.backend},
                         {"kind", name_of(one.kind)},
                         {"latency_seconds", one.latency()},
                         {"bytes_per_second", one.bandwidth()},
                         {"busy", one.busy},
                         {"messages", messages}});
  }
  for (const auto& [name, share] : calibration.blocks) blocks.push_back({{"name", name}, {"share", share}});
  Json json{{"format", format},
            {"version", format_version},
            {"made", calibration.made},
            {"convoy", calibration.convoy},
            {"host",
             {{"name", calibration.host},
              {"processor", calibration.processor},
              {"cores", calibration.cores},
              {"memory", calibration.memory},
              {"gpus", calibration.gpus}}},
            {"device", calibration.device},
            {"run", calibration.run},
            {"load", calibration.load},
            {"blocks", blocks},
            {"steps", steps},
            {"exchanges", exchanges}};
  if (calibration.dense_tables) json["dense_tables"] = to_json(*calibration.dense_tables);
  return json;
}

Calibration calibration_from_json(const Json& json, const std::string& path) {
  const Reader reader(json, path);
  if (reader.text("format") != format) reader.fail("format", str("must be \"", format, "\""));
  if (const int found = reader.whole("version", 1); found != format_version)
    reader.fail("version", str("is ", found, ", and this convoy reads ", format_version));
  Calibration calibration;
  calibration.made = reader.text("made");
  calibration.convoy = reader.text("convoy");
  const Reader host(reader.object("host"), path, "host");
  calibration.host = host.text("name");
  calibration.processor = host.text("processor");
  calibration.cores = host.whole("cores", 1);
  calibration.memory = static_cast<int64_t>(host.number("memory", 0));
  if (!host.at("gpus").is_array()) host.fail("gpus", "must be a list");
  for (const Json& gpu : host.at("gpus")) {
    if (!gpu.is_string()) host.fail("gpus", "must be a list of texts");
    calibration.gpus.push_back(gpu.get<std::string>());
  }
  calibration.device = reader.text("device");
  if (calibration.device != "cpu" && calibration.device != "cuda") reader.fail("device", "must be cpu or cuda");
  calibration.run = reader.object("run");
  if (json.contains("load")) calibration.load = reader.number("load", 0);
  if (calibration.load > 1) reader.fail("load", "must be at most 1");
  for (const Reader& block : reader.list("blocks", 0))
    calibration.blocks.emplace_back(block.text("name"), block.number("share", 0));
  for (const Reader& item : reader.list("steps", 1)) calibration.steps.push_back(steps_from(item));
  for (const Reader& item : reader.list("exchanges", 0)) calibration.exchanges.push_back(exchange_from(item));
  if (json.contains("dense_tables"))
    calibration.dense_tables =
        std::make_shared<Calibration>(calibration_from_json(json["dense_tables"], path + ", dense_tables"));
  return calibration;
}

void write_calibration(const std::string& path, const Calibration& calibration) {
  try {
    write_whole(path, to_json(calibration).dump(1) + "\n", true);
  } catch (const Error& error) {
    // What it advises is for runs, which have an --output.
    const std::string what = error.what();
    throw Error(Failure::output, str(what.substr(0, what.find("; ")), "; change to a folder that may be written"));
  }
}

Calibration read_calibration(const std::string& path) {
  std::string text;
  try {
    text = read_file(path, most_bytes);
  } catch (const Error& error) {
    throw Error(Failure::config, str(error.what(), "; write one with `convoy explain CONFIG --calibrate`"));
  }
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded())
    throw Error(Failure::config, str(path, ": is no JSON; write a new one with `convoy explain CONFIG --calibrate`"));
  return calibration_from_json(json, path);
}

}  // namespace convoy
