#include <cmath>

#include "core/metrics/sink.h"

namespace convoy {
namespace {

// JSON has no words for these numbers, and null would hide which one it was.
Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

}  // namespace

Json to_json(const Record& record) {
  Json json{{"kind", record.kind},
            {"step", record.step},
            {"epoch", record.epoch},
            {"seconds", number(record.seconds)},
            {"samples_per_second", number(record.samples_per_second)}};
  if (record.remaining_seconds >= 0) json["remaining_seconds"] = number(record.remaining_seconds);
  if (record.learning_rate >= 0) json["learning_rate"] = number(record.learning_rate);
  if (!(record.gradient_norm < 0)) json["gradient_norm"] = number(record.gradient_norm);
  json["metrics"] = Json::object();
  for (const auto& [name, value] : record.metrics) json["metrics"][name] = number(value);
  for (const auto& [name, values] : record.members)
    for (double value : values) json["members"][name].push_back(number(value));
  return json;
}

}  // namespace convoy
