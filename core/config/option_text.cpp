// Descriptions in words.
#include <cmath>

#include "core/config/option_reader.h"

namespace convoy {
namespace {

std::string number_text(double value) {
  if (value == std::floor(value) && std::fabs(value) < 1e15) return str(static_cast<int64_t>(value));
  return Json(value).dump();
}

std::string plain_type(const Option& option) {
  switch (option.type) {
    case OptionType::boolean:
      return "true or false";
    case OptionType::integer:
      return "integer";
    case OptionType::real:
      return "number";
    case OptionType::text:
      return option.catalogue.empty() ? "text" : "name of a " + option.catalogue;
    case OptionType::choice:
      return "one of " + join(option.choices, ", ");
    case OptionType::duration:
      return "duration";
    case OptionType::bytes:
      return "size in bytes";
    case OptionType::interval:
      return "interval";
    case OptionType::list:
      return option.options.empty() ? "list" : "list of: " + type_text(option.options.front());
    case OptionType::section:
      return "map";
    case OptionType::component:
      return option.catalogue + " component";
    case OptionType::map:
      return option.options.empty() ? "map" : "map of names to: " + type_text(option.options.front());
    case OptionType::any:
      break;
  }
  return "anything";
}

}  // namespace

std::string type_text(const Option& option) { return plain_type(option) + (option.also_auto ? ", or auto" : ""); }

std::string type_with_article(const Option& option) {
  switch (option.type) {
    case OptionType::boolean:
    case OptionType::choice:
    case OptionType::any:
      return type_text(option);
    case OptionType::text:
      return option.catalogue.empty() ? type_text(option) : "the " + type_text(option);
    case OptionType::integer:
    case OptionType::interval:
      return "an " + type_text(option);
    default:
      return "a " + type_text(option);
  }
}

std::string range_text(const Option& option) {
  std::vector<std::string> parts;
  if (option.minimum) {
    parts.push_back((option.exclusive_minimum ? "above " : "at least ") + number_text(*option.minimum));
  }
  if (option.maximum) parts.push_back("at most " + number_text(*option.maximum));
  return join(parts, ", ");
}

}  // namespace convoy
