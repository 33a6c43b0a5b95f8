#include "core/config/without_effect.h"

#include <tuple>

namespace convoy {
namespace {

bool typed(const Mark& mark) { return mark.file.rfind("--set", 0) == 0; }

// Of a section the key below it that stands first; of all else the key itself. "" where nothing is written.
std::string written_key(const Options& section, const std::string& key) {
  const auto& marks = section.marks();
  const auto value = section.json().find(key);
  const bool parts = value != section.json().end() && value->is_object();
  const std::string prefix = key + ".";
  auto first = marks.end();
  for (auto at = marks.lower_bound(prefix);
       parts && at != marks.end() && at->first.compare(0, prefix.size(), prefix) == 0; ++at)
    if (first == marks.end() ||
        std::tie(at->second.line, at->second.column) < std::tie(first->second.line, first->second.column))
      first = at;
  if (first != marks.end()) return first->first;
  return marks.count(key) != 0 ? key : "";
}

// A resolved file has every key, and nobody who wrote them: what a run folder keeps can be run again.
bool every_key_written(const Options& section) {
  const Json& values = section.json();
  for (auto value = values.begin(); value != values.end(); ++value)
    if (!value->is_null() && section.marks().count(value.key()) == 0) return false;
  return true;
}

}  // namespace

std::string refuse_without_effect(const Options& section, const std::string& key, const std::string& reason,
                                  const std::vector<Mark>& because) {
  const std::string written = written_key(section, key);
  if (written.empty() || every_key_written(section)) return "";
  const Mark mark = section.mark(written);
  for (const Mark& cause : because)
    if (typed(cause) && !typed(mark))
      return str(to_string(mark), ": ", section.path().empty() ? "" : section.path() + ".", written,
                 ": left out, as it has no effect beside what --set chose");
  section.fail(written, reason);
}

}  // namespace convoy
