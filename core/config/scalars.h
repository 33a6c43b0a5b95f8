// Scalars, strictly: one spelling for booleans, no octal numbers, no silent rounding, nothing that is not finite.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/options.h"

namespace convoy {

// Far beyond every use, and small enough that products of epochs, steps and rows fit into 64 bits.
constexpr int64_t most_epochs = 100'000'000;
constexpr int64_t most_rows = 1'000'000'000;  // of a batch
constexpr int64_t most_steps = 1'000'000'000'000;
constexpr int64_t most_bytes = int64_t(1) << 60;

// A value, or the reason why the text is none ("must be …", without the text itself).
template <class T>
struct Parsed {
  std::optional<T> value;
  std::string reason;
};

Parsed<bool> parse_boolean(const std::string& text);
Parsed<int64_t> parse_integer(const std::string& text);  // -?(0|[1-9][0-9]*)
Parsed<double> parse_real(const std::string& text);      // decimal, with or without point and exponent; finite
Parsed<double> parse_duration(const std::string& text);  // seconds
Parsed<int64_t> parse_bytes(const std::string& text);
Parsed<Json> parse_interval(const std::string& text);  // {"every": n, "unit": "steps"|"epochs"|"never"}

bool is_interval(const Json& value);              // has exactly the form that parse_interval gives
std::string interval_text(const Json& interval);  // "100 steps", "1 epoch", "never"

// The user's text as it may stand in a message: in quotes, shortened, control characters escaped.
std::string shown(const std::string& text);
std::string printable(const std::string& text);  // the same without quotes and cuts

}  // namespace convoy
