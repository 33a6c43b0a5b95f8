// The command line as data, and the manual page.
#include <algorithm>
#include <sstream>

#include <CLI/CLI.hpp>

#include "core/base/text.h"
#include "core/base/version.h"
#include "launch/generate/generate.h"

namespace convoy {
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

}  // namespace convoy
