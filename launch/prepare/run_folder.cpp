#include "launch/prepare/run_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/config/node.h"
#include "core/config/run_config.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/rank_state/state_file.h"
#include "core/rank_state/summary.h"
#include "launch/prepare/used_run.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

std::string numbered(const RunFolderRequest& request, int number) {
  return str(request.root, "/", request.name, number > 1 ? str("-", number) : "");
}

[[noreturn]] void refuse(const std::string& folder, const std::string& reason) {
  throw Error(Failure::output, folder, ": ", reason);
}

// Returns the largest step that a rank of a killed run has reached; -1 without state files.
int64_t last_step(const std::string& folder) {
  int64_t step = -1;
  for (int rank = 0;; ++rank) {
    const auto position = read_state_file(str(folder, "/logs/rank", rank, ".state"));
    if (!position) return step;
    step = std::max(step, position->step);
  }
}

Json end_json(const Abort& cause) { return {{"exit_code", exit_code_of(cause)}, {"failure", failure_json(cause)}}; }

// Repairs the folder under its lock: no supervisor runs here, so the status `running` is stale.
void repair(const std::string& folder, Json& summary, std::vector<std::string>& notes) {
  const std::string note_file = folder + "/failure.json";
  if (summary.value("status", "") == "running") {
    Json left = parsed_json(read_file_if_any(note_file));
    if (!left.is_object() || !left["failure"].is_object())
      left = end_json({Failure::internal, -1, last_step(folder), SIGKILL, "",
                       "convoy itself was killed before it could write the summary"});
    summary["status"] = left["exit_code"] == exit_code::stopped ? "stopped" : "failed";
    summary["exit_code"] = left["exit_code"];
    summary["failure"] = left["failure"];
    write_summary(folder, summary);
    notes.push_back(
        str(folder, ": the previous run ended without a summary: ", summary["failure"].value("message", "")));
  }
  unlink(note_file.c_str());
  remove_leftover_checkpoints(folder);
  // Leftovers of a killed supervisor.
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    for (const char* ours : {".rendezvous-", ".summary.json.", ".progress.json."})
      if (name.rfind(ours, 0) == 0) fs::remove(entry.path(), none);
  }
}

// Searches by name, like the ranks: `latest` may be missing after a kill.
bool has_checkpoint(const std::string& folder) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder + "/checkpoints", none))
    if (entry.path().filename().string().rfind("step-", 0) == 0) return true;
  return false;
}

// Takes the configuration from a manifest if the summary is missing or damaged.
void rebuild(const std::string& folder, Json& summary, std::vector<std::string>& notes) {
  if (summary.contains("config") && summary["config"].is_object()) return;
  StoredConfig stored = newest_config(folder);
  if (stored.manifest.empty()) return;  // ranks report what is wrong with the checkpoints
  const std::string file = folder + "/summary.json";
  std::error_code none;
  notes.push_back(str("warning: ", file, fs::exists(file, none) ? " is empty or damaged" : " is missing",
                      "; the configuration is taken from ", stored.manifest));
  summary["config"] = std::move(stored.config);
}

// `OUTPUT-2`, or the next such name that is free.
std::string free_output(const std::string& output) {
  std::error_code none;
  std::string plain = output;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  for (int number = 2;; ++number)
    if (const std::string folder = str(plain, "-", number); !fs::exists(folder, none)) return folder;
}

// `command` without the overrides of `key`, each of them one shell word.
std::string without_override(std::string command, const std::string& key) {
  for (const std::string quote : {"", "'"}) {
    const std::string start = str(" --set ", quote, key, "=");
    for (size_t at = command.find(start); at != std::string::npos; at = command.find(start)) {
      const size_t end = command.find(quote + " ", at + start.size());
      command.erase(at, end == std::string::npos ? end : end + quote.size() - at);
    }
  }
  return command;
}

// Command to type for another train.resume, into a new folder. `more`: a further override, or "".
std::string command_line(const RunFolderRequest& request, const std::string& resume, const std::string& more = "") {
  // A checkpoint has its own weights, so convoy would refuse model.init_from with it.
  const std::string typed = without_override(request.command.options, "model.init_from");
  const std::string options =
      more.empty() ? typed : str(without_override(typed, more.substr(0, more.find('='))), " --set ", more);
  return str(options, " --set ", shell_word("train.resume=" + resume),
             request.output.empty() ? "" : " --output " + shell_word(free_output(request.output)),
             request.command.program);
}

// True if this run could begin from the newest checkpoint of `folder`.
bool can_begin_from(const RunFolderRequest& request, const std::string& folder) {
  if (!has_checkpoint(folder)) return false;
  try {
    check_resume_path(folder, request.resolved);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string difference_lines(const std::vector<Difference>& found, const Json& resolved) {
  std::string lines;
  for (const Difference& difference : found) {
    const SourceLocation location = location_of(resolved, difference.key);
    lines += str("\n  ", location.file.empty() ? "" : to_string(location) + ": ", to_string(difference));
  }
  return lines;
}

// Returns the length of the folder's run where it differs from `resolved`: `epochs` unless the user wrote epochs,
// `max_steps` unless the user wrote one of the two. Without this, a default would end the run early.
Json kept_length(const Json& config, const Json& resolved) {
  const SourceLocations locations = locations_of(resolved);
  const auto is_written = [&](const std::string& key) {
    return locations.empty() ? !value_of_key(resolved, "train." + key).is_null() : locations.count("train." + key) != 0;
  };
  Json kept = Json::object();
  if (is_written("epochs")) return kept;
  const Json epochs = value_of_key(config, "train.epochs"), steps = value_of_key(config, "train.max_steps");
  const bool keep_steps = !is_written("max_steps");
  const bool ends = epochs.is_number_integer() || (keep_steps && steps.is_number_integer());
  if (ends && epochs != value_of_key(resolved, "train.epochs")) kept["epochs"] = epochs;
  if (keep_steps && steps != value_of_key(resolved, "train.max_steps")) kept["max_steps"] = steps;
  return kept;
}

// "" if there is nothing to keep.
std::string kept_note(const Json& kept, const Json& resolved) {
  std::vector<std::string> stay;
  for (const auto& [key, value] : kept.items())
    if (!value.is_null()) stay.push_back(str("train.", key, " stays ", value));
  if (stay.empty()) return "";
  const Json limit = kept.value("max_steps", value_of_key(resolved, "train.max_steps"));
  return str(join(stay, ", "), ", as this run began; ",
             kept.contains("max_steps") || !limit.is_number_integer()
                 ? "for another length type --set train.epochs=N or train.max_steps=N"
                 : "--set train.epochs=~ leaves it to train.max_steps");
}

// Takes an unfinished folder if its lock is free.
std::optional<RunFolder> try_take(const RunFolderRequest& request, const std::string& folder) {
  RunFolder run;
  const std::string path = absolute_path(folder);
  if (valid_utf8(path) != path)
    refuse(valid_utf8(path), "is not valid UTF-8; run in another working directory, or give another --output");
  std::error_code none;
  run.created = !fs::exists(folder, none);
  const std::string warning = create_run_folder(folder);
  run.lock = FolderLock(folder);
  if (!run.lock.held()) return std::nullopt;
  run.path = path;
  if (!warning.empty()) run.notes.push_back(warning);
  Json summary = read_summary(folder);
  if (summary.value("status", "") == "done" && !request.grows) {
    run.already_done = true;
    return run;
  }
  repair(folder, summary, run.notes);
  run.attempt =
      summary.contains("attempt") && summary["attempt"].is_number_integer() ? summary["attempt"].get<int>() + 1 : 0;
  if (!has_checkpoint(folder)) return run;  // a different configuration can spoil nothing
  rebuild(folder, summary, run.notes);
  run.continued = true;
  if (!summary.contains("config")) return run;
  run.train = kept_length(summary["config"], request.resolved);
  if (const std::string note = kept_note(run.train, request.resolved); !note.empty()) run.notes.push_back(note);
  const std::vector<Difference> found = differences(summary["config"], request.resolved, resumable_keys());
  if (found.empty()) return run;
  throw Error(Failure::output, folder,
              ": holds an unfinished run with other settings:", difference_lines(found, request.resolved),
              can_begin_from(request, folder)
                  ? str("\nto resume from its newest checkpoint with the new settings, in a new folder, type\n  ",
                        command_line(request, folder))
                  : std::string(),
              "\nto start from the beginning, type\n  ", command_line(request, "never"));
}

// Override for more training than the finished run had; "" if `resolved` already requests more.
std::string more_training(const Json& summary, const Json& resolved) {
  const Json config = summary.value("config", Json()), limit = value_of_key(config, "train.max_steps");
  const bool by_steps = limit.is_number_integer() && summary.value("steps", Json()) == limit;
  const std::string key =
      by_steps || !value_of_key(config, "train.epochs").is_number_integer() ? "max_steps" : "epochs";
  const Json before = value_of_key(config, "train." + key), now = value_of_key(resolved, "train." + key);
  if (!before.is_number_integer() || now.is_null() || (now.is_number_integer() && now > before)) return "";
  return str("train.", key, "=", 2 * before.get<int64_t>());
}

// Command that trains a finished run for longer.
std::string more_text(const RunFolderRequest& request, const std::string& done) {
  const bool program = !value_of_key(request.resolved, "program").empty();
  return str(program ? "to train it for longer, in a new folder, let the program train for longer and type\n  "
                     : "to train it for longer, in a new folder, type\n  ",
             command_line(request, done, more_training(read_summary(done), request.resolved)));
}

// A value for --set. Resolved configurations of farms have numbers as text, to keep their spelling.
std::string typed_value(const Json& value) {
  if (value.is_string() && parse_real(value.get_ref<const std::string&>()).value) return value.get<std::string>();
  if (!value.is_structured()) return value.dump();
  std::vector<std::string> parts;
  for (const auto& [key, item] : value.items())
    parts.push_back(value.is_object() ? str(key, ": ", typed_value(item)) : typed_value(item));
  return value.is_object() ? "{" + join(parts, ", ") + "}" : "[" + join(parts, ", ") + "]";
}

// Hint for a finished farm if keys of its grid have more values now and nothing else differs; else "".
std::string addition_text(const std::string& folder, const std::vector<Difference>& found) {
  constexpr char grid[] = "strategy.grid.";
  std::string sets;
  for (const Difference& difference : found) {
    if (difference.key.rfind(grid, 0) != 0 || !difference.was.is_array() || !difference.is.is_array()) return "";
    const auto is_in = [](const Json& value, const Json& list) {
      return std::find(list.begin(), list.end(), value) != list.end();
    };
    Json added = Json::array();
    for (const Json& value : difference.is)
      if (!is_in(value, difference.was)) added.push_back(value);
    for (const Json& value : difference.was)
      if (!is_in(value, difference.is)) return "";
    sets += " --set " + shell_word(str(difference.key, "=", typed_value(added)));
  }
  return str("; to train only the new points, in the same folder, type\n  convoy add ", shell_word(folder), sets);
}

std::string done_reason(const RunFolderRequest& request, const std::string& folder) {
  const Json config = read_summary(folder).value("config", Json::object());
  std::vector<std::string> ignored{"train.resume", "data.changed"};
  const Json kept = kept_length(config, request.resolved);
  for (const auto& [key, value] : kept.items()) ignored.push_back("train." + key);
  const std::vector<Difference> found = differences(config, request.resolved, ignored);
  if (found.empty()) return "";
  return str("holds a run that is done, with other settings:", difference_lines(found, request.resolved),
             "\ngive another --output",
             can_begin_from(request, folder) ? "; " + more_text(request, folder) : std::string(),
             addition_text(folder, found));
}

// True if the next run of this name, or with this --output, continues the folder. With train.resume: PATH, only a run
// that began from that path with equal settings continues.
bool may_continue(const RunFolderRequest& request, const std::string& folder) {
  const Json summary = read_summary(folder);
  if (request.resume == "never" || summary.value("status", "") == "done") return false;
  if (request.resume == "auto") return true;
  const Json config = summary.value("config", Json());
  return has_checkpoint(folder) && value_of_key(config, "train.resume") == request.resume &&
         differences(config, request.resolved, resumable_keys()).empty();
}

RunFolder open_given(const RunFolderRequest& request) {
  const std::string& folder = request.output;
  struct stat status {};
  if (stat(folder.c_str(), &status) == 0 && !S_ISDIR(status.st_mode))
    refuse(folder, "is no directory; give another --output");
  auto run = try_take(request, folder);
  if (!run) refuse(folder, "another run uses it and holds its lock; wait for that run, or give another --output");
  if (run->already_done) {
    const std::string reason = done_reason(request, folder);
    if (!reason.empty()) refuse(folder, reason);
    run->notes.push_back(
        str(folder, ": already done", has_checkpoint(folder) ? "; " + more_text(request, folder) : std::string()));
  }
  if (run->continued && request.resume == "never")
    refuse(
        folder,
        "holds an unfinished run with checkpoints, which conflicts with train.resume = never; give another --output");
  if (run->continued && !may_continue(request, folder))
    refuse(folder,
           str("holds an unfinished run that did not begin from train.resume = ", request.resume,
               "; to begin from there, give another --output; to continue the unfinished run, leave out train.resume"));
  return std::move(*run);
}

// Numbers of the existing runs/NAME, runs/NAME-2, …, last written first.
std::vector<int> existing(const RunFolderRequest& request) {
  std::vector<std::pair<fs::file_time_type, int>> found;
  std::error_code none;
  for (int number = 1; fs::exists(numbered(request, number), none); ++number) {
    auto time = fs::last_write_time(numbered(request, number) + "/summary.json", none);
    if (none) time = fs::file_time_type::min();
    found.emplace_back(time, number);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<int> numbers;
  for (const auto& [time, number] : found) numbers.push_back(number);
  return numbers;
}

// Reason for starting from the beginning although a run of this name exists.
std::string new_folder_note(const RunFolderRequest& request, const std::vector<int>& others,
                            const std::string& folder) {
  for (int number : others) {
    const std::string other = numbered(request, number);
    if (request.resume != "auto" || read_summary(other).value("status", "") != "done" || !has_checkpoint(other))
      continue;
    return str(other, " is done; this run starts from the beginning in ", folder,
               can_begin_from(request, other) ? "; " + more_text(request, other) : std::string());
  }
  return str(numbered(request, 1), " is taken; this run's folder is ", folder);
}

RunFolder open_named(const RunFolderRequest& request) {
  const std::vector<int> numbers = existing(request);
  for (int number : numbers) {
    const std::string folder = numbered(request, number);
    if (!may_continue(request, folder)) continue;
    auto run = try_take(request, folder);
    if (!run || run->already_done) continue;
    if (run->continued) run->notes.push_back(str("continuing the unfinished run in ", folder));
    return std::move(*run);
  }
  std::error_code none;
  for (int number = 1;; ++number) {
    const std::string folder = numbered(request, number);
    if (fs::exists(folder, none)) continue;
    auto run = try_take(request, folder);
    if (!run) continue;  // another run took it first
    if (number > 1) run->notes.push_back(new_folder_note(request, numbers, folder));
    return std::move(*run);
  }
}

}  // namespace

void remove_leftover_checkpoints(const std::string& folder) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder + "/checkpoints", none))
    if (is_leftover(entry.path().filename().string())) fs::remove_all(entry.path(), none);
}

ScratchFolder::ScratchFolder(const std::string& prefix)
    : path_((temporary_folder() / str(prefix, "-", getpid(), "-XXXXXX")).string()) {
  if (mkdtemp(path_.data()) == nullptr)
    throw Error(Failure::io, path_, ": cannot be created: ", std::strerror(errno), "; set TMPDIR to another folder");
}

ScratchFolder::~ScratchFolder() {
  std::error_code none;
  fs::remove_all(path_, none);
}

std::string requested_folder(const RunFolderRequest& request) {
  return request.output.empty() ? numbered(request, 1) : request.output;
}

void record_failure(const std::string& folder, const Abort& cause) {
  if (read_summary(folder).value("status", "") != "running") return;
  const int fd = open((folder + "/failure.json").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return;
  const std::string text = end_json(cause).dump(2) + "\n";
  const ssize_t written = write(fd, text.data(), text.size());
  close(fd);
  if (written != static_cast<ssize_t>(text.size())) return;
  const FolderLock lock(folder);
  Json summary = read_summary(folder);  // the supervisor may have written the real end meanwhile
  std::vector<std::string> notes;
  if (lock.held()) repair(folder, summary, notes);
}

RunFolder open_run_folder(const RunFolderRequest& request) {
  std::vector<std::string> notes = check_resume_path(request.resume, request.resolved);
  RunFolder run = request.output.empty() ? open_named(request) : open_given(request);
  run.notes.insert(run.notes.end(), notes.begin(), notes.end());
  return run;
}

}  // namespace convoy
