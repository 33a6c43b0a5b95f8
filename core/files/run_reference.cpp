#include "core/files/run_reference.h"

#include <algorithm>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/files.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr char step_folder_prefix[] = "step-";

std::optional<int64_t> step_in(const std::string& name) {
  if (!begins_with(name, step_folder_prefix)) return std::nullopt;
  const std::string digits = name.substr(sizeof step_folder_prefix - 1);
  const bool number =
      !digits.empty() && digits.size() < 19 && digits.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::optional<int64_t>(std::stoll(digits)) : std::nullopt;
}

[[noreturn]] void refuse_reference(const std::string& key, const std::string& run, const std::string& lack,
                                   const std::string& folder) {
  std::vector<std::string> names;
  for (const int64_t step : checkpoint_steps(folder)) names.push_back(str(run, "@", step_folder_prefix, step));
  throw Error(Failure::config, key, ": ", run, " has no ", lack,
              names.empty() ? std::string("; it has no checkpoints") : str("; it has ", join(names, ", ")));
}

}  // namespace

std::vector<int64_t> checkpoint_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(folder))
    if (const std::optional<int64_t> step = step_in(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string checkpoints_folder(const std::string& path) {
  std::error_code none;
  const std::string below = (fs::path(path) / "checkpoints").string();
  if (fs::is_directory(below, none)) return below;
  return checkpoint_steps(path).empty() ? "" : path;
}

std::optional<int64_t> pointed_step(const std::string& folder, const char* file) {
  std::string name = read_file_if_any((fs::path(folder) / file).string(), 64);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  const std::optional<int64_t> step = step_in(name);
  std::error_code none;
  if (!step || !fs::is_directory(fs::path(folder) / name, none)) return std::nullopt;
  return step;
}

MemberPath checkpoint_path(const std::string& text, const std::string& key) {
  MemberPath named = member_path(text);
  const size_t at = named.path.rfind('@');
  if (at == std::string::npos) return named;
  const std::string run = named.path.substr(0, at), what = named.path.substr(at + 1);
  const std::optional<int64_t> step = step_in(what);
  if (what != best_file && !step) return named;  // a folder whose name has an @
  const std::string folder = checkpoints_folder(run);
  if (what == best_file) {
    const std::optional<int64_t> best = pointed_step(folder, best_file);
    if (!best) refuse_reference(key, run, "best checkpoint, which train.keep_best keeps", folder);
    named.path = (fs::path(folder) / str(step_folder_prefix, *best)).string();
    return named;
  }
  named.path = (fs::path(folder) / what).string();
  std::error_code none;
  if (folder.empty() || !fs::is_directory(named.path, none))
    refuse_reference(key, run, str("checkpoint of step ", *step), folder);
  return named;
}

}  // namespace convoy
