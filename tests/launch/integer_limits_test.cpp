// Sizes near 2^63: every integer that a user can write has a bound, and so have the products of sizes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>

#include "core/base/error.h"
#include "core/config/reader.h"
#include "core/config/run_config.h"
#include "core/data/catalogue/declared_schema.h"
#include "launch/farm/config/farm.h"
#include "launch/prepare/describe.h"
#include "models/catalogue/catalogue.h"
#include "strategies/plans/catalogue.h"
#include "tests/support/one_host.h"

namespace convoy {
namespace {

// Numbers that are not sizes: they key random draws, and overflow is harmless.
const std::set<std::string> any_value{"seed"};
const char* const huge[] = {"9223372036854775807", "4611686018427387904"};

struct Found {
  std::string kind, entry;          // "model", "gpt"; "" and "" for keys of the run itself
  std::vector<std::string> path;    // "evaluate", "users"; a list's items are "[]"
  std::vector<std::string> beside;  // for each key of the path, the required keys next to it: "path: x, "
  Option option;
};

void find(const std::vector<Option>& options, const Found& at, std::vector<Found>& found) {
  for (const Option& option : options) {
    Found here = at;
    here.path.push_back(option.name.empty() ? "[]" : option.name);
    here.beside.emplace_back();
    for (const Option& other : options)
      if (other.required && other.name != option.name) here.beside.back() += other.name + ": x, ";
    here.option = option;
    if (option.type == OptionType::integer || option.type == OptionType::bytes) found.push_back(here);
    if (option.type != OptionType::component) find(option.options, here, found);
  }
}

std::vector<Found> integers() {
  std::vector<Found> found;
  const Catalogues all = all_catalogues();
  for (const auto& [kind, entries] : all.kinds)
    for (const Entry& entry : entries) find(entry.options, {kind, entry.name, {}, {}, {}}, found);
  find(run_options(), {"", "", {}, {}, {}}, found);
  find(queue_options(true), {"farm", "", {}, {}, {}}, found);
  for (const Option& option : run_options())
    if (option.name == "data") find(option.options, {"data", "synthetic", {}, {}, {}}, found);
  return found;
}

std::string key_of(const Found& found) { return str(found.kind, " ", found.entry, " ", join(found.path, ".")); }

TEST(Sizes, EveryIntegerHasABound) {
  const std::vector<Found> all = integers();
  EXPECT_GT(all.size(), 60u);
  for (const Found& found : all) {
    if (any_value.count(found.path.back()) != 0) continue;
    EXPECT_LE(found.option.maximum.value_or(HUGE_VAL), 0x1p60) << key_of(found) << ": give it at_most(…)";
    EXPECT_TRUE(found.option.minimum.has_value()) << key_of(found) << ": give it at_least(…)";
  }
}

// Returns `key: value` with sections around it.
std::string written(const Found& found, std::string text) {
  for (size_t i = found.path.size(); i-- > 0;) {
    if (found.path[i] == "[]")
      text = "[" + text + "]";
    else
      text = found.beside[i] + found.path[i] + ": " + text;
    if (i > 0 && found.path[i] != "[]") text = "{" + text + "}";
  }
  return text;
}

class File {
 public:
  explicit File(const std::string& text) : path_(str("/tmp/convoy-sizes-", getpid(), ".yaml")) {
    std::ofstream(path_) << text;
  }
  ~File() { remove(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::map<std::string, std::string> sections_with(const std::string& kind, const std::string& section) {
  std::map<std::string, std::string> sections{{"model", "{name: mlp}"},
                                              {"data", "{name: synthetic}"},
                                              {"optimizer", "{name: adam}"},
                                              {"strategy", "{name: single}"},
                                              {"train", "{batch: {global: 16}}"}};
  sections[kind] = section;
  return sections;
}

// Checks like `convoy` before the start; returns "KEY", or "" if the value is accepted.
std::string refused_size(const std::map<std::string, std::string>& sections, int ranks = 2) {
  std::string text = "name: try\ndevice: cpu\n";
  for (const auto& [name, value] : sections) text += name + ": " + value + "\n";
  const File file(text);
  try {
    const RunConfig config = read_run_tree(read_yaml_file(file.path(), {}), all_catalogues());
    const DeclaredSchema rows = declared_schema(config.data.name, config.data.options);
    check_model_sizes(config.model.name, config.model.options, config.data.options, rows,
                      check_data_sizes(config.data.name, config.data.options));
    const Topology topology = one_host(8);
    PlanRequest request;
    request.ranks = ranks;
    strategy_entry(config.strategy.name).plan(config, topology, request);
  } catch (const ConfigError& error) {
    EXPECT_GT(error.location().column, 0) << error.what();
    return error.key();
  }
  return "";
}

TEST(Sizes, RefuseHugeIntegersAtTheirKey) {
  for (const Found& found : integers()) {
    const bool component = found.kind == "model" || found.kind == "data" || found.kind == "optimizer" ||
                           found.kind == "strategy" || found.kind == "loss";
    if (any_value.count(found.path.back()) != 0 || !component || found.entry == "independent") continue;
    for (const char* value : huge) {
      std::string key = found.kind;
      for (const std::string& name : found.path) key += name == "[]" ? ".0" : "." + name;
      EXPECT_EQ(refused_size(sections_with(found.kind, "{name: " + found.entry + ", " + written(found, value) + "}")),
                key)
          << value;
    }
  }
}

// Their readers check their form.
TEST(Sizes, RefuseHugeIntegersInFreeForm) {
  for (const char* value : huge) {
    const auto strategy = [&](const std::string& keys, const std::string& kind = "strategy") {
      return refused_size(sections_with(kind, keys + value + "}}"));
    };
    EXPECT_EQ(strategy("{name: hybrid, mesh: {data: "), "strategy.mesh.data");
    EXPECT_EQ(strategy("{name: ensemble, samples: {folds: "), "strategy.samples");
    EXPECT_EQ(refused_size(sections_with("strategy", str("{name: pipeline, stages: [1, ", value, "]}"))),
              "strategy.stages.0");
    EXPECT_EQ(refused_size(sections_with("strategy", str("{name: ensemble, members: 3, seed: ", value, "}"))), "")
        << "seeds wrap around";
    EXPECT_EQ(strategy("{name: ensemble, early_stop: {patience: "), "strategy.early_stop.patience");
  }
}

TEST(Sizes, RefuseHugeProductsAtAKey) {
  const auto with = [](const std::string& model, const std::string& data) {
    auto sections = sections_with("model", "{name: " + model + "}");
    sections["data"] = "{name: " + data + "}";
    return refused_size(sections, 1);
  };
  EXPECT_EQ(with("mlp, hidden: [16777216, 16777216]", "synthetic"), "model.hidden.1");
  EXPECT_EQ(with("mlp, hidden: [16777216]", "synthetic, features: [1024, 1024]"), "model.hidden.0");
  EXPECT_EQ(with("mlp", "synthetic, features: [16777216, 16777216]"), "data.features");
  EXPECT_EQ(with("mlp", "synthetic, features: [1024, 1024], classes: 16777216"), "data.classes");
  EXPECT_EQ(with("gpt, dim: 1048576, heads: 1", "synthetic, kind: tokens"), "model.dim");
  EXPECT_EQ(with("gpt, mlp_dim: 16777216, dim: 524288, heads: 1", "synthetic, kind: tokens"), "model.mlp_dim");
  EXPECT_EQ(with("gpt, layers: 10000, dim: 524288, heads: 1", "synthetic, kind: tokens"), "model.layers");
  EXPECT_EQ(with("gpt", "synthetic, kind: tokens, length: 16777216, vocabulary: 16777216"), "data.length");
  EXPECT_EQ(with("gpt", "synthetic, kind: tokens, length: 16777216, rows: 1099511627776"), "data.length");
  EXPECT_EQ(with("ncf, mlp_dim: 1048576", "synthetic, kind: interactions, users: 2000000000"), "model.mlp_dim");
  EXPECT_EQ(with("ncf", "synthetic, kind: interactions, users: 2000000000, rows: 2000000000"), "data.rows");
  EXPECT_EQ(with("ncf", "synthetic, kind: interactions, rows: 2000000000, context: 100000"), "data.context");
  EXPECT_EQ(with("convnet, channels: [65536, 65536], kernel: 31", "synthetic, features: [3, 32, 32]"),
            "model.channels.1");
  EXPECT_EQ(with("gpt, layers: 96, dim: 12288, heads: 96", "synthetic, kind: tokens, vocabulary: 50257, length: 2048"),
            "")
      << "a large model that exists";
}

}  // namespace
}  // namespace convoy
