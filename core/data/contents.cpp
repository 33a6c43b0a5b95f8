#include "core/data/contents.h"

#include <algorithm>

#include "core/base/hash.h"
#include "core/base/text.h"

namespace convoy {
namespace {

constexpr size_t most_shown = 3;

std::string quoted(std::string_view name) {
  constexpr size_t longest = 40;
  std::string text = valid_utf8(name.substr(0, utf8_prefix(name.data(), name.size(), longest)));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return str("'", text, name.size() > longest ? "…" : "", "'");
}

// "context_columns" → "context columns"
std::string words_of(std::string plural) {
  std::replace(plural.begin(), plural.end(), '_', ' ');
  return plural;
}

std::string singular(const std::string& plural) {
  return plural.substr(0, plural.size() - (ends_in(plural, "sses") ? 2 : 1));
}

// "user 'a'", "users 'a', 'b', 'c' and 4 more"
std::string shown(const std::string& plural, const NameList& names, const std::vector<int64_t>& which) {
  std::vector<std::string> some;
  for (size_t i = 0; i < std::min(which.size(), most_shown); ++i) some.push_back(quoted(names[which[i]]));
  std::string text = str(which.size() == 1 ? singular(plural) : plural, " ", join(some, ", "));
  if (which.size() > most_shown) text += str(" and ", which.size() - most_shown, " more");
  return text;
}

// Numbers of `names` that are not in `others`.
std::vector<int64_t> absent_from(const NameList& others, const NameList& names) {
  const NameNumbers numbers(others);
  std::vector<int64_t> absent;
  for (int64_t i = 0; i < names.size(); ++i)
    if (numbers.find(names[i]) < 0) absent.push_back(i);
  return absent;
}

void compare_lists(const std::string& key, const NumberedNames& stored, const NumberedNames& now, DataChange& change) {
  if (stored.names == now.names) return;
  const std::string plural = words_of(key);
  change.renumber = true;
  const std::vector<int64_t> added = absent_from(stored.names, now.names), gone = absent_from(now.names, stored.names);
  const auto is = [](const std::vector<int64_t>& names) { return names.size() == 1 ? " is " : " are "; };
  if (!added.empty())
    change.unknown.push_back(str(shown(plural, now.names, added), is(added), "new, and not in the checkpoint"));
  if (!gone.empty())
    (now.whole ? change.unknown : change.other).push_back(str(shown(plural, stored.names, gone), is(gone), "missing"));
  if (added.empty() && gone.empty()) change.other.push_back(str("the ", plural, " come in another order"));
}

// True for lists that hold values and not names of numbers: features in the order of another list, the files of a
// tokenizer, and how columns are prepared. The fingerprint covers their changes.
bool holds_values(const std::string& key) {
  return key == "item_features" || key == "user_features" || key == "tokenizer" || key == "preparation";
}

}  // namespace

std::string with_content(const std::string& names_and_sizes, const std::string& content) {
  return names_and_sizes + "-" + content;
}

bool same_fingerprint(const std::string& stored, const std::string& now) {
  return stored == now || (!stored.empty() && stored == now.substr(0, now.find('-')));
}

std::string combined_fingerprint(const std::vector<std::string>& parts) {
  const std::string all = join(parts, "\n");
  return hash_hex(all.data(), all.size());
}

std::string DataChange::text() const {
  std::vector<std::string> all = unknown;
  all.insert(all.end(), other.begin(), other.end());
  return join(all, ", ");
}

DataChange data_change(const DataContents& stored, const DataContents& now) {
  DataChange change;
  for (const auto& [key, list] : now.lists) {
    if (holds_values(key)) continue;
    const auto found = stored.lists.find(key);
    if (found != stored.lists.end())
      compare_lists(key, found->second, list, change);
    else if (list.names.size() > 0)
      change.unknown.push_back(str("it has ", words_of(key), ", and the checkpoint has none"));
  }
  for (const auto& [key, list] : stored.lists)
    if (now.lists.count(key) == 0 && list.names.size() > 0 && !holds_values(key))
      change.unknown.push_back(str("it has no ", words_of(key), ", and the checkpoint has some"));
  // A model continues with the scaling and the categories that it was trained with.
  const auto prepared = stored.lists.find("preparation"), prepares = now.lists.find("preparation");
  if (prepared != stored.lists.end() &&
      (prepares == now.lists.end() || prepared->second.names != prepares->second.names))
    change.renumber = true;
  // The bytes are equal to those of the checkpoint, so names can be new only if they are read in another way.
  if (same_fingerprint(stored.fingerprint, now.fingerprint)) {
    change.other.clear();
    return change;
  }
  if (stored.rows != now.rows) change.other.push_back(str(now.rows, " rows, ", stored.rows, " in the checkpoint"));
  if (stored.rows == now.rows) change.other.emplace_back("its contents differ");
  return change;
}

}  // namespace convoy
