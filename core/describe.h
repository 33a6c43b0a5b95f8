// Short ways to write an Option: describe::integer("negatives", "drawn for each positive", 4).at_least(0). Without LibTorch.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/options.h"

namespace convoy::describe {

// An Option that says its limits in a row; converts to Option by slicing, which loses nothing.
struct Description : Option {
  Description at_least(double least) const {
    auto copy = *this;
    copy.minimum = least;
    return copy;
  }
  Description above(double bound) const {
    auto copy = at_least(bound);
    copy.exclusive_minimum = true;
    return copy;
  }
  Description at_most(double most) const {
    auto copy = *this;
    copy.maximum = most;
    return copy;
  }
  Description must() const {
    auto copy = *this;
    copy.required = true;
    return copy;
  }
  Description may_be_null() const {
    auto copy = *this;
    copy.nullable = true;
    return copy;
  }
  Description in(const std::string& unit_name) const {
    auto copy = *this;
    copy.unit = unit_name;
    return copy;
  }
};

inline Description option(OptionType type, const std::string& name, const std::string& help, Json fallback = nullptr) {
  Description made;
  made.type = type;
  made.name = name;
  made.help = help;
  made.fallback = std::move(fallback);
  return made;
}
inline Description boolean(const std::string& name, const std::string& help, Json fallback = nullptr) {
  return option(OptionType::boolean, name, help, std::move(fallback));
}
inline Description integer(const std::string& name, const std::string& help, Json fallback = nullptr) {
  return option(OptionType::integer, name, help, std::move(fallback));
}
inline Description real(const std::string& name, const std::string& help, Json fallback = nullptr) {
  return option(OptionType::real, name, help, std::move(fallback));
}
inline Description text(const std::string& name, const std::string& help, Json fallback = nullptr) {
  return option(OptionType::text, name, help, std::move(fallback));
}
inline Description choice(const std::string& name, const std::string& help, std::vector<std::string> choices,
                          Json fallback = nullptr) {
  auto made = option(OptionType::choice, name, help, std::move(fallback));
  made.choices = std::move(choices);
  return made;
}
// `item` describes each element; its name is not shown.
inline Description list(const std::string& name, const std::string& help, Option item, Json fallback = Json::array()) {
  auto made = option(OptionType::list, name, help, std::move(fallback));
  made.options.push_back(std::move(item));
  return made;
}
inline Description section(const std::string& name, const std::string& help, std::vector<Option> options) {
  auto made = option(OptionType::section, name, help);
  made.options = std::move(options);
  return made;
}
inline Description component(const std::string& name, const std::string& help, const std::string& catalogue) {
  auto made = option(OptionType::component, name, help);
  made.catalogue = catalogue;
  return made;
}

}  // namespace convoy::describe
