// The reference page.
#include "launch/commands/reference_page.h"

#include <cmath>
#include <sstream>

#include "core/config/option_reader.h"

namespace convoy {
namespace {

const char* const introduction = R"(# Configuration

<!-- Made by `convoy list --markdown > docs/config.md` from the descriptions that also check the file; a test compares. -->

A run is one YAML file: `convoy run FILE`. The file is read strictly. Unknown, duplicate, mistyped and contradictory keys
end with the file, line, column and key and the nearest valid one; [errors.md](errors.md) lists them all. The run folder
keeps the file with every default filled in.

- **Components** (model, data, loss, optimizer, strategy, …) are maps with a `name` from a catalogue and the options of
  what bears it. `strategy: ddp` is short for `strategy: {name: ddp}`.
- **Durations** are seconds, or a number with a unit: `90s`, `1.5 min`, `2h`. **Sizes** are bytes, or `512 MiB`, `2GB`.
  **Intervals** are `100 steps`, `1 epoch` or `never`.
- **Integers** are written in digits, without leading zeros, points or exponents. Numbers may be `1`, `1.0` or `1e-3`.
  Booleans are `true` and `false` and nothing else.
- **`${VAR}`** in a value is replaced from the environment; between `{ }` or `[ ]` put it in quotes; `$${` stands for a
  literal `${`.
- **`--set KEY=VALUE`** changes a key: `--set train.batch.global=512`, `--set data.transforms.0.name=flip`. VALUE is
  YAML, so `[1, 2]` and `{a: 1}` work. Later ones win. When `--set strategy.name=X` names another component, keys of the
  file that X does not take are left out with a warning; keys from `--set` must be valid.
- Keys are plain names. YAML's tags, merge keys, second documents and tabs as indentation are refused.

)";

std::string cell(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string kind_cell(const Option& option) {
  std::string text = type_text(option);
  if (!range_text(option).empty()) text += ", " + range_text(option);
  if (!option.unit.empty()) text += " (" + option.unit + ")";
  return text;
}

void add_rows(const std::vector<Option>& options, const std::string& path, std::ostream& out) {
  for (const Option& option : options) {
    std::string key = path;
    if (!option.name.empty()) key += (path.empty() ? "" : ".") + option.name;
    const std::string fallback = option.required             ? "required"
                                 : option.fallback.is_null() ? ""
                                                             : "`" + default_text(option) + "`";
    out << "| `" << cell(key) << "` | " << cell(kind_cell(option)) << " | " << cell(fallback) << " | "
        << cell(option.help) << " |\n";
    if (const std::vector<Option>* inner = inner_options(option)) {
      const bool list = option.type == OptionType::list;
      const bool map = option.type == OptionType::map;
      add_rows(*inner, key + (list ? ".N" : map ? ".NAME" : ""), out);
    }
  }
}

void add_table(const std::vector<Option>& options, std::ostream& out) {
  if (options.empty()) {
    out << "No options.\n\n";
    return;
  }
  out << "| key | value | default | meaning |\n|---|---|---|---|\n";
  add_rows(options, "", out);
  out << "\n";
}

}  // namespace

std::string default_text(const Option& option) {
  if (option.fallback.is_string()) {
    const std::string text = option.fallback.get<std::string>();
    return text.empty() ? "\"\"" : text;
  }
  if (option.fallback.is_number_float()) {
    const auto value = option.fallback.get<double>();
    return std::floor(value) == value && std::fabs(value) < 1e15 ? str(static_cast<int64_t>(value))
                                                                 : option.fallback.dump();
  }
  // {key: value} as to_yaml would write it, on one line.
  if (!option.fallback.is_object()) return option.fallback.dump();
  std::string yaml = to_yaml({{"value", option.fallback}});
  if (yaml.find('\n') + 1 == yaml.size()) return yaml.substr(7, yaml.size() - 8);
  return option.fallback.dump();
}

const std::vector<Option>* inner_options(const Option& option) {
  if (option.type == OptionType::section) return &option.options;
  if ((option.type == OptionType::list || option.type == OptionType::map) && option.options.size() == 1) {
    return inner_options(option.options.front());
  }
  return nullptr;
}

std::vector<Option> common_options(const std::string& kind) {
  for (const Option& option : run_options()) {
    if (option.type == OptionType::component && option.catalogue == kind) return option.options;
  }
  return {};
}

std::string reference_page(const Catalogues& catalogues) {
  std::ostringstream out;
  out << introduction << "## Keys of the file\n\n";
  add_table(run_options(), out);
  for (const auto& kind : catalogues.kinds) {
    out << "## " << kind.first << "\n\n";
    const std::vector<Option> common = common_options(kind.first);
    if (!common.empty()) {
      out << "Each of them takes, beside its own options:\n\n";
      add_table(common, out);
    }
    for (const Entry& entry : kind.second) {
      out << "### " << kind.first << ": " << entry.name << "\n\n" << cell(entry.help) << "\n\n";
      add_table(entry.options, out);
    }
  }
  std::string page = out.str();
  page.pop_back();  // one newline at the end
  return page;
}

}  // namespace convoy
