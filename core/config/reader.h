// Strict YAML: one document, one spelling, no tags, no merge keys, bounded size, depth and aliases.
//
// yaml-cpp parses and sends events; what it lets pass (FACTS: duplicate keys, cyclic aliases, tags, second documents, bad
// UTF-8) is refused here. Every failure is a ConfigError with the place. Thread-safe.
#pragma once
#include <string>

#include "core/config/node.h"

namespace convoy {

constexpr size_t max_config_bytes = 1024 * 1024;
constexpr int max_config_depth = 64;          // of lists and maps within each other
constexpr size_t max_config_values = 100000;  // each 64 bytes of text count as one; aliases as often as they expand

// The file's tree; its top level is a map. `${VAR}` is replaced.
Node read_yaml_file(const std::string& path);
// The same for text. `file` names it in messages.
Node read_yaml_text(const std::string& text, const std::string& file);
// A value of --set: any YAML value on one line; empty text is null. Every mark is `mark`.
Node read_yaml_value(const std::string& text, const Mark& mark);

// Refuses what is no plain UTF-8 text: NUL and other control characters, UTF-16, byte order marks, tabs as indentation.
// `fixed`: the text stands at `place` as a whole and is not itself the file.
void check_source(const std::string& text, const Mark& place, bool fixed);

// Replaces ${VAR} in every scalar from the environment; $${ stands for a literal ${.
void expand_environment(Node& node);

}  // namespace convoy
