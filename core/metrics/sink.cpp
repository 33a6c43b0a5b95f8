// --- Channel sink: sends evaluations to the `convoy` process. The trainer reports progress itself. ---

#include "core/metrics/sink.h"

#include <unistd.h>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "core/base/json.h"
#include "core/files/files.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

std::optional<int64_t> step_of(const Json& record) {
  if (!record.is_object()) return std::nullopt;
  const auto step = record.find("step");
  if (step == record.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

bool is_evaluation(const Json& record) {
  const auto kind = record.find("kind");
  return kind != record.end() && *kind == "evaluate";
}

class ChannelSink : public Sink {
 public:
  explicit ChannelSink(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  void write(const Record& record) override {
    if (record.kind != "train") channel_->post(protocol::metrics, to_json(record));
  }

 private:
  std::shared_ptr<Channel> channel_;
};

// --- metrics.jsonl: one JSON object a line, each written by one call, so that readers see whole lines ---

class JsonlSink : public Sink {
 public:
  JsonlSink(const std::string& path, int64_t last_step, bool evaluated) : path_(path), file_(open_to_append(path)) {
    drop_after(last_step, evaluated);
  }

  void write(const Record& record) override {
    write_all(file_.get(), to_json(record).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", path_);
  }

 private:
  // Truncates the file before the first record of a later step, or before an incomplete last line. Steps only grow, so
  // one truncation removes all later records, and readers never see a partial change.
  void drop_after(int64_t last_step, bool evaluated) {
    std::string text;  // read, and not yet parsed
    off_t complete = 0;
    char chunk[1 << 16];
    for (off_t at = 0;;) {
      const ssize_t bytes = pread(file_.get(), chunk, sizeof chunk, at);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0) fail("read");
      if (bytes == 0) break;
      at += bytes;
      text.append(chunk, static_cast<size_t>(bytes));
      size_t begin = 0;
      for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
        if (is_later(text.substr(begin, end - begin), last_step, evaluated)) return truncate(complete);
        complete += static_cast<off_t>(end + 1 - begin);
      }
      text.erase(0, begin);
    }
    if (!text.empty()) truncate(complete);
  }
  static bool is_later(const std::string& line, int64_t last_step, bool evaluated) {
    const Json record = parsed_json(line);
    const std::optional<int64_t> step = step_of(record);
    return step && (*step > last_step || (*step == last_step && !evaluated && is_evaluation(record)));
  }
  void truncate(off_t size) {
    if (ftruncate(file_.get(), size) != 0) fail("truncate");
  }
  [[noreturn]] void fail(const char* what) const {
    throw Error(Failure::io, "cannot ", what, " ", path_, ": ", error_text(errno));
  }

  std::string path_;
  Descriptor file_;
};

}  // namespace

std::unique_ptr<Sink> make_channel_sink(std::shared_ptr<Channel> channel) {
  return std::make_unique<ChannelSink>(std::move(channel));
}

std::unique_ptr<Sink> make_jsonl_sink(const std::string& path, int64_t last_step, bool evaluated) {
  return std::make_unique<JsonlSink>(path, last_step, evaluated);
}

size_t evaluations_in(const std::string& path, int64_t step) {
  std::ifstream file(path);
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    const Json record = parsed_json(line);
    if (step_of(record) == step && is_evaluation(record)) ++number;
  }
  return number;
}

Json to_json(const Record& record) {
  Json json{{"kind", record.kind},
            {"step", record.step},
            {"epoch", record.epoch},
            {"seconds", number_or_text(record.seconds)},
            {"samples_per_second", number_or_text(record.samples_per_second)}};
  if (record.remaining_seconds >= 0) json["remaining_seconds"] = number_or_text(record.remaining_seconds);
  if (record.learning_rate >= 0) json["learning_rate"] = number_or_text(record.learning_rate);
  if (!(record.gradient_norm < 0)) json["gradient_norm"] = number_or_text(record.gradient_norm);
  json["metrics"] = Json::object();
  for (const auto& [name, value] : record.metrics) json["metrics"][name] = number_or_text(value);
  for (const auto& [name, values] : record.members)
    for (double value : values) json["members"][name].push_back(number_or_text(value));
  if (record.kind == "evaluate") json["lower_is_better"] = record.lower_is_better;
  return json;
}

Record record_of(const Json& json) {
  const auto number = [&](const char* key) { return json.contains(key) ? read_number(json.at(key)) : -1; };
  Record record;
  record.kind = json.at("kind");
  record.step = json.at("step");
  record.epoch = json.at("epoch");
  record.seconds = number("seconds");
  record.samples_per_second = number("samples_per_second");
  record.remaining_seconds = number("remaining_seconds");
  record.learning_rate = number("learning_rate");
  record.gradient_norm = number("gradient_norm");
  for (const auto& [name, value] : json.at("metrics").items()) record.metrics[name] = read_number(value);
  if (json.contains("members"))
    for (const auto& [name, values] : json.at("members").items())
      for (const Json& value : values) record.members[name].push_back(read_number(value));
  record.lower_is_better = json.value("lower_is_better", record.lower_is_better);
  return record;
}

}  // namespace convoy
