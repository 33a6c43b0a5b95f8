#include "launch/explain/calibration.h"

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <numeric>

#include "core/base/json.h"
#include "core/base/version.h"
#include "core/config/node.h"
#include "core/config/run_config.h"
#include "core/files/files.h"

namespace convoy {
namespace {

std::string now_text() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    return colon + 2 <= line.size() ? line.substr(colon + 2) : "";
  }
  return "";
}

// Combines the samples of all ranks: the time of a step is that of its slowest rank.
PassTiming pass_timing(const std::vector<const StepSamples*>& ranks) {
  size_t count = ranks.front()->steps.size();
  for (const StepSamples* rank : ranks) count = std::min(count, rank->steps.size());
  std::vector<double> slowest, mean;
  for (size_t number = 0; number < count; ++number) {
    double longest = 0, sum = 0;
    for (const StepSamples* rank : ranks) {
      longest = std::max(longest, rank->steps[number]);
      sum += rank->steps[number];
    }
    slowest.push_back(longest);
    mean.push_back(sum / static_cast<double>(ranks.size()));
  }
  PassTiming pass;
  pass.rows = static_cast<double>(ranks.front()->rows);
  pass.step = timing_of(slowest);
  pass.mean_wait = std::max(0.0, pass.step.seconds - timing_of(mean).seconds);
  return pass;
}

// Share for the row count nearest to `wanted`: a small data set has fewer rows than requested.
UpdatedShare share_at(const std::vector<int64_t>& rows, const std::vector<UpdatedShare>& shares, int64_t wanted) {
  UpdatedShare found;
  int64_t nearest = -1;
  for (size_t i = 0; i < std::min(rows.size(), shares.size()); ++i) {
    const int64_t distance = std::abs(rows[i] - wanted);
    if (nearest >= 0 && distance >= nearest) continue;
    nearest = distance;
    found = shares[i];
  }
  return found;
}

StepTimings step_timings(const std::vector<const std::vector<StepSamples>*>& ranks, int threads,
                         const std::vector<int64_t>& rows, const std::vector<UpdatedShare>& shares) {
  StepTimings timings;
  timings.ranks = static_cast<int>(ranks.size());
  timings.threads = threads;
  std::vector<double> updates;
  for (size_t point = 0; point < ranks.front()->size(); ++point) {
    std::vector<const StepSamples*> samples;
    for (const std::vector<StepSamples>* rank : ranks) samples.push_back(&rank->at(point));
    const UpdatedShare share = share_at(rows, shares, samples.front()->rows);
    for (const StepSamples* rank : samples)
      for (const double seconds : rank->updates) updates.push_back(seconds / share.three);
    PassTiming pass = pass_timing(samples);
    pass.updated = share.one;
    // Larger batches of a small data set have equal rows.
    const bool known = std::any_of(timings.passes.begin(), timings.passes.end(),
                                   [&](const PassTiming& other) { return other.rows == pass.rows; });
    if (!known) timings.passes.push_back(pass);
  }
  std::sort(timings.passes.begin(), timings.passes.end(),
            [](const PassTiming& a, const PassTiming& b) { return a.rows < b.rows; });
  timings.update = difference_of(updates);
  for (const PassTiming& pass : timings.passes)  // keeps the time of a pass positive despite noise
    timings.update.seconds = std::min(timings.update.seconds, 0.95 * pass.step.seconds / pass.updated);
  return timings;
}

// Noise hides the update of few rows when several ranks run at once. Its share of a step is taken from one rank alone.
void share_update(const StepTimings& alone, StepTimings& together) {
  const PassTiming& pass = together.passes.back();
  const auto nearest =
      std::min_element(alone.passes.begin(), alone.passes.end(), [&](const PassTiming& a, const PassTiming& b) {
        return std::abs(a.rows - pass.rows) < std::abs(b.rows - pass.rows);
      });
  const double share = alone.update.seconds * nearest->updated / nearest->step.seconds;
  together.update = {share * pass.step.seconds / pass.updated, alone.update.spread};
}

std::vector<std::pair<std::string, double>> block_shares(const std::vector<std::pair<std::string, double>>& seconds) {
  double all = 0;
  for (const auto& [name, time] : seconds) all += time;
  std::vector<std::pair<std::string, double>> shares;
  for (const auto& [name, time] : seconds)
    if (all > 0) shares.emplace_back(name, time / all);
  return shares;
}

// Scales from the sampled blocks to all blocks: passes by the blocks' time, updates by their parameters.
void extrapolate(Calibration& calibration, const std::vector<SampledBlock>& sampled,
                 const std::vector<std::pair<std::string, double>>& seconds) {
  constexpr double doubt = 0.1;  // relative: blocks may differ in time, and a step does more than its blocks
  double time = 0, all_time = 0, parameters = 0, all_parameters = 0;
  for (size_t i = 0; i < std::min(sampled.size(), seconds.size()); ++i) {
    const auto count = static_cast<double>(sampled[i].names.size());
    time += seconds[i].second;
    all_time += count * seconds[i].second;
    parameters += static_cast<double>(sampled[i].parameters);
    all_parameters += count * static_cast<double>(sampled[i].parameters);
  }
  const double slower = time > 0 ? all_time / time : 1, larger = parameters > 0 ? all_parameters / parameters : 1;
  for (StepTimings& step : calibration.steps) {
    for (PassTiming& pass : step.passes) {
      const double update = step.update.seconds * pass.updated;
      pass.step.seconds = (pass.step.seconds - update) * slower + update * larger;
      pass.step.spread = std::hypot(pass.step.spread, doubt);
      pass.mean_wait *= slower;
    }
    step.update.seconds *= larger;
  }
  calibration.blocks.clear();
  for (size_t i = 0; i < std::min(sampled.size(), seconds.size()) && all_time > 0; ++i)
    for (const std::string& name : sampled[i].names)
      calibration.blocks.emplace_back(name, seconds[i].second / all_time);
}

Timing with_spread(const std::vector<double>& sorted, double seconds) {
  const size_t count = sorted.size();
  return {seconds, seconds > 0 ? (sorted[count - 1 - count / 5] - sorted[count / 5]) / 2 / seconds : 0};
}

constexpr const char* format = "convoy calibration";
constexpr int format_version = 1;
constexpr size_t most_file_bytes = 16 << 20;

// Reads required keys; an error names the key.
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
  double number(const char* name, double least, bool above = false) const {
    const Json& value = at(name);
    const bool valid = value.is_number() && std::isfinite(value.get<double>()) &&
                       (above ? value.get<double>() > least : value.get<double>() >= least);
    if (!valid) fail(name, str("is ", value.dump(), ", must be a number ", above ? "above " : "of at least ", least));
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
  template <class... Parts>
  [[noreturn]] void fail(const std::string& name, const Parts&... reason) const {
    const std::string key = key_.empty() || name.empty() ? key_ + name : key_ + "." + name;
    throw Error(Failure::config, path_, ": ", key.empty() ? "" : key + " ", reason...,
                "; write a new one with `convoy explain CONFIG --calibrate`");
  }

 private:
  const Json& json_;
  std::string path_, key_;
};

Json to_json(const Timing& timing) { return {{"seconds", timing.seconds}, {"spread", timing.spread}}; }

Timing timing(const Reader& reader, double least, bool above) {
  return {reader.number("seconds", least, above), reader.number("spread", 0)};
}

template <class Item, class Key>
void check_ascending(const Reader& reader, const char* name, const std::vector<Item>& items, Key key) {
  for (size_t index = 1; index < items.size(); ++index)
    if (key(items[index]) <= key(items[index - 1])) reader.fail(name, "must be in ascending order");
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
    reader.fail("kind", "is ", error.what());
  }
  exchange.busy = reader.number("busy", 0);
  if (exchange.busy > 1) reader.fail("busy", "must be at most 1");
  for (const Reader& item : reader.list("messages", 1))
    exchange.messages.push_back({item.number("bytes", 0), timing(item, 0, true)});
  check_ascending(reader, "messages", exchange.messages, [](const MessageTiming& message) { return message.bytes; });
  return exchange;
}

}  // namespace

Timing timing_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const size_t count = samples.size();
  const size_t kept = count - count / 10;
  const double sum = std::accumulate(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  return with_spread(samples, sum / static_cast<double>(kept));
}

Timing difference_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const size_t count = samples.size();
  return with_spread(samples, std::max(0.0, (samples[(count - 1) / 2] + samples[count / 2]) / 2));
}

double ExchangeTimings::bandwidth() const {
  const double bytes = messages.back().bytes - (messages.size() > 1 ? messages.front().bytes : 0);
  const double seconds = messages.back().time.seconds - (messages.size() > 1 ? latency() : 0);
  return bytes / std::max(seconds, 1e-9);
}

namespace {

// Sections of a resolved configuration that affect times: model, data, loss, optimizer, precision, recompute.
Json timed_sections(const Json& resolved) {
  Json sections = Json::object();
  for (const char* name : {"precision", "model", "data", "loss", "optimizer"})
    if (resolved.contains(name)) sections[name] = resolved[name];
  const Json recompute = resolved.contains("strategy") ? resolved["strategy"].value("recompute", Json("none")) : "none";
  sections["recompute"] = recompute;
  return sections;
}

}  // namespace

Calibration calibration_of(const MeasurementRequest& request, const std::vector<Measurement>& measured,
                           const Host& host, const Json& resolved) {
  const Measurement& first = measured.at(0);
  Calibration calibration;
  calibration.made = now_text();
  calibration.convoy = version;
  calibration.host = host.name;
  calibration.processor = processor_name();
  calibration.cores = static_cast<int>(host.cores.size());
  calibration.memory = host.memory;
  calibration.device = first.device;
  for (const Gpu& gpu : host.gpus) calibration.gpus.push_back(gpu.uuid);
  calibration.run = timed_sections(resolved);
  calibration.blocks = block_shares(first.blocks);
  calibration.steps.push_back(
      step_timings({&first.alone}, request.alone.threads, request.alone_rows, request.alone_updated));
  if (!request.together.empty()) {
    std::vector<const std::vector<StepSamples>*> ranks;
    for (const Measurement& one : measured) ranks.push_back(&one.together);
    calibration.steps.push_back(
        step_timings(ranks, request.together.front().threads, request.together_rows, request.together_updated));
  }
  if (!request.together.empty() && !request.together_updated.empty())
    share_update(calibration.steps.front(), calibration.steps.back());
  if (!request.sampled.empty()) extrapolate(calibration, request.sampled, first.blocks);
  for (const ExchangeSamples& samples : first.exchanges) {
    auto& all = calibration.exchanges;
    auto found = std::find_if(all.begin(), all.end(), [&](const ExchangeTimings& one) {
      return one.backend == samples.backend && one.kind == samples.kind;
    });
    if (found == all.end()) found = all.insert(all.end(), ExchangeTimings{samples.backend, samples.kind, 0, {}});
    found->messages.push_back({static_cast<double>(samples.bytes), timing_of(samples.seconds)});
    found->busy = samples.busy;  // share during the largest message, which overlaps most
  }
  return calibration;
}

void check_calibration(const Calibration& calibration, const Json& resolved, const std::string& path) {
  // These keys do not affect the time of a step.
  const std::vector<std::string> ignored{"data.path",          "data.prefetch",      "data.evaluate",
                                         "data.evaluate_rows", "data.samples",       "data.seed",
                                         "optimizer.lr",       "optimizer.schedule", "optimizer.clip_norm"};
  const std::string key = first_difference(calibration.run, timed_sections(resolved), ignored);
  if (key.empty()) return;
  throw Error(Failure::config, path, ": was measured for another configuration (", key,
              " differs); measure this configuration with --calibrate");
}

HostLink parse_link(const std::string& text) {
  const size_t comma = text.find(',');
  const size_t begin = comma == std::string::npos ? comma : text.find_first_not_of(' ', comma + 1);
  std::string rate = begin == std::string::npos ? "" : text.substr(begin);
  const bool per_second = rate.size() > 2 && rate.compare(rate.size() - 2, 2, "/s") == 0;
  if (per_second) rate.resize(rate.size() - 2);
  const Parsed<double> latency = parse_duration(text.substr(0, comma));
  const Parsed<int64_t> bandwidth = parse_bytes(rate);
  if (!per_second || !latency.value || !bandwidth.value || *latency.value < 0 || *bandwidth.value <= 0)
    throw Error(Failure::command_line, "--link ", shown(text),
                ": must be a latency and a bandwidth in bytes a "
                "second, as in --link 20us,12GB/s");
  return {*latency.value, static_cast<double>(*bandwidth.value)};
}

// ---- calibration.json ----

Json to_json(const Calibration& calibration) {
  Json steps = Json::array(), exchanges = Json::array(), blocks = Json::array();
  for (const StepTimings& one : calibration.steps) {
    Json passes = Json::array();
    for (const PassTiming& pass : one.passes) {
      Json item{{"rows", pass.rows}};
      item.update(to_json(pass.step));
      item["apart"] = pass.mean_wait;
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
  if (calibration.dense_embeddings) json["dense_tables"] = to_json(*calibration.dense_embeddings);
  return json;
}

Calibration calibration_from_json(const Json& json, const std::string& path) {
  const Reader reader(json, path);
  if (reader.text("format") != format) reader.fail("format", "must be \"", format, "\"");
  if (const int found = reader.whole("version", 1); found != format_version)
    reader.fail("version", "is ", found, ", but this convoy reads version ", format_version);
  Calibration calibration;
  calibration.made = reader.text("made");
  calibration.convoy = reader.text("convoy");
  const Reader host(reader.object("host"), path, "host");
  calibration.host = host.text("name");
  calibration.processor = host.text("processor");
  calibration.cores = host.whole("cores", 1);
  const double memory = host.number("memory", 0);
  if (memory > 1e18) host.fail("memory", "must be at most 1e18 bytes");
  calibration.memory = static_cast<int64_t>(memory);
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
    calibration.dense_embeddings =
        std::make_shared<Calibration>(calibration_from_json(json["dense_tables"], path + ", dense_tables"));
  return calibration;
}

void write_calibration(const std::string& path, const Calibration& calibration) {
  try {
    write_whole(path, to_json(calibration).dump(1) + "\n", true);
  } catch (const Error& error) {
    // Drops the advice after "; ", which is for runs and their --output.
    const std::string what = error.what();
    throw Error(Failure::output, what.substr(0, what.find("; ")), "; change to a folder that you may write");
  }
}

Calibration read_calibration(const std::string& path) {
  std::string text;
  try {
    text = read_file(path, most_file_bytes);
  } catch (const Error& error) {
    throw Error(Failure::config, error.what(), "; write one with `convoy explain CONFIG --calibrate`");
  }
  const Json json = parsed_json(text);
  if (json.is_discarded())
    throw Error(Failure::config, path, ": is no JSON; write a new one with `convoy explain CONFIG --calibrate`");
  return calibration_from_json(json, path);
}

}  // namespace convoy
