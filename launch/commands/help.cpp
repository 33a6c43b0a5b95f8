#include "launch/commands/help.h"

#include <algorithm>
#include <sstream>

namespace convoy {

std::string configuration_help(const Catalogues& catalogues) {
  size_t width = 0;
  for (const Option& option : run_options()) width = std::max(width, option.name.size());
  std::ostringstream out;
  out << "Keys of CONFIG:\n";
  for (const Option& option : run_options())
    out << "  " << option.name << std::string(width - option.name.size() + 2, ' ') << option.help
        << (option.required ? " (required)" : "") << "\n";
  out << "`convoy list config` shows what is below them, with types, ranges and defaults.\n\nNames:\n";
  width = 0;
  for (const auto& kind : catalogues.kinds) width = std::max(width, kind.first.size());
  for (const auto& kind : catalogues.kinds)
    out << "  " << kind.first << std::string(width - kind.first.size() + 2, ' ')
        << join(catalogues.names(kind.first), ", ") << "\n";
  out << "`convoy list KIND NAME` shows the options of one.\n";
  return out.str();
}

void unknown_command(const std::string& word, const std::vector<std::string>& commands) {
  const std::string near = nearest(word, commands);
  throw Error(Failure::command_line,
              str("convoy: unknown command '", word, "'; ",
                  near.empty() ? "commands are " + join(commands, ", ") : "did you mean " + near + "?",
                  " Type `convoy --help`"));
}

}  // namespace convoy
