// The command line as data, the manual page, and the scripts that complete a command line.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "core/base/text.h"
#include "core/base/version.h"
#include "core/config/run_config.h"
#include "launch/generate/generate.h"

namespace convoy {

// --- The command line as data, and the manual page ---

namespace {

// CLI11 appends the valid words to the name of a type: "S:{all,training}".
std::vector<std::string> choices_in(const std::string& type) {
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return split(type.substr(begin + 1, end - begin - 1), ',');
}

ArgumentText argument_text(const CLI::Option& option) {
  ArgumentText text;
  const std::string type = option.get_type_name();
  text.choices = choices_in(type);
  text.help = option.get_description();
  text.required = option.get_required();
  if (option.get_positional()) {
    text.metavar = option.get_name(true);
    return text;
  }
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  text.flag = option.get_items_expected_max() == 0;
  if (!text.flag) text.metavar = text.choices.empty() ? type.substr(0, type.find(':')) : join(text.choices, "|");
  return text;
}

// Text for troff: no character of it is an instruction.
std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '`')
      out += "\\(ga";
    else if (c == '\'')
      out += "\\(aq";
    else if (c == '^')
      out += "\\(ha";
    else if (c == '~')
      out += "\\(ti";
    else
      out += c;
  }
  return out;
}

void add_argument(const ArgumentText& argument, std::ostream& out) {
  out << ".TP\n";
  if (argument.names.empty()) {
    out << "\\fI" << escaped(argument.metavar) << "\\fR\n";
  } else {
    std::vector<std::string> names;
    for (const std::string& name : argument.names) names.push_back("\\fB" + escaped(name) + "\\fR");
    out << join(names, ", ") << (argument.flag ? "" : " \\fI" + escaped(argument.metavar) + "\\fR") << "\n";
  }
  out << escaped(argument.help) << (argument.required && !argument.names.empty() ? " (required)" : "") << "\n";
}

void add_command(const CommandText& command, std::ostream& out) {
  std::string line = "convoy " + command.name;
  bool options = false;
  for (const ArgumentText& argument : command.arguments) {
    const std::string text = argument.names.empty()
                                 ? argument.metavar
                                 : argument.names.back() + (argument.flag ? "" : " " + argument.metavar);
    if (argument.required)
      line += " " + text;
    else if (argument.names.empty())
      line += " [" + text + "]";
    else
      options = true;
  }
  out << ".SS " << escaped(line + (options ? " [options]" : "")) << "\n" << escaped(command.help) << ".\n";
  for (const ArgumentText& argument : command.arguments)
    if (argument.names.empty() || !begins_with(argument.names.back(), "--help")) add_argument(argument, out);
  if (command.footer.empty()) return;
  out << ".PP\n.nf\n" << escaped(command.footer.substr(command.footer.find_first_not_of('\n'))) << "\n.fi\n";
}

}  // namespace

std::vector<CommandText> command_texts(const CLI::App& app) {
  std::vector<CommandText> commands;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    CommandText command;
    command.name = each->get_name();
    command.help = each->get_description();
    command.footer = each->get_footer();
    while (!command.footer.empty() && command.footer.back() == '\n') command.footer.pop_back();
    for (const CLI::Option* option : each->get_options()) command.arguments.push_back(argument_text(*option));
    commands.push_back(std::move(command));
  }
  std::sort(commands.begin(), commands.end(),
            [](const CommandText& a, const CommandText& b) { return a.name < b.name; });
  return commands;
}

std::string man_page(const CLI::App& app) {
  std::ostringstream out;
  out << ".\\\" Made by `convoy list --man`.\n.TH CONVOY 1 \"\" \"convoy " << escaped(version)
      << "\" \"User Commands\"\n.SH NAME\nconvoy \\- distributed training on LibTorch, configured by a YAML file\n"
      << ".SH SYNOPSIS\n\\fBconvoy\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR ...]\n.br\n"
      << "\\fBconvoy\\fR \\fBrun\\fR \\fICONFIG\\fR [\\fIoptions\\fR]\n"
      << ".SH DESCRIPTION\nconvoy reads a YAML file, checks it, plans the run, and starts and supervises its ranks. "
         "The file names a model, a data set, an optimizer and a strategy. \\fBconvoy list\\fR prints every key and "
         "name, and \\fBconvoy init\\fR writes a file for your data.\n.SH COMMANDS\n";
  for (const CommandText& command : command_texts(app)) add_command(command, out);
  out << ".SH FILES\n.TP\n\\fIruns/NAME\\fR\nRun folder: config.yaml, summary.json, metrics.jsonl, logs and "
         "checkpoints.\n"
      << ".SH SEE ALSO\n.BR mpirun (1),\n.BR srun (1)\n";
  return out.str();
}

// --- Completion scripts ---
//
// The lists in them are made from the command line and the options; the rest of each script is the same in every build.

namespace {

struct Assignments {
  std::vector<std::string> keys;    // "train.epochs="
  std::vector<std::string> values;  // "device=cpu"
};

void add_unique(std::vector<std::string>& all, const std::string& text) {
  if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
}

void add_options(const std::vector<Option>& options, const std::string& path, const Catalogues& catalogues,
                 Assignments& all) {
  for (const Option& option : options) {
    const std::string key = path.empty() ? option.name : path + "." + option.name;
    if (option.type == OptionType::section) {
      add_options(option.options, key, catalogues, all);
      continue;
    }
    const bool component = option.type == OptionType::component;
    const std::string assigned = component ? key + ".name=" : key + "=";
    add_unique(all.keys, assigned);
    std::vector<std::string> valid = option.choices;
    if (option.type == OptionType::boolean) valid = {"true", "false"};
    if (!option.catalogue.empty()) valid = catalogues.names(option.catalogue);
    if (option.also_auto) valid.push_back("auto");
    for (const std::string& word : valid) add_unique(all.values, assigned + word);
    if (!component) continue;
    for (const std::string& name : catalogues.names(option.catalogue))
      add_options(catalogues.find(option.catalogue, name)->options, key, catalogues, all);
    add_options(option.options, key, catalogues, all);
  }
}

Assignments assignments_of(const Catalogues& catalogues) {
  Assignments all;
  add_options(run_options(), "", catalogues, all);
  std::sort(all.keys.begin(), all.keys.end());
  std::sort(all.values.begin(), all.values.end());
  return all;
}

// The journal of a farm has the pipelines that wait too; they have no folder yet.
constexpr const char* names_in_journal = R"sed(sed -n 's/.*"pipeline":"\([^"]*\)".*/\1/p')sed";

// The source of the values of an argument.
enum class Source { nothing, words, keys, folders, files, runs, pipelines };

struct Values {
  Source source = Source::nothing;
  std::vector<std::string> words;
};

Values values_of(const ArgumentText& argument, const Catalogues& catalogues) {
  const std::string& name = argument.metavar;
  if (!argument.choices.empty()) return {Source::words, argument.choices};
  if (begins_with(name, "KEY=")) return {Source::keys, {}};
  if (name == "RUN") return {Source::runs, {}};
  if (name == "PIPELINE") return {Source::pipelines, {}};
  if (name == "DIR") return {Source::folders, {}};
  if (name == "CONFIG" || name == "OUT" || begins_with(name, "FILE")) return {Source::files, {}};
  Values values{Source::words, {}};
  if (name == "KIND") values.words.push_back("config");
  for (const auto& [kind, entries] : catalogues.kinds) {
    if (name == "KIND") values.words.push_back(kind);
    if (name == "NAME" || (name == "MODEL" && kind == "model") || (name == "STRATEGY" && kind == "strategy"))
      for (const Entry& entry : entries) add_unique(values.words, entry.name);
  }
  return values.words.empty() ? Values{} : values;
}

// A word in single quotes, for bash and zsh.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string lines(const std::vector<std::string>& words) { return quoted(join(words, " ")); }

// --- bash ---

std::string bash_values(const Values& values) {
  switch (values.source) {
    case Source::words:
      return "_convoy_words " + lines(values.words);
    case Source::keys:
      return "_convoy_set";
    case Source::folders:
      return "_convoy_files -d";
    case Source::files:
      return "_convoy_files -f";
    case Source::runs:
      return "_convoy_runs";
    case Source::pipelines:
      return "_convoy_pipelines";
    default:
      return ":";
  }
}

constexpr const char* bash_start = R"SCRIPT(# Completion of convoy for bash; made by `convoy list --completion bash`.
_convoy_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$word"); }
# Names from folders and files: unlike `compgen -W`, it expands nothing in them.
_convoy_names() {
  local each shown
  COMPREPLY=()
  for each in "$@"; do
    printf -v shown %q "$each"
    if [[ $each == "$word"* || $shown == "$word"* ]]; then COMPREPLY+=("$shown"); fi
  done
}
_convoy_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$word")
}
_convoy_runs() {
  local found=() each
  for each in runs/*/summary.json; do [ ! -e "$each" ] || found+=("${each%/summary.json}"); done
  _convoy_names "${found[@]}"
  [ ${#COMPREPLY[@]} -gt 0 ] || _convoy_files -d
}
# bash splits words at "=" and replaces only the part after the last one.
_convoy_set() {
  case $word in
    *=*) _convoy_words "$_convoy_values"; COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*=}"}"}") ;;
    *) compopt -o nospace 2>/dev/null; _convoy_words "$_convoy_keys" ;;
  esac
}
)SCRIPT";

constexpr const char* bash_end = R"SCRIPT(
_convoy() {
  local line=${COMP_LINE:0:COMP_POINT} word='' words=() positional=() command previous each skip=''
  read -ra words <<<"$line"
  if [[ $line != *[[:space:]] ]]; then
    word=${words[-1]}
    unset 'words[-1]'
  fi
  COMPREPLY=()
  command=${words[1]:-}
  previous=${words[-1]}
  if [ ${#words[@]} -le 1 ]; then
    _convoy_words "$_convoy_commands"
    return
  fi
  for each in "${words[@]:2}"; do
    if [ -n "$skip" ]; then skip=''
    elif [[ " ${_convoy_valued[$command]:-} " == *" $each "* ]]; then skip=1
    elif [[ $each != -* ]]; then positional+=("$each")
    fi
  done
  if [ -n "$skip" ]; then _convoy_value "$command" "$previous"
  elif [[ $word == -* ]]; then _convoy_words "${_convoy_options[$command]:-}"
  else _convoy_value "$command" "${#positional[@]}"
  fi
}
complete -F _convoy convoy
)SCRIPT";

std::string bash_script(const std::vector<CommandText>& commands, const Catalogues& catalogues) {
  std::ostringstream out;
  const Assignments assignments = assignments_of(catalogues);
  std::vector<std::string> names{"--help", "--help-all", "--version"};
  std::ostringstream options, valued, values;
  for (const CommandText& command : commands) {
    names.push_back(command.name);
    std::vector<std::string> all, with_value;
    int position = 0;
    for (const ArgumentText& argument : command.arguments) {
      const std::string call = bash_values(values_of(argument, catalogues));
      if (argument.names.empty()) {
        values << "    '" << command.name << " " << position++ << "') " << call << " ;;\n";
        continue;
      }
      for (const std::string& name : argument.names) {
        all.push_back(name);
        if (argument.flag) continue;
        with_value.push_back(name);
        values << "    '" << command.name << " " << name << "') " << call << " ;;\n";
      }
    }
    options << "  [" << command.name << "]=" << lines(all) << "\n";
    valued << "  [" << command.name << "]=" << lines(with_value) << "\n";
  }
  out << bash_start << "_convoy_pipelines() {\n  local names\n  mapfile -t names < <(" << names_in_journal
      << " \"${positional[0]%/}/journal.jsonl\" 2>/dev/null | sort -u)\n  _convoy_names "
         "\"${names[@]}\"\n}\n_convoy_commands="
      << lines(names) << "\n_convoy_keys=" << lines(assignments.keys)
      << "\n_convoy_values=" << lines(assignments.values) << "\ndeclare -gA _convoy_options=(\n"
      << options.str() << ")\ndeclare -gA _convoy_valued=(\n"
      << valued.str() << ")\n_convoy_value() {\n  case \"$1 $2\" in\n"
      << values.str() << "  esac\n}" << bash_end;
  return out.str();
}

// --- zsh ---

// Text inside of a specification of _arguments.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (char c : text) out += std::string(c == '[' || c == ']' || c == ':' || c == '\\' ? "\\" : "") + c;
  return out;
}

std::string zsh_values(const Values& values) {
  switch (values.source) {
    case Source::words:
      return "(" + join(values.words, " ") + ")";
    case Source::keys:
      return "_convoy_set";
    case Source::folders:
      return "_files -/";
    case Source::files:
      return "_files";
    case Source::runs:
      return "_convoy_runs";
    case Source::pipelines:
      return "_convoy_pipelines";
    default:
      return " ";
  }
}

std::string zsh_script(const std::vector<CommandText>& commands, const Catalogues& catalogues) {
  std::ostringstream out;
  const Assignments assignments = assignments_of(catalogues);
  out << "#compdef convoy\n# Completion of convoy for zsh; made by `convoy list --completion zsh`.\n"
      << "_convoy_set() {\n  local -a keys values\n  keys=(" << join(assignments.keys, " ") << ")\n  values=("
      << join(assignments.values, " ")
      << ")\n  if [[ $PREFIX == *=* ]]; then compadd -a values; else compadd -S '' -a keys; fi\n}\n"
      << "_convoy_runs() {\n  local -a found\n  found=(runs/*/summary.json(N:h))\n  compadd -a found\n  _files -/\n}\n"
      << "_convoy_pipelines() {\n  local -a found\n  found=(${(f)\"$(" << names_in_journal
      << " ${line[1]%/}/journal.jsonl 2>/dev/null | sort -u)\"})\n  compadd -a found\n}\n"
      << "_convoy() {\n  local -a line state commands\n  commands=(\n";
  for (const CommandText& command : commands) out << "    " << quoted(command.name + ":" + command.help) << "\n";
  out << "  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
      << "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n";
  for (const CommandText& command : commands) {
    out << "    " << command.name << ")\n      _arguments";
    int position = 0;
    for (const ArgumentText& argument : command.arguments) {
      const std::string action = ":" + zsh_text(argument.metavar) + ":" + zsh_values(values_of(argument, catalogues));
      if (argument.names.empty()) out << " \\\n        " << quoted(str(++position, action));
      for (const std::string& name : argument.names)
        out << " \\\n        "
            << quoted(str("*", name, "[", zsh_text(argument.help), "]", argument.flag ? "" : action));
    }
    out << " ;;\n";
  }
  out << "  esac\n}\nif [ \"$funcstack[1]\" = _convoy ]; then _convoy \"$@\"; else compdef _convoy convoy; fi\n";
  return out.str();
}

// --- fish ---

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += std::string(c == '\'' || c == '\\' ? "\\" : "") + c;
  return out + "'";
}

// " -x -a …": the values, or "" for file names.
std::string fish_values(const Values& values) {
  switch (values.source) {
    case Source::words:
      return " -x -a " + fish_quoted(join(values.words, " "));
    case Source::keys:
      return " -x -a '(__convoy_set)'";
    case Source::folders:
      return " -x -a '(__fish_complete_directories)'";
    case Source::files:
      return " -r -F";
    case Source::runs:
      return " -x -a '(__convoy_runs)'";
    case Source::pipelines:
      return " -x -a '(__convoy_pipelines)'";
    default:
      return " -x";
  }
}

std::string fish_script(const std::vector<CommandText>& commands, const Catalogues& catalogues) {
  std::ostringstream out;
  const Assignments assignments = assignments_of(catalogues);
  out << "# Completion of convoy for fish; made by `convoy list --completion fish`.\n"
      << "function __convoy_set\n    printf '%s\\n' " << join(assignments.keys, " ") << "\n    printf '%s\\n' "
      << join(assignments.values, " ") << "\nend\n"
      << "function __convoy_runs\n    for each in runs/*/summary.json\n        string replace /summary.json '' $each\n"
      << "    end\n    __fish_complete_directories\nend\n"
      << "function __convoy_pipelines\n    set -l words (commandline -opc)\n"
      << "    " << names_in_journal << " (string trim -r -c / $words[3])/journal.jsonl 2>/dev/null | sort -u\nend\n"
      << "function __convoy_positional\n    set -l words (commandline -opc)\n"
      << "    test (count $words) -eq (math 2 + $argv[2]); and test $words[2] = $argv[1]\nend\n"
      << "complete -c convoy -f\n";
  for (const CommandText& command : commands) {
    out << "complete -c convoy -n __fish_use_subcommand -a " << command.name << " -d " << fish_quoted(command.help)
        << "\n";
    int position = 0;
    for (const ArgumentText& argument : command.arguments) {
      const std::string values = fish_values(values_of(argument, catalogues));
      if (argument.names.empty()) {
        const std::string where = str("'__convoy_positional ", command.name, " ", position++, "'");
        if (values != " -x") out << "complete -c convoy -n " << where << values << "\n";
        continue;
      }
      out << "complete -c convoy -n '__fish_seen_subcommand_from " << command.name << "'";
      for (const std::string& name : argument.names)
        out << (name[1] == '-' ? " -l " + name.substr(2) : " -s " + name.substr(1));
      out << (argument.flag ? "" : values) << " -d " << fish_quoted(argument.help) << "\n";
    }
  }
  return out.str();
}

}  // namespace

std::string completion_script(const CLI::App& app, const Catalogues& catalogues, const std::string& shell) {
  const std::vector<CommandText> commands = command_texts(app);
  if (shell == "zsh") return zsh_script(commands, catalogues);
  return shell == "fish" ? fish_script(commands, catalogues) : bash_script(commands, catalogues);
}

}  // namespace convoy
