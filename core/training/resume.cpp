#include "core/training/resume.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "core/base/error.h"
#include "core/config/run_config.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/optim/optimizer.h"

namespace convoy {
namespace {

constexpr int64_t most = std::numeric_limits<int64_t>::max();

// Length of the run that saved the checkpoint. Older versions did not save all values; they are computed.
TrainingLength saved_length(const Json& trainer, const std::optional<RunConfig>& config, const TrainingLength& now,
                            int64_t epoch_rows) {
  TrainingLength saved;
  saved.global_rows = trainer.value("global_rows", now.global_rows);
  saved.steps_per_epoch = trainer.value("steps_per_epoch", (epoch_rows - 1) / saved.global_rows + 1);
  const int64_t epochs = config && config->train.epochs > 0 ? config->train.epochs : most;
  saved.epoch_steps = saved.steps_per_epoch > most / epochs ? most : epochs * saved.steps_per_epoch;
  const int64_t max_steps = config && config->train.max_steps > 0 ? config->train.max_steps : most;
  saved.total_steps = trainer.value("total_steps", std::min(saved.epoch_steps, max_steps));
  return saved;
}

// Step of this run at the same row of the same epoch as `step` of the previous run. Adds a note for the log.
int64_t same_position(int64_t step, const TrainingLength& saved, const TrainingLength& now, int64_t epoch_rows,
                      const CheckpointInfo& info, std::vector<std::string>& notes) {
  const int64_t epoch = step / saved.steps_per_epoch, within = step % saved.steps_per_epoch;
  const int64_t row = within > epoch_rows / saved.global_rows ? epoch_rows : within * saved.global_rows;
  if (epoch > (most >> 1) / now.steps_per_epoch)
    throw Error(Failure::corrupt_data, info.path, "/manifest.json: trainer.step: ", step,
                " is beyond every step that this run could count");
  const int64_t steps = row < epoch_rows ? row / now.global_rows : now.steps_per_epoch;
  const int64_t again = row - std::min(steps * now.global_rows, row);
  const int64_t result = epoch * now.steps_per_epoch + steps;
  const bool same_rows = now.global_rows == saved.global_rows;
  std::string note =
      str(same_rows ? "" : str("batches of ", counted(now.global_rows, "row"), " instead of ", saved.global_rows, ", "),
          counted(now.steps_per_epoch, "step"), " an epoch instead of ", saved.steps_per_epoch, ": step ", step,
          " of the checkpoint is step ", result, " of ", now.total_steps, " here (epoch ", epoch + 1, ", row ",
          row - again, " of ", epoch_rows, "), and the learning rate's schedule continues there");
  if (again > 0) note += str("; ", again, again == 1 ? " row is" : " rows are", " read a second time in this epoch");
  notes.push_back(note);
  return result;
}

// Steps per update. With parameter averaging each step is an update, and `strategy.sync.every` counts updates.
int64_t steps_per_update(const RunConfig& config) {
  const Json& strategy = config.strategy.options.json();
  const auto sync = strategy.find("sync");
  if (sync == strategy.end() || !sync->is_object() || sync->value("what", "gradients") != "gradients") return 1;
  const auto every = sync->find("every");
  return every != sync->end() && every->is_number_integer() ? std::max<int64_t>(every->get<int64_t>(), 1) : 1;
}

double rate_after(const RunConfig& config, const TrainingLength& length, int64_t steps) {
  const UpdateCount updates{length.steps_per_epoch, steps_per_update(config)};
  const Schedule schedule(config.optimizer, updates.of(length.total_steps), updates.of(length.steps_per_epoch));
  return schedule.learning_rate(updates.of(steps));
}

// Warning about a jump of the learning rate; "" if it does not jump. Throws for a configuration that this version
// cannot read.
std::string rate_note(const RunConfig& before, const TrainingLength& saved, int64_t saved_step, const RunConfig& config,
                      const TrainingLength& length, int64_t step) {
  if (step >= length.total_steps) return "";
  const double was = rate_after(before, saved, saved_step), is = rate_after(config, length, step);
  if (std::abs(was - is) <= 1e-9 * std::max(std::abs(was), std::abs(is))) return "";
  std::string note = str("the learning rate goes from ", was, " to ", is, " at step ", step);
  if (before.optimizer.options.json() != config.optimizer.options.json()) return note;
  const std::string name = config.optimizer.options.section("schedule").text("name");
  if (name != "linear" && name != "cosine") return note;
  note += str(": the schedule ", name, " depends on the length of the training, which was ", saved.total_steps,
              " steps and is ", length.total_steps, ". To avoid it, keep the length (train.epochs, train.max_steps)");
  if (was <= 0) return note;
  return str(note, "; or continue at the old rate with --set train.resume=PATH ",
             "--set 'optimizer.schedule={name: constant}' --set optimizer.lr=", was);
}

std::optional<RunConfig> readable(const Json& config) {
  try {
    return RunConfig::from_resolved(config);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool changes_evaluation(const std::string& key) {
  for (const char* same : {"data.path", "data.item_features.path", "data.user_features.path", "data.prefetch",
                           "data.changed", "model.dropout", "model.attention_dropout"})
    if (key == same) return false;
  return key == "seed" || begins_with(key, "data.") || begins_with(key, "loss") || begins_with(key, "model.") ||
         begins_with(key, "strategy.samples");
}

// Null if there is no such section or key.
Json section_of(const Json& parent, const char* key) { return parent.is_object() ? parent.value(key, Json()) : Json(); }

using OptionValues = std::map<std::string, Json>;  // by key path

// Options that choose the training rows, and with folds the held-out rows, of an ensemble or of a single model.
// `member`: the member to which the state belongs; -1: the state of all members.
OptionValues fold_options(const Json& config, int member) {
  Json samples = section_of(section_of(config, "data"), "samples");
  const Json of_members = section_of(section_of(config, "strategy"), "samples");
  if (!of_members.is_null() && member < 0) return {{"strategy.samples", of_members}};
  if (of_members.is_string()) samples = {{"how", of_members}};
  if (const Json folds = section_of(of_members, "folds"); folds.is_number_integer() && folds > 0)
    samples = {{"how", "folds"}, {"folds", folds}, {"fold", member % folds.get<int64_t>()}};
  const Json how = section_of(samples, "how");
  // A single model may become a member.
  OptionValues options{{"data.samples.how", how.is_string() ? how : Json("all")}};
  options["strategy.samples"] = options["data.samples.how"];
  if (how == "subset") options["strategy.samples"] = {{"subset", section_of(samples, "fraction")}};
  if (how != "folds") return options;
  options["strategy.samples"] = {{"folds", section_of(samples, "folds")}};
  for (const char* key : {"folds", "fold"}) options[str("data.samples.", key)] = section_of(samples, key);
  return options;
}

bool holds_out_fold(const OptionValues& options) {
  const auto how = options.find("data.samples.how");
  return how != options.end()
             ? how->second == "folds"
             : options.at("strategy.samples").is_object() && options.at("strategy.samples").contains("folds");
}

std::string set_option(const std::string& key, const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  return " --set " + shell_word(key + "=" + text);
}

// Warning about evaluation rows that the previous run trained on; "" if there are none.
std::string split_note(const CheckpointInfo& info, const Json& is, const DataContents& data) {
  const Json &was = info.config, data_was = section_of(was, "data"), data_is = section_of(is, "data");
  if (!data_was.is_object() || !data_is.is_object()) return "";
  if (section_of(data_was, "name") != section_of(data_is, "name")) return "";
  const EvaluationSplit before = evaluation_split(data_was, section_of(was, "seed"));
  const EvaluationSplit now = evaluation_split(data_is, section_of(is, "seed"));
  const OptionValues folds = fold_options(is, -1);
  const bool holds_out_folds = holds_out_fold(folds);
  std::vector<std::string> changes;
  std::string sets;
  const auto compare = [&](const OptionValues& from, const OptionValues& to) {
    for (const auto& [key, value] : to) {
      const auto old = from.find(key);
      if (old == from.end() || old->second.is_null() || old->second == value) continue;
      // With a smaller fraction, all evaluation rows were held out before. This does not help folds: they divide the
      // training rows, which change with the fraction.
      if (key == "data.evaluate.fraction" && !holds_out_folds && value.is_number() && old->second.is_number() &&
          value.get<double>() < old->second.get<double>())
        continue;
      changes.push_back(to_string(Difference{key, old->second, value}));
      sets += set_option(key, old->second);
    }
  };
  if (now.holds_out || holds_out_folds) compare(before.options, now.options);
  if (holds_out_folds) compare(fold_options(was, info.member), folds);
  const bool compared = !info.fingerprint.empty() && !data.fingerprint.empty();
  const bool other_data = compared && ((now.holds_out && now.drawn) || holds_out_folds) &&
                          !same_fingerprint(info.fingerprint, data.fingerprint);
  if (other_data)
    changes.push_back(data.rows != info.data_rows ? str("data: ", info.data_rows, " rows -> ", data.rows, " rows")
                                                  : "data: its contents differ");
  if (changes.empty()) return "";
  std::string note = str(join(changes, ", "),
                         ": other rows are held out for evaluation now; the model may have trained on some of them, "
                         "and their metrics look better than they are. To hold out the same rows as before, ");
  if (!sets.empty()) note += "add" + sets;
  if (other_data) note += str(sets.empty() ? "" : " and ", "give the data of the checkpoint");
  if (other_data && now.options.count("data.evaluate.fraction") != 0 && !holds_out_folds)
    note += "; or evaluate on new rows in a separate file, with --set 'data.evaluate={path: FILE}'";
  return note;
}

}  // namespace

Resumed resumed(const CheckpointInfo& info, const RunConfig& config, const TrainingLength& length, int64_t epoch_rows,
                const DataContents& data) {
  const bool automatic = config.train.resume == "auto";
  std::vector<std::string> ignored{"name", "train.resume"};
  // An automatic resume may use other cores each time.
  if (automatic) ignored.insert(ignored.end(), {"launch", "log", "profile"});
  const std::vector<Difference> all = differences(info.config, config.resolved, ignored);
  if (info.trainer.empty())
    throw Error(Failure::corrupt_data, info.path,
                "/manifest.json: trainer: is empty, as in states that convoy verify "
                "saves to compare them; nothing can resume from one");
  Resumed resumed;
  resumed.step = info.trainer.at("step").get<int64_t>();
  resumed.notes.push_back(str("resumes from ", info.path, " after step ", resumed.step,
                              all.empty() ? "" : str(", with changed settings (", all.size(), "):")));
  for (const Difference& difference : all) {
    resumed.notes.push_back("  " + to_string(difference));
    resumed.same_evaluation = resumed.same_evaluation && !changes_evaluation(difference.key);
    resumed.same_watched = resumed.same_watched && difference.key != "strategy.early_stop.metric";
  }
  const std::optional<RunConfig> before = readable(info.config);
  const TrainingLength saved = saved_length(info.trainer, before, length, epoch_rows);
  const int64_t saved_step = resumed.step;
  const bool other_steps = saved.global_rows != length.global_rows || saved.steps_per_epoch != length.steps_per_epoch;
  if (other_steps) resumed.step = same_position(saved_step, saved, length, epoch_rows, info, resumed.notes);
  try {
    resumed.split_note = split_note(info, config.resolved, data);
    if (before) resumed.rate_note = rate_note(*before, saved, saved_step, config, length, resumed.step);
  } catch (const std::exception&) {  // an older or damaged configuration cannot be compared
  }
  if (!resumed.same_evaluation)
    resumed.notes.push_back("evaluations may give other metrics than before: best values start again");
  return resumed;
}

}  // namespace convoy
