// The pages about options: docs/config.md, `convoy run --help` and `convoy list`.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <sstream>
#include <vector>

#include "core/config/option_reader.h"
#include "launch/cli/commands.h"
#include "launch/generate/generate.h"

namespace convoy {

// --- Examples of the page: a test reads each of them in place of the same keys of a complete file ---

const std::map<std::string, std::string>& reference_examples() {
  static const std::map<std::string, std::string> examples{
      {"file", R"(name: digits
seed: 1
device: cpu
model: {name: mlp, hidden: [64, 64]}
data: {name: fashion_mnist}
optimizer: {name: adam, lr: 1.0e-3}
strategy: ddp
train:
  epochs: 2
  batch: {global: 128}
  evaluate_every: 1 epoch
  checkpoint_every: 500 steps
launch: {ranks: 2, collective: 5 min}
)"},
      {"train", R"(train:
  max_steps: 5000
  batch: {per_rank: 64}
  evaluate_every: 500 steps
  keep_best: {metric: accuracy}
  early_stop: {metric: accuracy, patience: 5}
)"},
      {"launch", R"(launch:
  ranks: 4
  cores_per_rank: 2
  collective: 90s
  max_restarts: 3
)"},
      {"log", "log: {level: warning, histograms: 500, prometheus: \"/var/lib/node_exporter/{name}.prom\"}\n"},
      {"profile", "profile: {steps: 10-12}\n"},

      {"backend: local", "backend: local\n"},
      {"backend: gloo", "backend: gloo\n"},
      {"backend: mpi", "backend: mpi\n"},
      {"backend: nccl", "backend: nccl\ndevice: cuda\n"},

      {"data: fashion_mnist", "data: {name: fashion_mnist, bytes: true}\n"},
      {"data: images", "data: {name: images, path: pictures, height: 64, width: 64, transforms: [{name: flip}]}\n"},
      {"data: interactions", R"(data:
  name: interactions
  path: clicks.csv
  columns: {user: visitor, item: page, time: at, context: [hour]}
  negatives: 4
)"},
      {"data: synthetic", "data: {name: synthetic, rows: 1000, features: [16], classes: 4}\n"},
      {"data: table", "data: {name: table, path: leaves.csv, target: kind, evaluate: {fraction: 0.2}}\n"},
      {"data: text", "data: {name: text, path: my.txt, length: 64}\n"},

      {"loss: bce", "loss: {name: bce, label_smoothing: 0.1}\n"},
      {"loss: bpr", "loss: bpr\n"},
      {"loss: cross_entropy", "loss: {name: cross_entropy, ignore: 0}\n"},
      {"loss: mse", "loss: mse\n"},

      {"model: convnet", "model: {name: convnet, channels: [32, 64], hidden: 128}\n"},
      {"model: gpt", "model: {name: gpt, layers: 4, heads: 8, dim: 256, positions: rotary}\n"},
      {"model: llama", "model: {name: llama, layers: 4, heads: 8, kv_heads: 4, dim: 256}\n"},
      {"model: mlp", "model: {name: mlp, hidden: [64, 64], activation: gelu, dropout: 0.1}\n"},
      {"model: ncf", "model: {name: ncf, gmf_dim: 8, mlp_dim: 32, hidden: [32, 16, 8], rows: true}\n"},
      {"model: resnet", "model: {name: resnet, shape: cifar, depth: 20}\n"},

      {"optimizer: adagrad", "optimizer: {name: adagrad, lr: 1.0e-2}\n"},
      {"optimizer: adam", "optimizer: {name: adam, lr: 1.0e-3, betas: [0.9, 0.99]}\n"},
      {"optimizer: adamw", R"(optimizer:
  name: adamw
  lr: 3.0e-4
  weight_decay: 0.1
  clip_norm: 1
  groups: [{match: bias, weight_decay: 0}]
)"},
      {"optimizer: sgd", "optimizer: {name: sgd, lr: 0.1, momentum: 0.9, nesterov: true}\n"},

      {"schedule: constant", "optimizer: {name: sgd, lr: 0.1, schedule: {name: constant, warmup: 100 steps}}\n"},
      {"schedule: cosine", "optimizer: {name: sgd, lr: 0.1, schedule: {name: cosine, warmup: 1 epoch, final: 0.1}}\n"},
      {"schedule: linear", "optimizer: {name: sgd, lr: 0.1, schedule: linear}\n"},
      {"schedule: step", "optimizer: {name: sgd, lr: 0.1, schedule: {name: step, every: 2 epochs, factor: 0.5}}\n"},

      {"strategy: data_parallel", "strategy: {name: data_parallel, devices: [\"cores:0\", \"cores:1\"]}\n"},
      {"strategy: ddp", R"(strategy:
  name: ddp
  sync: {what: parameters, every: 8}
)"},
      {"strategy: ensemble", R"(strategy:
  name: ensemble
  members: 10
  samples: bootstrap
  lr: {from: 1.0e-4, to: 1.0e-2, scale: log}
)"},
      {"strategy: fsdp", "strategy: {name: fsdp, shard: parameters, recompute: blocks}\n"},
      {"strategy: hybrid",
       "strategy: {name: hybrid, mesh: {data: {degree: 2, how: fsdp}, pipeline: 2}, micro_batches: 4}\n"},
      {"strategy: independent", R"(strategy:
  name: independent
  cores: 1
  grid: {optimizer.lr: [1.0e-3, 1.0e-2], seed: [1, 2]}
  names: "lr{optimizer.lr}-seed{seed}"
  metric: accuracy
)"},
      {"strategy: model_parallel",
       "strategy: {name: model_parallel, devices: [\"cuda:0\", \"cuda:1\"], micro_batches: 4}\n"},
      {"strategy: pipeline", "strategy: {name: pipeline, schedule: 1f1b, micro_batches: 8}\nlaunch: {ranks: 2}\n"},
      {"strategy: single", "strategy: {name: single, micro_batches: 4}\n"},
      {"strategy: tensor_parallel", "strategy: tensor_parallel\nlaunch: {ranks: 2}\n"},

      {"transform: flip", "data: {name: fashion_mnist, transforms: [{name: flip, p: 0.5}]}\n"},
      {"transform: noise", "data: {name: fashion_mnist, transforms: [{name: noise, deviation: 0.1}]}\n"},
      {"transform: normalise",
       "data: {name: fashion_mnist, transforms: [{name: normalise, mean: [0.286], deviation: [0.353]}]}\n"},
      {"transform: shift", "data: {name: fashion_mnist, transforms: [{name: shift, pixels: 2}]}\n"},
  };
  return examples;
}

// --- The page, and `convoy run --help` ---

namespace {

const char* const introduction = R"(# Configuration

<!-- Made by `convoy list --markdown > docs/config.md` from the options that check the file; a test compares both. -->

A run is one YAML file: `convoy run FILE`. convoy reads it strictly: it refuses unknown, duplicate, mistyped and
contradictory keys, with file, line, column and the nearest valid key ([errors.md](errors.md)). The run folder keeps
the file with every default filled in.

- **Components** (model, data, loss, optimizer, strategy, …) are maps with a `name` from a catalogue and the options of
  that entry. `strategy: ddp` is short for `strategy: {name: ddp}`. Examples below show parts of a file.
- **Durations** are seconds, or a number with a unit: `90s`, `1.5 min`, `2h`. **Sizes** are bytes, or `512 MiB`, `2GB`.
  **Intervals** are `100 steps`, `1 epoch` or `never`.
- **Integers** are written in digits, without leading zeros, points or exponents. Numbers may be `1`, `1.0` or `1e-3`.
  Booleans are only `true` and `false`.
- **`${VAR}`** in a value becomes the value of the environment variable. Between `{ }` or `[ ]` put it in quotes. `$${`
  is a literal `${`.
- **`--set KEY=VALUE`** changes a key: `--set train.batch.global=512`, `--set data.transforms.0.name=flip`. VALUE is
  YAML, so `[1, 2]` and `{a: 1}` work. The last `--set` of a key wins. `--set strategy.name=X` may name another
  component: then convoy drops the keys of the file that X does not have, with a warning. Keys from `--set` must be
  valid.
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
  if (option.type == OptionType::bytes) return text;  // its limits are no round numbers
  if (!range_text(option).empty()) text += ", " + range_text(option);
  if (!option.unit.empty()) text += " (" + option.unit + ")";
  return text;
}

std::string code(const std::string& text) { return "`" + text + "`"; }

bool same_option(const Option& a, const Option& b) {
  if (a.name != b.name || kind_cell(a) != kind_cell(b) || a.help != b.help) return false;
  const std::vector<Option>*x = inner_options(a), *y = inner_options(b);
  if (x == nullptr || y == nullptr) return x == y;
  return std::equal(x->begin(), x->end(), y->begin(), y->end(), same_option);
}

// A list or section may have options of the map that contains it. The table only names these in the row of the list.
// `more`: text of a last column; null: the table has none.
void add_rows(const std::vector<Option>& options, const std::string& path, std::ostream& out,
              const std::string* more = nullptr) {
  for (const Option& option : options) {
    const std::string key = path.empty() || option.name.empty() ? path + option.name : path + "." + option.name;
    const std::string fallback = option.required                    ? "required"
                                 : option.fallback.json().is_null() ? ""
                                                                    : code(default_text(option));
    std::vector<Option> inner;
    std::vector<std::string> repeated;
    if (const std::vector<Option>* all = inner_options(option)) {
      for (const Option& one : *all) {
        const bool known =
            std::any_of(options.begin(), options.end(), [&](const Option& o) { return same_option(o, one); });
        if (known)
          repeated.push_back(code(one.name));
        else
          inner.push_back(one);
      }
    }
    const bool list = option.type == OptionType::list;
    const bool map = option.type == OptionType::map;
    const std::string also = repeated.empty() ? ""
                                              : str(list ? "; each" : "; it", " also takes ", join(repeated, ", "),
                                                    " of ", path.empty() ? "this table" : code(path));
    out << "| `" << cell(key) << "` | " << cell(kind_cell(option)) << " | " << cell(fallback) << " | "
        << cell(option.help + also) << " |" << (more != nullptr ? " " + *more + " |" : "") << "\n";
    const std::string blank;
    add_rows(inner, key + (list ? ".N" : map ? ".NAME" : ""), out, more != nullptr ? &blank : nullptr);
  }
}

constexpr const char* table_head = "| key | value | default | meaning |";

void add_table(const std::vector<Option>& options, std::ostream& out) {
  out << table_head << "\n|---|---|---|---|\n";
  add_rows(options, "", out);
  out << "\n";
}

void add_example(const std::string& section, std::ostream& out) {
  const auto found = reference_examples().find(section);
  if (found != reference_examples().end()) out << "```yaml\n" << found->second << "```\n\n";
}

// An option that several entries of a kind have, with equal descriptions.
struct SharedOption {
  Option option;
  std::vector<std::string> entries;
};

std::vector<SharedOption> shared_options(const std::vector<Entry>& entries) {
  std::vector<SharedOption> all;
  for (const Entry& entry : entries) {
    for (const Option& option : entry.options) {
      const auto known = std::find_if(all.begin(), all.end(), [&](const SharedOption& one) {
        return same_option(one.option, option) && one.option.fallback.json() == option.fallback.json() &&
               one.option.required == option.required;
      });
      if (known == all.end())
        all.push_back({option, {entry.name}});
      else
        known->entries.push_back(entry.name);
    }
  }
  all.erase(std::remove_if(all.begin(), all.end(), [](const SharedOption& one) { return one.entries.size() < 2; }),
            all.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const SharedOption& a, const SharedOption& b) { return a.option.name < b.option.name; });
  return all;
}

void add_entry(const std::string& kind, const Entry& entry, const std::vector<SharedOption>& shared,
               std::ostream& out) {
  out << "### " << kind << ": " << entry.name << "\n\n" << cell(entry.help) << "\n\n";
  add_example(kind + ": " + entry.name, out);
  std::vector<Option> own = entry.options;
  std::vector<std::string> names;
  for (const SharedOption& one : shared) {
    if (std::find(one.entries.begin(), one.entries.end(), entry.name) == one.entries.end()) continue;
    names.push_back(code(one.option.name));
    own.erase(std::find_if(own.begin(), own.end(), [&](const Option& o) { return o.name == one.option.name; }));
  }
  if (!own.empty()) add_table(own, out);
  if (!names.empty())
    out << (own.empty() ? "Options: " : "Also: ") << join(names, ", ") << " ([shared](#" << kind
        << "-shared-options)).\n\n";
  if (entry.options.empty()) out << "No options.\n\n";
}

void add_shared(const std::string& kind, const std::vector<SharedOption>& shared, std::ostream& out) {
  if (shared.empty()) return;
  out << "### " << kind << ": shared options\n\nOptions of more than one " << kind << ".\n\n"
      << table_head << " of |\n|---|---|---|---|---|\n";
  for (const SharedOption& one : shared) {
    const std::string entries = join(one.entries, ", ");
    add_rows({one.option}, "", out, &entries);
  }
  out << "\n";
}

}  // namespace

std::string default_text(const Option& option) {
  if (option.fallback.json().is_string()) {
    const std::string text = option.fallback.json().get<std::string>();
    return text.empty() ? "\"\"" : text;
  }
  if (option.fallback.json().is_number_float()) {
    const auto value = option.fallback.json().get<double>();
    return std::floor(value) == value && std::fabs(value) < 1e15 ? str(static_cast<int64_t>(value))
                                                                 : option.fallback.json().dump();
  }
  // {key: value} as in YAML, on one line.
  if (!option.fallback.json().is_object()) return option.fallback.json().dump();
  std::string yaml = to_yaml({{"value", option.fallback.json()}});
  if (yaml.find('\n') + 1 == yaml.size()) return yaml.substr(7, yaml.size() - 8);
  return option.fallback.json().dump();
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
  std::vector<std::string> links{"[Keys of the file](#keys-of-the-file)"};
  for (const auto& kind : catalogues.kinds) links.push_back("[" + kind.first + "](#" + kind.first + ")");
  out << introduction << join(links, " · ") << "\n\n## Keys of the file\n\n";
  add_example("file", out);
  add_table(run_options(), out);
  for (const Option& option : run_options()) {
    if (option.type != OptionType::section) continue;
    out << "Example of " << code(option.name) << ":\n\n";
    add_example(option.name, out);
  }
  for (const auto& [kind, entries] : catalogues.kinds) {
    out << "## " << kind << "\n\n";
    const std::vector<Option> common = common_options(kind);
    if (!common.empty()) {
      out << "Every entry has these options in addition to its own:\n\n";
      add_table(common, out);
    }
    const std::vector<SharedOption> shared = shared_options(entries);
    for (const Entry& entry : entries) add_entry(kind, entry, shared, out);
    add_shared(kind, shared, out);
  }
  std::string page = out.str();
  page.pop_back();  // one newline at the end
  return page;
}

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
  throw Error(Failure::command_line, "convoy: unknown command '", word, "'; ",
              near.empty() ? "valid are " + join(commands, ", ") + "." : "did you mean " + near + "?",
              " Type `convoy --help`");
}

// --- `convoy list`: plain text for a terminal ---

namespace {

constexpr const char* file_kind = "config";

// "integer, at least 1, default 8 rows"
std::string traits_of(const Option& option) {
  std::vector<std::string> traits{type_text(option)};
  if (!range_text(option).empty()) traits.push_back(range_text(option));
  if (!option.unit.empty()) traits.push_back("in " + option.unit);
  if (option.required) traits.push_back("required");
  if (!option.fallback.json().is_null()) traits.push_back("default " + default_text(option));
  return join(traits, ", ");
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
  throw Error(Failure::command_line, "convoy list: unknown ", what, " '", word, "'; ",
              near.empty() ? "valid are " + join(valid, ", ") : "did you mean " + near + "?");
}

std::string plural_of(const std::string& word) {
  if (word.back() == 'y') return word.substr(0, word.size() - 1) + "ies";
  return word + (word.back() == 's' ? "es" : "s");
}

// Turns "strategies" into the kind "strategy".
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
  if (request.json_schema) {
    out << json_schema(catalogues).dump(1) << '\n';
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
