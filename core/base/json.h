// JSON, and values of options as JSON. Without LibTorch.
// Only sources of convoy include it. Headers for plugins and programs use OptionValue instead, so that an
// installation does not expose nlohmann/json.hpp.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/base/options.h"

namespace convoy {

// JSON that keeps the order of keys, so that resolved files are stable.
using Json = nlohmann::ordered_json;

// Conversions between a struct and a JSON object with its members as keys, in this order.
#define CONVOY_JSON(Type, ...)                                                          \
  inline void to_json(::convoy::Json& nlohmann_json_j, const Type& nlohmann_json_t) {   \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))            \
  }                                                                                     \
  inline void from_json(const ::convoy::Json& nlohmann_json_j, Type& nlohmann_json_t) { \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM, __VA_ARGS__))          \
  }

template <>
struct IsJson<Json> : std::true_type {};

struct OptionValue::Held {
  Json json;
};

template <class J, class>
OptionValue::OptionValue(J json) : held_(std::make_shared<const Held>(Held{std::move(json)})) {}

inline decltype(auto) OptionValue::json() const { return (static_cast<const Json&>(held_->json)); }

// See Options::at.
const Json& value_of(const Options& options, const std::string& name);

inline decltype(auto) Options::json() const { return values_.json(); }
inline decltype(auto) Options::at(const std::string& name) const { return value_of(*this, name); }

// Parses JSON of files that people or other programs may have changed. Returns a discarded value (is_discarded()) if
// the text is malformed, or nested deeper than 100 levels. Functions that walk a deeper value recursively would
// overflow the stack.
Json parsed_json(std::string_view text);

// Value of a key such as "train.batch.global" in nested objects; null if it is missing.
Json value_of_key(const Json& json, const std::string& key);

// Numbers in files. JSON has no NaN and no infinities, and null would not distinguish them. So they are the texts
// "nan", "inf" and "-inf". Anything else that is no number is read as NaN.
Json number_or_text(double value);
double read_number(const Json& value);
Json number_or_null(double value);  // null for values that are not finite

}  // namespace convoy
