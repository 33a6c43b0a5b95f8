// Files for editors and shells, made from the descriptions of the options and from the tree of the command line:
// `convoy list --json-schema`, `--completion SHELL` and `--man`.
#pragma once
#include <string>
#include <vector>

#include "core/base/json.h"

namespace CLI {
class App;
}

namespace convoy {

// Returns the JSON schema (draft-07, which the language servers of editors support best) of every file that
// `convoy run` and `convoy add` read: one run, a farm, a run with a program, and a pipeline to add. It accepts every
// valid file. It finds unknown keys, wrong types, values and names, and missing keys; the reader finds more.
Json json_schema(const Catalogues& catalogues);

inline const std::vector<std::string> completion_shells{"bash", "zsh", "fish"};

// Returns the completion script of a shell: commands, options, their values, the keys of a configuration after --set
// with the names of components, and run folders. Needs no start of convoy while it completes.
std::string completion_script(const CLI::App& app, const Catalogues& catalogues, const std::string& shell);

// Returns the manual page convoy(1), in the macros of man(7).
std::string man_page(const CLI::App& app);

// --- The command line as data, for the two functions above ---

struct ArgumentText {
  std::vector<std::string> names;  // "--set"; empty for a positional argument
  std::string metavar;             // "KEY=VALUE"; "" for a flag
  std::string help;
  std::vector<std::string> choices;  // if only these are valid
  bool required = false;
  bool flag = false;
};
struct CommandText {
  std::string name, help, footer;
  std::vector<ArgumentText> arguments;
};
std::vector<CommandText> command_texts(const CLI::App& app);

}  // namespace convoy
