// Builders of Option: describe::integer("negatives", "drawn for each positive", 4).at_least(0). Without LibTorch.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/base/options.h"

namespace convoy::describe {

// Option with chained setters for its limits. It converts to Option by slicing, which loses nothing.
struct OptionBuilder : Option {
  OptionBuilder at_least(double least) const { return with(&Option::minimum, least); }
  OptionBuilder above(double bound) const { return at_least(bound).with(&Option::exclusive_minimum, true); }
  OptionBuilder at_most(double most) const { return with(&Option::maximum, most); }
  OptionBuilder between(double least, double most) const { return at_least(least).at_most(most); }
  OptionBuilder must() const { return with(&Option::required, true); }
  OptionBuilder may_be_null() const { return with(&Option::nullable, true); }
  OptionBuilder in(const std::string& unit_name) const { return with(&Option::unit, unit_name); }
  // `auto` is valid too, and the default.
  OptionBuilder or_auto() const { return with(&Option::also_auto, true).with(&Option::fallback, "auto"); }

  template <class Member, class Value>
  OptionBuilder with(Member Option::*member, const Value& value) const {
    auto copy = *this;
    copy.*member = value;
    return copy;
  }
};

inline OptionBuilder option(OptionType type, const std::string& name, const std::string& help,
                            OptionValue fallback = nullptr) {
  OptionBuilder made;
  made.type = type;
  made.name = name;
  made.help = help;
  made.fallback = std::move(fallback);
  return made;
}
inline OptionBuilder boolean(const std::string& name, const std::string& help, OptionValue fallback = nullptr) {
  return option(OptionType::boolean, name, help, std::move(fallback));
}
inline OptionBuilder integer(const std::string& name, const std::string& help, OptionValue fallback = nullptr) {
  return option(OptionType::integer, name, help, std::move(fallback));
}
inline OptionBuilder real(const std::string& name, const std::string& help, OptionValue fallback = nullptr) {
  return option(OptionType::real, name, help, std::move(fallback));
}
inline OptionBuilder text(const std::string& name, const std::string& help, OptionValue fallback = nullptr) {
  return option(OptionType::text, name, help, std::move(fallback));
}
inline OptionBuilder choice(const std::string& name, const std::string& help, std::vector<std::string> choices,
                            OptionValue fallback = nullptr) {
  return option(OptionType::choice, name, help, std::move(fallback)).with(&Option::choices, std::move(choices));
}
// `item` describes each element; its name is not shown.
inline OptionBuilder list(const std::string& name, const std::string& help, Option item,
                          OptionValue fallback = std::initializer_list<OptionValue>{}) {
  return option(OptionType::list, name, help, std::move(fallback))
      .with(&Option::options, std::vector<Option>{std::move(item)});
}
// `types`: accepted types, such as "number or list of numbers". The component that owns the option checks it.
inline OptionBuilder any(const std::string& name, const std::string& types, const std::string& help,
                         OptionValue fallback = nullptr) {
  auto made = option(OptionType::any, name, help, std::move(fallback));
  made.types = types;
  return made;
}
inline OptionBuilder section(const std::string& name, const std::string& help, std::vector<Option> options) {
  return option(OptionType::section, name, help).with(&Option::options, std::move(options));
}
inline OptionBuilder component(const std::string& name, const std::string& help, const std::string& catalogue) {
  return option(OptionType::component, name, help).with(&Option::catalogue, catalogue);
}

}  // namespace convoy::describe
