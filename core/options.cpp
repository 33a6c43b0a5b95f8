// Typed access to checked values, and marks that lead back to the user's text.
#include "core/options.h"

#include <utility>

namespace convoy {
namespace {

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& entry : object.items()) keys.push_back(entry.key());
  return keys;
}

std::string below(const std::string& path, const std::string& key) {
  if (path.empty() || key.empty()) return path + key;
  return path + "." + key;
}

// The marks under `key`, as seen from there.
std::map<std::string, Mark> marks_below(const std::map<std::string, Mark>& marks, const std::string& key,
                                        const Mark& own) {
  std::map<std::string, Mark> under{{"", own}};
  const std::string prefix = key + ".";
  for (auto it = marks.lower_bound(prefix); it != marks.end(); ++it) {
    if (it->first.compare(0, prefix.size(), prefix) != 0) break;
    under.emplace(it->first.substr(prefix.size()), it->second);
  }
  return under;
}

// The getter and the description are both the component author's, who may be a plugin's.
[[noreturn]] void wrong_type(const Options& options, const std::string& name, const Json& value, const char* getter) {
  options.fail(name, value.is_null()
                         ? str("is not set, and its code reads it by Options::", getter,
                               "; give it a default in its entry, or ask Options::has first")
                         : str("is ", value.dump(), ", and its code reads it by Options::", getter,
                               ", which takes another type; change its description in the entry, or the getter"));
}

}  // namespace

Options::Options(Json values, std::map<std::string, Mark> marks, std::string path)
    : values_(std::move(values)), marks_(std::move(marks)), path_(std::move(path)) {
  if (values_.is_null()) values_ = Json::object();
  CONVOY_CHECK(values_.is_object(), "options of '", path_, "' are not a map");
}

const Json& Options::at(const std::string& name) const {
  auto found = values_.find(name);
  if (found == values_.end())
    throw ConfigError(mark(""), path_,
                      str("its code reads an option '", name, "' that its entry does not describe; described are ",
                          join(keys_of(values_), ", "), "; add it to the entry's options"));
  return *found;
}

bool Options::has(const std::string& name) const {
  auto found = values_.find(name);
  return found != values_.end() && !found->is_null();
}

bool Options::is_auto(const std::string& name) const {
  const Json& value = at(name);
  return value.is_string() && value.get_ref<const std::string&>() == "auto";
}

bool Options::boolean(const std::string& name) const {
  const Json& value = at(name);
  if (!value.is_boolean()) wrong_type(*this, name, value, "boolean");
  return value.get<bool>();
}

int64_t Options::integer(const std::string& name) const {
  const Json& value = at(name);
  if (!value.is_number_integer()) wrong_type(*this, name, value, "integer");
  return value.get<int64_t>();
}

double Options::real(const std::string& name) const {
  const Json& value = at(name);
  if (!value.is_number()) wrong_type(*this, name, value, "real");
  return value.get<double>();
}

const std::string& Options::text(const std::string& name) const {
  const Json& value = at(name);
  if (!value.is_string()) wrong_type(*this, name, value, "text");
  return value.get_ref<const std::string&>();
}

std::vector<int64_t> Options::integers(const std::string& name) const {
  std::vector<int64_t> all;
  for (const Json& value : at(name)) {
    if (!value.is_number_integer()) wrong_type(*this, name, value, "integers");
    all.push_back(value.get<int64_t>());
  }
  return all;
}

std::vector<double> Options::reals(const std::string& name) const {
  std::vector<double> all;
  for (const Json& value : at(name)) {
    if (!value.is_number()) wrong_type(*this, name, value, "reals");
    all.push_back(value.get<double>());
  }
  return all;
}

std::vector<std::string> Options::texts(const std::string& name) const {
  std::vector<std::string> all;
  for (const Json& value : at(name)) {
    if (!value.is_string()) wrong_type(*this, name, value, "texts");
    all.push_back(value.get<std::string>());
  }
  return all;
}

Options Options::section(const std::string& name) const {
  if (!at(name).is_object() && !at(name).is_null()) wrong_type(*this, name, at(name), "section");
  return Options(at(name), marks_below(marks_, name, mark(name)), below(path_, name));
}

std::vector<Options> Options::sections(const std::string& name) const {
  const Json& list = at(name);
  if (!list.is_array() && !list.is_null()) wrong_type(*this, name, list, "sections");
  std::vector<Options> all;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string key = str(name, ".", i);
    if (!list[i].is_object() && !list[i].is_null()) wrong_type(*this, key, list[i], "sections");
    all.emplace_back(list[i], marks_below(marks_, key, mark(key)), below(path_, key));
  }
  return all;
}

Mark Options::mark(const std::string& name) const {
  std::string path = name;
  while (true) {
    auto found = marks_.find(path);
    if (found != marks_.end()) return found->second;
    if (path.empty()) return Mark{};
    const size_t dot = path.rfind('.');
    path = dot == std::string::npos ? "" : path.substr(0, dot);
  }
}

void Options::fail(const std::string& name, const std::string& reason) const {
  throw ConfigError(mark(name), below(path_, name), reason);
}

}  // namespace convoy
