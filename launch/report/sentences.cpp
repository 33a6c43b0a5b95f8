#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "core/base/text.h"
#include "core/rank_state/summary.h"
#include "launch/job/console.h"
#include "launch/report/report.h"

namespace convoy {
namespace {

constexpr double missing_number = std::numeric_limits<double>::quiet_NaN();
constexpr size_t most_named_runs = 3;

std::string plain_number(double value) { return formatted("%.4g", value); }

// "12,500", "1.25M"; rates "54.9k"
std::string count_text(double count) {
  if (count != std::floor(count) || count >= 1e6) return count < 1000 ? plain_number(count) : short_number(count);
  std::string digits = std::to_string(int64_t(count));
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string counted(double count, const char* one, const char* several) {
  return str(count_text(count), " ", count == 1 ? one : several);
}

std::string duration_text(double seconds) {
  if (seconds < 60) return formatted(seconds < 10 ? "%.2g s" : "%.0f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return str(whole / 60, " min ", whole % 60, " s");
  if (whole < 2 * 86400) return str(whole / 3600, " h ", whole % 3600 / 60, " min");
  return str(whole / 86400, " days ", whole % 86400 / 3600, " h");
}

std::string enumerated(const std::vector<std::string>& parts) {
  if (parts.size() < 2) return parts.empty() ? "" : parts.front();
  return join({parts.begin(), parts.end() - 1}, ", ") + " and " + parts.back();
}

// A message as the rest of a sentence, without its end.
std::string clause(std::string message) {
  message = shortened(message.substr(0, message.find('\n')));
  while (!message.empty() && (message.back() == '.' || message.back() == ' ')) message.pop_back();
  return message;
}

// "mlp on fashion_mnist"
std::string subject_of(const Json& run) {
  const std::string model = text_in(run, "model"), data = text_in(run, "data");
  if (model.empty()) return "a program";
  return data.empty() ? model : model + " on " + data;
}

// `begins_with_name`: the text begins with the name of a run, so its first letter stays.
std::string sentence_of(const std::vector<std::string>& parts, bool begins_with_name = false) {
  std::string text = join(parts, "; ");
  if (!begins_with_name) text.front() = char(std::toupper(static_cast<unsigned char>(text.front())));
  return text.back() == '.' ? text : text + ".";
}

bool has_failed(const Json& run) {
  const std::string status = text_in(run, "status");
  return status == "failed" || status == "ended";
}

// A value of the run's main metric: `which` is best, last or best_step.
double main_value(const Json& run, const char* which) {
  const Json& metrics = run["metrics"];
  const auto found = metrics.find(text_in(run, "main_metric"));
  return found == metrics.end() ? missing_number : number_in(*found, which, missing_number);
}

// First and last value of a curve of the page.
std::pair<double, double> ends_of(const Json& curves, const char* name) {
  std::pair<double, double> ends{missing_number, missing_number};
  const auto found = curves.find(name);
  if (found == curves.end()) return ends;
  for (const Json& value : (*found)["y"]) {
    if (!value.is_number()) continue;
    if (std::isnan(ends.first)) ends.first = value.get<double>();
    ends.second = value.get<double>();
  }
  return ends;
}

double steps_of(const Json& run) { return number_in(run, "steps", number_in(run, "step", -1)); }

// --- One run ---

std::string work_of_run(const Json& run) {
  static const std::map<std::string, const char*> verbs{{"done", "trained"},
                                                        {"running", "is training"},
                                                        {"stopped", "was stopped while it trained"},
                                                        {"failed", "failed while it trained"},
                                                        {"ended", "ended without a result while it trained"}};
  const auto verb = verbs.find(text_in(run, "status"));
  std::string text =
      str(text_in(run, "name"), " ", verb == verbs.end() ? "trained" : verb->second, " ", subject_of(run));
  if (const double parameters = number_in(run, "parameters", 0); parameters > 0)
    text += str(" (", counted(parameters, "parameter", "parameters"), ")");
  const double ranks = number_in(run, "world_size", 1);
  text += ranks > 1 ? str(" by ", text_in(run, "strategy"), " on ", ranks, " ranks") : std::string(" on one rank");
  std::vector<std::string> amounts;
  if (const double epochs = number_in(run, "epochs", 0); epochs >= 1)
    amounts.push_back(counted(epochs, "epoch", "epochs"));
  if (const double steps = steps_of(run); steps >= 0) {
    const double total = run.contains("progress") ? number_in(run["progress"], "steps", -1) : -1;
    amounts.push_back(counted(steps, "step", "steps") + (total > 0 ? " of " + count_text(total) : ""));
  }
  if (const double samples = number_in(run, "samples", 0); samples > 0)
    amounts.push_back(counted(samples, "sample", "samples"));
  if (!amounts.empty()) text += ": " + enumerated(amounts);
  const double trained = number_in(run, "train_seconds", ends_of(run, "seconds").second);
  if (trained > 0) text += " in " + duration_text(trained);
  return text + ".";
}

std::string result_of_run(const Json& run) {
  std::vector<std::string> parts;
  if (const double best = main_value(run, "best"); std::isfinite(best)) {
    const double last = main_value(run, "last"), step = main_value(run, "best_step");
    std::string text = str("Its best ", text_in(run, "main_metric"), " on held-out rows is ", plain_number(best));
    if (std::isfinite(step)) text += ", after step " + count_text(step);
    if (std::isfinite(last) && plain_number(last) != plain_number(best))
      text += str(", and the last is ", plain_number(last));
    parts.push_back(text);
  }
  const auto [first, last] = ends_of(run["training"], "loss");
  if (std::isfinite(first) && std::isfinite(last) && first != last)
    parts.push_back(str(parts.empty() ? "The" : "the", " training loss ", last < first ? "fell" : "rose", " from ",
                        plain_number(first), " to ", plain_number(last)));
  if (parts.empty()) return "It has recorded no metric yet.";
  return join(parts, "; ") + ".";
}

// How often the run started again after a failure. A stopped run, or a trial between rungs, continues without one.
size_t restarts_of(const Json& run) {
  const Json attempts = run.value("attempts", Json::array());
  return size_t(std::count_if(attempts.begin(), attempts.end(), [](const Json& attempt) {
    return attempt.is_object() && text_in(attempt.value("failure", Json::object()), "cause") != "stopped";
  }));
}

std::string failure_of_run(const Json& run) {
  if (text_in(run, "status") == "ended") return "Its convoy is gone, so it has no result; the same command resumes it.";
  const Json failure = run.value("failure", Json::object());
  const double step = number_in(failure, "step", -1), rank = number_in(failure, "rank", -1);
  std::string text = "It failed";
  if (rank >= 0) text += str(" on rank ", rank);
  if (step >= 0) text += " at step " + count_text(step);
  const std::string message = clause(text_in(failure, "message", text_in(failure, "cause", "no cause is recorded")));
  return text + ": " + message + ".";
}

// "it restarted once after a failure, continued without a lost rank and gained a new rank"; launch.min_ranks changes
// the ranks.
std::string interruptions_text(const Json& run) {
  std::vector<std::string> parts;
  if (const size_t restarts = restarts_of(run); restarts > 0)
    parts.push_back(str("restarted ", restarts == 1 ? "once after a failure" : str(restarts, " times after failures")));
  size_t left = 0, joined = 0;
  for (const Json& change : run.value("membership", Json::array())) {
    if (!change.is_object()) continue;
    left += change.value("left", Json::array()).size();
    joined += change.value("joined", Json::array()).size();
  }
  if (left > 0) parts.push_back(str("continued without ", left == 1 ? "a lost rank" : str(left, " lost ranks")));
  if (joined > 0) parts.push_back(str("gained ", joined == 1 ? "a new rank" : str(joined, " new ranks")));
  return parts.empty() ? "" : "it " + enumerated(parts);
}

std::string time_of_run(const Json& run) {
  std::vector<std::string> parts;
  double rate = number_in(run, "samples_per_second", 0);
  if (run.contains("progress")) rate = number_in(run["progress"], "samples_per_second", rate);
  if (rate > 0) parts.push_back(str("it trained ", counted(rate, "sample", "samples"), " per second"));
  if (const std::string text = interruptions_text(run); !text.empty()) parts.push_back(text);
  const double start = number_in(run, "startup_seconds", 0), test = number_in(run, "evaluate_seconds", 0);
  if (start > 0 && test > 0)
    parts.push_back(str("the start took ", duration_text(start), " and evaluations ", duration_text(test)));
  if (run.contains("progress") && number_in(run["progress"], "remaining_seconds", -1) >= 0)
    parts.push_back(str(duration_text(number_in(run["progress"], "remaining_seconds", 0)), " are left"));
  if (parts.empty()) return "It has no measured times yet.";
  return sentence_of(parts);
}

// --- Several runs ---

// The status of each run, and of each pipeline that has no run yet.
std::vector<std::string> statuses_in(const Json& data) {
  std::vector<std::string> statuses;
  for (const Json& run : data["runs"]) statuses.push_back(text_in(run, "status"));
  for (const Json& farm : data["farms"])
    for (const Json& row : farm["rows"])
      if (!row.contains("run")) statuses.push_back(text_in(row, "status"));
  return statuses;
}

std::string statuses_of(const Json& data) {
  const std::vector<std::string> all = statuses_in(data);
  struct Words {
    const char *status, *one, *several;
  };
  static const Words words[] = {
      {"done", " is done", " are done"},      {"running", " is running", " are running"},
      {"waiting", " waits", " wait"},         {"paused", " waits for its rung to end", " wait for their rung to end"},
      {"lost", " lost early", " lost early"}, {"stopped", " was stopped", " were stopped"},
      {"failed", " failed", " failed"},       {"ended", " ended without a result", " ended without a result"}};
  std::vector<std::string> parts;
  for (const Words& word : words) {
    const auto count = size_t(std::count(all.begin(), all.end(), word.status));
    if (count == all.size() && count > 1) return str(count == 2 ? "both" : str("all ", count), word.several);
    if (count > 0) parts.push_back(str(count, count == 1 ? word.one : word.several));
  }
  return enumerated(parts);
}

// "(mlp on synthetic)" if all runs of the farm share it.
std::string farm_subject(const Json& runs, size_t farm) {
  std::string subject;
  for (const Json& run : runs) {
    if (number_in(run, "farm", -1) != double(farm)) continue;
    if (!subject.empty() && subject != subject_of(run)) return "";
    subject = subject_of(run);
  }
  return subject.empty() ? "" : str(" of ", subject);
}

// "8 pipelines of mlp on synthetic in 13 s"
std::string work_of_farm(const Json& data, size_t index) {
  const Json& farm = data["farms"][index];
  std::string text =
      counted(number_in(farm, "pipelines", 0), "pipeline", "pipelines") + farm_subject(data["runs"], index);
  if (const double seconds = number_in(farm, "seconds", 0); seconds > 0) text += " in " + duration_text(seconds);
  return text;
}

// Runs outside of farms: "ncf-a (ncf on clicks) and ncf-b (ncf on clicks)", or "8 runs of mlp on digits" if they share
// that; "" if there is none.
std::string single_runs(const Json& runs) {
  std::vector<std::string> names;
  std::set<std::string> subjects;
  for (const Json& run : runs) {
    if (run.contains("farm")) continue;
    names.push_back(str(text_in(run, "name"), " (", subject_of(run), ")"));
    subjects.insert(subject_of(run));
  }
  if (names.size() <= most_named_runs) return enumerated(names);
  if (subjects.size() == 1) return str(names.size(), " runs of ", *subjects.begin());
  return str(names[0], ", ", names[1], " and ", names.size() - 2, " more runs");
}

std::string work_of_all(const Json& data) {
  std::vector<std::string> names;
  if (const std::string single = single_runs(data["runs"]); !single.empty()) names.push_back(single);
  for (size_t i = 0; i < data["farms"].size(); ++i)
    names.push_back(str("the farm ", text_in(data["farms"][i], "name"), " with ", work_of_farm(data, i)));
  const std::string statuses = statuses_of(data);
  const bool equal = begins_with(statuses, "all ") || begins_with(statuses, "both ");
  return str("This page shows ", names.size() == 2 ? names[0] + ", and " + names[1] : enumerated(names),
             statuses.empty() ? ""
             : equal          ? "; "
                              : "; of the runs, ",
             statuses, ".");
}

// Runs that may be compared: those of a farm, or those with the same data and metric.
struct ComparableRuns {
  std::string scope;   // " of the farm grid", " on digits"
  std::string metric;  // metric of the farm, or of the first run; runs with another one are left out
  bool lower_is_better = false;
  std::vector<std::pair<std::string, double>> runs;  // name and value, best first
};

void sort_best_first(ComparableRuns& group) {
  std::stable_sort(group.runs.begin(), group.runs.end(), [lower = group.lower_is_better](const auto& a, const auto& b) {
    return lower ? a.second < b.second : a.second > b.second;
  });
}

// The leaderboard of a farm that ranks by a metric: strategy.metric may differ from the main metric of its runs.
ComparableRuns ranked_by(const Json& farm) {
  ComparableRuns group;
  group.scope = " of the farm " + text_in(farm, "name");
  group.metric = text_in(farm, "metric");
  group.lower_is_better = text_in(farm, "direction") == "minimize";
  for (const Json& row : farm["rows"])
    if (const double value = number_in(row, "value", missing_number); std::isfinite(value))
      group.runs.emplace_back(text_in(row, "pipeline"), value);
  sort_best_first(group);  // a leaderboard is sorted by status first
  return group;
}

std::vector<ComparableRuns> comparable_runs(const Json& data) {
  std::map<std::string, ComparableRuns> groups;
  std::vector<ComparableRuns> sorted;
  std::set<double> ranked;  // farms whose leaderboard is in `sorted`
  for (size_t farm = 0; farm < data["farms"].size(); ++farm) {
    ComparableRuns group = ranked_by(data["farms"][farm]);
    if (group.metric.empty() || group.runs.empty()) continue;
    ranked.insert(double(farm));
    sorted.push_back(std::move(group));
  }
  for (const Json& run : data["runs"]) {
    if (!std::isfinite(main_value(run, "best"))) continue;
    const std::string metric = text_in(run, "main_metric");
    const double farm = number_in(run, "farm", -1);
    if (ranked.count(farm) != 0) continue;
    ComparableRuns& group =
        groups[farm >= 0 ? str(farm) : str("data ", text_in(run, "data"), " ", text_in(run, "rows_of"), " ", metric)];
    if (group.runs.empty()) {
      group.metric = metric;
      group.scope = farm >= 0 ? " of the farm " + text_in(data["farms"][size_t(farm)], "name")
                              : (text_in(run, "data").empty() ? "" : " on " + text_in(run, "data"));
      group.lower_is_better = is_loss_name(metric) || run["metrics"][metric].value("lower_is_better", false);
    }
    if (group.metric == metric) group.runs.emplace_back(text_in(run, "name"), main_value(run, "best"));
  }
  for (auto& [key, group] : groups) {
    sort_best_first(group);
    sorted.push_back(std::move(group));
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.runs.size() > b.runs.size(); });
  return sorted;
}

std::string results_of_all(const Json& data) {
  std::vector<std::string> parts;
  for (const auto& [scope, metric, lower, runs] : comparable_runs(data)) {
    if (parts.size() == 4) break;
    const std::string best = plain_number(runs.front().second), worst = plain_number(runs.back().second);
    if (runs.size() > 1 && best == worst)
      parts.push_back(
          str(runs.size() == 2 ? "both" : "all", " runs", scope, " have the same best ", metric, ", ", best));
    else if (runs.size() == 1)
      parts.push_back(str(runs.front().first, " reached ", metric, " ", best));
    else
      parts.push_back(str(runs.front().first, " has the best ", metric, " of the ", runs.size(), " runs", scope, ", ",
                          best, " (the ", runs.size() == 2 ? "other" : "worst", ": ", worst, ")"));
  }
  if (parts.empty()) return "No run has recorded a metric on held-out rows yet.";
  std::string text = join(parts, "; ") + ".";
  for (const char* word : {"both", "all"})
    if (begins_with(text, word)) text.front() = static_cast<char>(std::toupper(text.front()));
  return text;
}

std::string failures_of_all(const Json& runs) {
  std::vector<std::string> texts, ended;
  size_t failed = 0;
  for (const Json& run : runs) {
    if (text_in(run, "status") == "ended") ended.push_back(text_in(run, "name"));
    if (text_in(run, "status") != "failed" || ++failed > 2) continue;
    const Json failure = run.value("failure", Json::object());
    const double step = number_in(failure, "step", -1);
    texts.push_back(str(text_in(run, "name"), step >= 0 ? " at step " + count_text(step) : "", " (",
                        clause(text_in(failure, "message", text_in(failure, "cause", "no cause is recorded"))), ")"));
  }
  if (failed > 2) texts.push_back(str(failed - 2, " more"));
  std::vector<std::string> parts;
  if (failed > 0) parts.push_back(str(counted(failed, "run has", "runs have"), " failed: ", enumerated(texts)));
  if (!ended.empty())
    parts.push_back(str(ended.size() > most_named_runs ? str(ended.size(), " runs") : enumerated(ended),
                        " ended without a result: ", ended.size() == 1 ? "its" : "their",
                        " convoy is gone, and the same command resumes ", ended.size() == 1 ? "it" : "them"));
  return parts.empty() ? "" : join(parts, "; ") + ".";
}

double training_time(const Json& run) { return number_in(run, "train_seconds", ends_of(run, "seconds").second); }

// "a and b continued after a restart"; "" if no run did.
std::string restarted_runs(const Json& runs) {
  std::vector<std::string> names;
  for (const Json& run : runs)
    if (restarts_of(run) > 0) names.push_back(text_in(run, "name"));
  if (names.empty()) return "";
  return str(names.size() > most_named_runs ? str(names.size(), " runs") : enumerated(names),
             " continued after a restart");
}

std::string times_of_all(const Json& runs) {
  const Json *longest = nullptr, *shortest = nullptr;
  for (const Json& run : runs) {
    if (!(training_time(run) > 0)) continue;
    if (longest == nullptr || training_time(run) > training_time(*longest)) longest = &run;
    if (shortest == nullptr || training_time(run) < training_time(*shortest)) shortest = &run;
  }
  std::string text = "No run failed";
  if (const std::string restarted = restarted_runs(runs); !restarted.empty()) text += "; " + restarted;
  const auto speed = [](const Json& run) {
    const double rate = number_in(run, "samples_per_second", 0);
    return duration_text(training_time(run)) +
           (rate > 0 ? str(" at ", counted(rate, "sample", "samples"), " per second") : "");
  };
  if (longest != nullptr) text += str("; ", text_in(*longest, "name"), " trained longest, ", speed(*longest));
  if (longest != shortest) text += str(", and ", text_in(*shortest, "name"), " shortest, ", speed(*shortest));
  return text + ".";
}

std::string advice_in(const Json& runs) {
  for (const Json& run : runs) {
    const std::string advice = text_in(run.value("breakdown", Json::object()), "advice");
    if (!advice.empty())
      return (runs.size() > 1 ? text_in(run, "name") + ": " : "") + advice + (advice.back() == '.' ? "" : ".");
  }
  return "";
}

std::string advice_after(const std::string& restarts, const std::string& advice, bool begins_with_name) {
  return restarts.empty() ? advice : sentence_of({restarts, advice}, begins_with_name);
}

}  // namespace

std::vector<std::string> report_sentences(const Json& data) {
  const Json& runs = data["runs"];
  if (runs.size() == 1 && data["farms"].empty()) {
    const Json& run = runs.front();
    const std::string advice = advice_in(runs);
    return {work_of_run(run), result_of_run(run),
            has_failed(run)   ? failure_of_run(run)
            : !advice.empty() ? advice_after(interruptions_text(run), advice, false)
                              : time_of_run(run)};
  }
  const std::string failures = failures_of_all(runs), advice = advice_in(runs);
  const bool one_farm = data["farms"].size() == 1 &&
                        std::all_of(runs.begin(), runs.end(), [](const Json& run) { return run.contains("farm"); });
  std::string work = work_of_all(data);
  if (one_farm) {
    const std::string statuses = statuses_of(data);
    const bool running = text_in(data["farms"][0], "status") == "running";
    work = str("The farm ", text_in(data["farms"][0], "name"), running ? " is running " : " ran ",
               work_of_farm(data, 0), statuses.empty() ? "" : "; ", statuses, ".");
  }
  return {work, results_of_all(data),
          !failures.empty() ? failures
          : !advice.empty() ? advice_after(restarted_runs(runs), advice, true)
                            : times_of_all(runs)};
}

}  // namespace convoy
