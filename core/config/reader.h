// Strict YAML: one document, one spelling, no tags, no merge keys, limited size, depth and aliases.
//
// yaml-cpp parses and sends events. It accepts some invalid input that this reader refuses: duplicate keys, cyclic
// aliases, tags, second documents, bad UTF-8. Every error is a ConfigError with source location. Thread-safe.
#pragma once
#include <string>
#include <vector>

#include "core/config/node.h"

namespace convoy {

constexpr size_t max_config_bytes = 1024 * 1024;
constexpr int max_config_depth = 64;          // nesting of lists and maps
constexpr size_t max_config_values = 100000;  // 64 bytes of text count as one value; aliases count once per expansion

// Returns the tree of the file; its top level is a map. `${VAR}` is replaced.
Node read_yaml_file(const std::string& path);
// As above, for text. `file` names it in messages.
Node read_yaml_text(const std::string& text, const std::string& file);
// Reads a value of --set: YAML on one line; empty text is null. Every source location is `location`.
Node read_yaml_value(const std::string& text, const SourceLocation& location);

// Refuses invalid text: NUL and other control characters, UTF-16, byte order marks, tabs as indentation. `fixed`: the
// text is not a file, so every error in it is reported at `location`.
void check_source(const std::string& text, const SourceLocation& location, bool fixed);

// Replaces ${VAR} in every scalar by its value in the environment; $${ is a literal ${.
void expand_environment(Node& node);

// Overrides: --set KEY=VALUE changes a tree before it is checked.

// Applies one override. KEY is a path such as train.batch.global or data.transforms.0.name. Items count from 0; one
// past the end appends. A key that contains dots is written in double quotes. VALUE is YAML. Source locations become
// "--set KEY=VALUE".
// Throws Error(command_line) if the text is not of the form KEY=VALUE, ConfigError for an invalid path.
void apply_override(Node& root, const std::string& assignment);
// Returns the tree of the file, or an empty map if `path` is "", with the overrides applied in order.
Node read_yaml_file(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace convoy
