#include "launch/progress.h"

#include <cmath>
#include <cstdio>

#include "launch/bench_report.h"

namespace convoy {
namespace {

double number(const Json& record, const char* key, double fallback = -1) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>() : fallback;
}

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// "loss 0.2213, hr@10 0.6120"; values that are no numbers travel as text.
std::string metrics_text(const Json& metrics) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : metrics.items())
    parts.push_back(name + " " +
                    (value.is_number()   ? formatted("%.4g", value.get<double>())
                     : value.is_string() ? value.get<std::string>()
                                         : value.dump()));
  return join(parts, ", ");
}

std::string of(const Json& record, const char* done, const char* all) {
  const double total = number(record, all, 0);
  return formatted("%.0f", number(record, done, 0)) + (total > 0 ? formatted("/%.0f", total) : "");
}

}  // namespace

std::string short_number(double value) {
  const double size = std::fabs(value);
  if (size >= 1e6) return formatted("%.2fM", value / 1e6);
  if (size >= 1e3) return formatted("%.1fk", value / 1e3);
  return formatted("%.1f", value);
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  char text[64];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(text, sizeof text, "%ld:%02ld", whole / 60, whole % 60);
  return text;
}

std::string progress_line(const Json& record) {
  if (record.contains("text")) return record["text"].get<std::string>();
  std::string line = "epoch " + of(record, "epoch", "epochs") + ", step " + of(record, "step", "steps");
  if (number(record, "samples_per_second") > 0)
    line += ", " + short_number(number(record, "samples_per_second")) + "/s";
  const auto metrics = record.find("metrics");
  if (metrics != record.end() && metrics->is_object() && !metrics->empty()) line += ", " + metrics_text(*metrics);
  if (record.contains("loss")) line += ", loss " + formatted("%.4g", number(record, "loss"));
  if (number(record, "remaining_seconds") >= 0)
    line += ", " + clock_text(number(record, "remaining_seconds")) + " left";
  return line;
}

std::string metrics_line(const Json& record) {
  const std::string metrics = metrics_text(record.value("metrics", Json::object()));
  return str("epoch ", formatted("%.0f", number(record, "epoch", 0)), ", step ",
             formatted("%.0f", number(record, "step", 0)), ": ", metrics);
}

std::string result_text(const Json& summary, const std::string& folder) {
  if (summary.contains("bench")) return bench_verdict(summary["bench"]);
  std::string text =
      number(summary, "steps_here") == 0
          ? str("done: nothing was left to train after ", formatted("%.0f", number(summary, "steps", 0)), " steps\n")
          : str("done: ", formatted("%.0f", number(summary, "steps", 0)), " steps in ",
                clock_text(number(summary, "train_seconds", 0)), ", ",
                short_number(number(summary, "samples_per_second", 0)), " samples/s, ", summary.value("backend", ""),
                " with ", formatted("%.0f", number(summary, "world_size", 1)), " rank",
                number(summary, "world_size", 1) == 1 ? "" : "s", "\n");
  const auto metrics = summary.find("metrics");
  if (metrics != summary.end() && metrics->is_object())
    for (const auto& [name, value] : metrics->items()) {
      if (!value.is_object()) continue;
      text += str("  ", name, ": last ", formatted("%.4g", number(value, "last", std::nan(""))), ", best ",
                  formatted("%.4g", number(value, "best", std::nan(""))), "\n");
    }
  return text + "  " + folder + "/summary.json\n";
}

}  // namespace convoy
