// `convoy list`: plain text for a terminal.
#include "launch/commands/list.h"

#include <algorithm>
#include <ostream>
#include <vector>

#include "core/config/option_reader.h"
#include "launch/commands/reference_page.h"

namespace convoy {
namespace {

constexpr const char* file_kind = "config";

// "integer, at least 1, default 8 rows"
std::string traits_of(const Option& option) {
  std::vector<std::string> parts{type_text(option)};
  if (!range_text(option).empty()) parts.push_back(range_text(option));
  if (!option.unit.empty()) parts.push_back("in " + option.unit);
  if (option.required) parts.push_back("required");
  if (!option.fallback.is_null()) parts.push_back("default " + default_text(option));
  return join(parts, ", ");
}

size_t width_of(const std::vector<std::string>& names) {
  size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  return width;
}

void print_options(const std::vector<Option>& options, const std::string& indent, std::ostream& out) {
  std::vector<std::string> names;
  for (const Option& option : options) names.push_back(option.name);
  const size_t width = width_of(names);
  for (const Option& option : options) {
    const std::string padding(width - option.name.size() + 2, ' ');
    out << indent << option.name << padding << option.help << "\n";
    out << indent << std::string(width + 2, ' ') << "(" << traits_of(option) << ")\n";
    if (const std::vector<Option>* inner = inner_options(option)) {
      print_options(*inner, indent + "  ", out);
    }
  }
}

void print_entry(const Entry& entry, const std::vector<Option>& common, std::ostream& out) {
  out << entry.name << ": " << entry.help << "\n";
  print_options(entry.options, "  ", out);
  print_options(common, "  ", out);
}

void print_names(const std::string& kind, const std::vector<Entry>& entries, std::ostream& out) {
  out << kind << "\n";
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.push_back(entry.name);
  const size_t width = width_of(names);
  for (const Entry& entry : entries) {
    out << "  " << entry.name << std::string(width - entry.name.size() + 2, ' ') << entry.help << "\n";
  }
}

[[noreturn]] void unknown(const std::string& what, const std::string& word, const std::vector<std::string>& valid) {
  const std::string near = nearest(word, valid);
  throw Error(Failure::command_line,
              str("convoy list: unknown ", what, " '", word, "'; ",
                  near.empty() ? "valid are " + join(valid, ", ") : "did you mean " + near + "?"));
}

std::string plural_of(const std::string& word) {
  if (word.back() == 'y') return word.substr(0, word.size() - 1) + "ies";
  return word + (word.back() == 's' ? "es" : "s");
}

// "strategies" asks for the kind "strategy".
std::string singular_of(const std::string& word, const std::vector<std::string>& kinds) {
  for (const std::string& kind : kinds)
    if (word == plural_of(kind)) return kind;
  return word == "datasets" ? "data" : word;
}

}  // namespace

void list_catalogues(const Catalogues& catalogues, const ListRequest& request, std::ostream& out) {
  if (request.markdown) {
    out << reference_page(catalogues);
    return;
  }
  if (request.kind.empty()) {
    for (const auto& kind : catalogues.kinds) print_names(kind.first, kind.second, out);
    out << "\n`convoy list KIND NAME` shows options, `convoy list " << file_kind << "` the keys of the file.\n";
    return;
  }
  std::vector<std::string> kinds{file_kind};
  for (const auto& kind : catalogues.kinds) kinds.push_back(kind.first);
  const std::string kind = singular_of(request.kind, kinds);
  if (kind == file_kind) {
    print_options(run_options(), "", out);
    return;
  }
  auto found = catalogues.kinds.find(kind);
  if (found == catalogues.kinds.end()) unknown("kind", request.kind, kinds);
  const Entry* wanted = catalogues.find(kind, request.name);
  if (!request.name.empty() && wanted == nullptr) unknown(kind, request.name, catalogues.names(kind));
  for (const Entry& entry : found->second) {
    if (wanted == nullptr || wanted == &entry) print_entry(entry, common_options(kind), out);
  }
}

}  // namespace convoy
