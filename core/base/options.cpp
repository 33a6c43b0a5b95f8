// Typed access to checked values, and their source locations.
#include "core/base/options.h"

#include <algorithm>
#include <tuple>

#include "core/base/json.h"

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

// Source locations below `key`, with paths relative to it.
std::map<std::string, SourceLocation> locations_below(const std::map<std::string, SourceLocation>& locations,
                                                      const std::string& key, const SourceLocation& own) {
  std::map<std::string, SourceLocation> under{{"", own}};
  const std::string prefix = key + ".";
  for (auto it = locations.lower_bound(prefix); it != locations.end(); ++it) {
    if (it->first.compare(0, prefix.size(), prefix) != 0) break;
    under.emplace(it->first.substr(prefix.size()), it->second);
  }
  return under;
}

// The author of a component, possibly a plugin, wrote both the getter and the description.
[[noreturn]] void wrong_type(const Options& options, const std::string& name, const Json& value, const char* getter) {
  options.fail(name, value.is_null()
                         ? str("is not set, and its code reads it with Options::", getter,
                               "; give it a default in its entry, or ask Options::has first")
                         : str("is ", value.dump(), ", and its code reads it with Options::", getter,
                               ", which takes another type; change its description in the entry, or the getter"));
}

using IsType = bool (Json::*)() const;

const Json& checked(const Options& options, const std::string& name, const char* getter, IsType is_type) {
  const Json& value = options.at(name);
  if (!(value.*is_type)()) wrong_type(options, name, value, getter);
  return value;
}

template <class T>
std::vector<T> checked_items(const Options& options, const std::string& name, const char* getter, IsType is_type) {
  std::vector<T> all;
  for (const Json& value : options.at(name)) {
    if (!(value.*is_type)()) wrong_type(options, name, value, getter);
    all.push_back(value.get<T>());
  }
  return all;
}

}  // namespace

SourceLocation location_of(const std::map<std::string, SourceLocation>& locations, std::string path) {
  while (true) {
    const auto found = locations.find(path);
    if (found != locations.end()) return found->second;
    if (path.empty()) return SourceLocation{};
    const size_t dot = path.rfind('.');
    path = dot == std::string::npos ? "" : path.substr(0, dot);
  }
}

OptionValue::OptionValue(std::nullptr_t) : held_(std::make_shared<const Held>()) {}
OptionValue::OptionValue(const char* text) : OptionValue(Json(text)) {}
OptionValue::OptionValue(const std::string& text) : OptionValue(Json(text)) {}
OptionValue::OptionValue(std::initializer_list<OptionValue> list) {
  Json all = Json::array();
  for (const OptionValue& item : list) all.push_back(item.json());
  held_ = std::make_shared<const Held>(Held{std::move(all)});
}
template <class Number>
std::shared_ptr<const OptionValue::Held> OptionValue::hold(Number number) {
  return std::make_shared<const Held>(Held{number});
}
template std::shared_ptr<const OptionValue::Held> OptionValue::hold(bool);
template std::shared_ptr<const OptionValue::Held> OptionValue::hold(int64_t);
template std::shared_ptr<const OptionValue::Held> OptionValue::hold(uint64_t);
template std::shared_ptr<const OptionValue::Held> OptionValue::hold(double);

Options::Options() : values_(Json::object()) {}

Options::Options(OptionValue values, std::map<std::string, SourceLocation> locations, std::string path)
    : values_(std::move(values)), locations_(std::move(locations)), path_(std::move(path)) {
  if (json().is_null()) values_ = Json::object();
  CONVOY_CHECK(json().is_object(), "options of '", path_, "' are not a map");
}

const Json& value_of(const Options& options, const std::string& name) {
  const auto found = options.json().find(name);
  if (found == options.json().end())
    throw ConfigError(options.location(""), options.path(), "its code reads an option '", name,
                      "' that its entry does not describe; described are ", join(keys_of(options.json()), ", "),
                      "; add it to the entry's options");
  return *found;
}

bool Options::has(const std::string& name) const {
  const auto found = json().find(name);
  return found != json().end() && !found->is_null();
}

bool Options::is_auto(const std::string& name) const {
  const Json& value = at(name);
  return value.is_string() && value.get_ref<const std::string&>() == "auto";
}

bool Options::boolean(const std::string& name) const {
  return checked(*this, name, "boolean", &Json::is_boolean).get<bool>();
}

int64_t Options::integer(const std::string& name) const {
  return checked(*this, name, "integer", &Json::is_number_integer).get<int64_t>();
}

double Options::real(const std::string& name) const {
  return checked(*this, name, "real", &Json::is_number).get<double>();
}

const std::string& Options::text(const std::string& name) const {
  return checked(*this, name, "text", &Json::is_string).get_ref<const std::string&>();
}

std::vector<int64_t> Options::integers(const std::string& name) const {
  return checked_items<int64_t>(*this, name, "integers", &Json::is_number_integer);
}

std::vector<double> Options::reals(const std::string& name) const {
  return checked_items<double>(*this, name, "reals", &Json::is_number);
}

std::vector<std::string> Options::texts(const std::string& name) const {
  return checked_items<std::string>(*this, name, "texts", &Json::is_string);
}

Options Options::section(const std::string& name) const {
  if (!at(name).is_object() && !at(name).is_null()) wrong_type(*this, name, at(name), "section");
  return Options(at(name), locations_below(locations_, name, location(name)), below(path_, name));
}

std::vector<Options> Options::sections(const std::string& name) const {
  const Json& list = at(name);
  if (!list.is_array() && !list.is_null()) wrong_type(*this, name, list, "sections");
  std::vector<Options> all;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string key = str(name, ".", i);
    if (!list[i].is_object() && !list[i].is_null()) wrong_type(*this, key, list[i], "sections");
    all.emplace_back(list[i], locations_below(locations_, key, location(key)), below(path_, key));
  }
  return all;
}

SourceLocation Options::location(const std::string& name) const { return location_of(locations_, name); }

void Options::fail(const std::string& name, const std::string& reason) const {
  throw ConfigError(location(name), below(path_, name), reason);
}

// --- Keys without effect in combination with other keys ---

namespace {

// Returns the first written key below a section, or the key itself; "" if nothing is written.
std::string written_key(const Options& section, const std::string& key) {
  const auto& locations = section.locations();
  const auto value = section.json().find(key);
  const bool parts = value != section.json().end() && value->is_object();
  const std::string prefix = key + ".";
  auto first = locations.end();
  for (auto at = locations.lower_bound(prefix);
       parts && at != locations.end() && at->first.compare(0, prefix.size(), prefix) == 0; ++at)
    if (first == locations.end() ||
        std::tie(at->second.line, at->second.column) < std::tie(first->second.line, first->second.column))
      first = at;
  if (first != locations.end()) return first->first;
  return locations.count(key) != 0 ? key : "";
}

// True for a resolved file: it has every key, and its run folder must be runnable again.
bool every_key_written(const Options& section) {
  const Json& values = section.json();
  for (auto value = values.begin(); value != values.end(); ++value)
    if (!value->is_null() && section.locations().count(value.key()) == 0) return false;
  return true;
}

}  // namespace

bool is_typed(const SourceLocation& location) { return location.file.rfind("--set ", 0) == 0; }

void refuse_without_effect(const Options& section, const std::string& key, const std::string& reason,
                           const std::vector<SourceLocation>& because, std::vector<std::string>* ignored) {
  const std::string written = written_key(section, key);
  if (written.empty() || every_key_written(section)) return;
  const SourceLocation location = section.location(written);
  if (is_typed(location) || std::none_of(because.begin(), because.end(), is_typed)) section.fail(written, reason);
  if (ignored)
    ignored->push_back(str(to_string(location), ": ", section.path().empty() ? "" : section.path() + ".", written,
                           ": ignored, because it has no effect with the value from --set"));
}

// --- Catalogues ---

const Entry* Catalogues::find(const std::string& kind, const std::string& name) const {
  auto entries = kinds.find(kind);
  if (entries == kinds.end()) return nullptr;
  for (const Entry& entry : entries->second)
    if (entry.name == name) return &entry;
  return nullptr;
}

std::vector<std::string> Catalogues::names(const std::string& kind) const {
  std::vector<std::string> names;
  auto entries = kinds.find(kind);
  if (entries == kinds.end()) return names;
  for (const Entry& entry : entries->second) names.push_back(entry.name);
  return names;
}

}  // namespace convoy
