#include "core/checkpoint/moment_change.h"

#include <algorithm>
#include <iterator>

#include "core/text.h"

namespace convoy {
namespace {

// "exp_avg" of "moment/exp_avg/NAME"; "" for other keys. Outer steps and compression keep moments that no optimizer has.
std::string moment_in(const std::string& key) {
  const std::string kind = "moment/";
  if (key.rfind(kind, 0) != 0) return "";
  const std::string name = key.substr(kind.size(), key.find('/', kind.size()) - kind.size());
  return name == "left_over" || name.rfind("outer_", 0) == 0 ? "" : name;
}

void add_moments(const std::set<std::string>& keys, std::set<std::string>& names) {
  for (const std::string& key : keys)
    if (const std::string name = moment_in(key); !name.empty()) names.insert(name);
}

std::set<std::string> difference(const std::set<std::string>& all, const std::set<std::string>& others) {
  std::set<std::string> rest;
  std::set_difference(all.begin(), all.end(), others.begin(), others.end(), std::inserter(rest, rest.end()));
  return rest;
}

std::string listed(const std::set<std::string>& names) {
  return join(std::vector<std::string>(names.begin(), names.end()), ", ");
}

}  // namespace

bool MomentChange::starts_anew(const std::string& key) const {
  return missing.count(moment_in(key)) != 0 || (!missing.empty() && key.rfind("counter/updates", 0) == 0);
}

bool MomentChange::ignores(const std::string& key) const {
  return starts_anew(key) || unused.count(moment_in(key)) != 0;
}

void MomentChange::erase_from(std::set<std::string>& wanted) const {
  for (auto key = wanted.begin(); key != wanted.end();) key = starts_anew(*key) ? wanted.erase(key) : std::next(key);
}

std::vector<std::string> MomentChange::notes(const std::string& checkpoint) const {
  std::vector<std::string> notes;
  if (!missing.empty())
    notes.push_back(str("optimizer: ", checkpoint, " has no ", listed(missing),
                        ", which start at zero; updates are counted from zero for the correction of their bias"));
  if (!unused.empty())
    notes.push_back(str("optimizer: ", listed(unused), " of ", checkpoint, " are of another optimizer and not used"));
  return notes;
}

MomentChange moment_change(const std::set<std::string>& stored,
                           const std::vector<const std::set<std::string>*>& wanted) {
  std::set<std::string> there, here;
  add_moments(stored, there);
  for (const std::set<std::string>* keys : wanted) add_moments(*keys, here);
  return {difference(here, there), difference(there, here)};
}

}  // namespace convoy
