// Keys that other keys leave without effect, and components that do not match: each is refused at the written key, with
// its line. Defaults are never refused.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "core/base/error.h"
#include "core/config/reader.h"
#include "core/data/catalogue/catalogue.h"
#include "core/data/catalogue/declared_schema.h"
#include "launch/explain/candidate.h"
#include "launch/prepare/describe.h"
#include "models/catalogue/catalogue.h"
#include "strategies/plans/catalogue.h"
#include "tests/support/one_host.h"

namespace convoy {
namespace {

class Folder {
 public:
  Folder() {
    char pattern[] = "/tmp/convoy-misfits-XXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~Folder() {
    for (auto file = made_.rbegin(); file != made_.rend(); ++file) remove(file->c_str());
    rmdir(path_.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name, const std::string& text) {
    made_.push_back(path_ + "/" + name);
    std::ofstream(made_.back(), std::ios::binary) << text;
    return made_.back();
  }
  std::string folder(const std::string& name) {
    made_.push_back(path_ + "/" + name);
    EXPECT_EQ(mkdir(made_.back().c_str(), 0700), 0);
    return made_.back();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> made_;
};

// A run with each section on a separate line.
struct Sections {
  std::string model = "{name: mlp}";
  std::string data = "{name: synthetic}";
  std::string strategy = "{name: single}";
  std::string more;  // further lines
  int ranks = 0;
};
enum Line { model = 2, data = 3, strategy = 4 };

std::string text_of(const Sections& run) {
  return "name: try\nmodel: " + run.model + "\ndata: " + run.data + "\nstrategy: " + run.strategy +
         "\noptimizer: {name: adam}\ntrain: {batch: {global: 16}}\ndevice: cpu\n" + run.more;
}

// Checks like `convoy`, and returns the error: "KEY in line N", or "".
std::string refused(const Sections& run, const std::vector<std::string>& overrides = {},
                    std::vector<std::string>* warnings = nullptr) {
  Folder folder;
  const Topology topology = one_host(8);
  try {
    const RunConfig config =
        read_run_tree(read_yaml_file(folder.file("run.yaml", text_of(run)), overrides), all_catalogues());
    const DeclaredSchema rows = declared_schema(config.data.name, config.data.options);
    check_model_rows(config.model.name, config.model.options, config.data.options, rows);
    check_transforms(config.data.options, rows);
    check_loss_rows(config.loss.options, config.data.options, rows);
    check_data_files(config.data.name, config.data.options);
    PlanRequest request;
    request.ranks = run.ranks;
    const Plan plan = strategy_entry(config.strategy.name).plan(config, topology, request);
    if (warnings != nullptr) *warnings = plan.warnings;
  } catch (const ConfigError& error) {
    EXPECT_TRUE(error.location().column > 0 || error.location().file.rfind("--set", 0) == 0) << error.what();
    return str(error.key(), " in line ", error.location().line);
  }
  return "";
}

std::string in(Line line, const std::string& key) { return str(key, " in line ", static_cast<int>(line)); }

Sections with_strategy(const std::string& section, int ranks = 2) {
  return {"{name: mlp}", "{name: synthetic}", section, "", ranks};
}
Sections with_model(const std::string& section, const std::string& rows = "{name: synthetic, kind: tokens}") {
  return {section, rows, "{name: single}", "", 0};
}
Sections with_data(const std::string& section, const std::string& chosen = "{name: mlp}") {
  return {chosen, section, "{name: single}", "", 0};
}

TEST(WithoutEffect, RefusesKeysOfAMissingAxis) {
  const auto hybrid = [](const std::string& keys, int ranks = 2) {
    return refused(with_strategy("{name: hybrid, " + keys + "}", ranks));
  };
  EXPECT_EQ(hybrid("mesh: {data: 2}"), "");
  for (const char* key : {"shard: gradients", "reshard_after_forward: true", "units: blocks"})
    EXPECT_EQ(hybrid(str("mesh: {data: 2}, ", key)), in(strategy, "strategy." + std::string(key, strchr(key, ':'))))
        << key;
  for (const char* key : {"bucket_cap_mb: 25", "first_bucket_mb: 1"}) {
    const std::string named = in(strategy, "strategy." + std::string(key, strchr(key, ':')));
    EXPECT_EQ(hybrid(str("mesh: {data: {degree: 2, how: fsdp}}, ", key)), named);
    EXPECT_EQ(hybrid(str("mesh: {data: 1, tensor: 2}, ", key)), named);
    EXPECT_EQ(hybrid(str("mesh: {data: 2}, ", key)), "");
  }
  for (const char* key : {"schedule: 1f1b", "stages: [1, 2]", "virtual: 1"})
    EXPECT_EQ(hybrid(str("mesh: {data: 2}, ", key)), in(strategy, "strategy." + std::string(key, strchr(key, ':'))))
        << key;
  EXPECT_EQ(hybrid("mesh: {pipeline: 2}, schedule: gpipe, stages: [1, 2]"), "");
  EXPECT_EQ(hybrid("mesh: {data: 2}, sequence_parallel: true"), in(strategy, "strategy.sequence_parallel"));
  EXPECT_EQ(hybrid("mesh: {data: 2}, sequence_parallel: false"), "");
  EXPECT_EQ(hybrid("mesh: {data: {degree: 2, how: fsdp}}, shard: optimizer, reshard_after_forward: false"),
            in(strategy, "strategy.reshard_after_forward"));
}

TEST(WithoutEffect, RefusesKeysOfStrategies) {
  EXPECT_EQ(refused(with_strategy("{name: fsdp, shard: optimizer, reshard_after_forward: true}")),
            in(strategy, "strategy.reshard_after_forward"));
  EXPECT_EQ(refused(with_strategy("{name: fsdp, shard: gradients, reshard_after_forward: false}")),
            in(strategy, "strategy.reshard_after_forward"));
  EXPECT_EQ(refused(with_strategy("{name: fsdp, reshard_after_forward: false}")), "");
  EXPECT_EQ(refused(with_strategy("{name: ddp, recompute: [output, hidden.0, output]}")),
            in(strategy, "strategy.recompute.2"));
  EXPECT_EQ(refused(with_strategy("{name: ddp, loss_scale: {growth: 4, initial: 8}}")),
            in(strategy, "strategy.loss_scale.growth"));
  Sections half = with_strategy("{name: ddp, loss_scale: {initial: 8}}");
  half.more = "precision: fp16\n";
  EXPECT_EQ(refused(half), "");
  for (const char* name : {"single", "fsdp", "pipeline", "tensor_parallel", "model_parallel"})
    for (const char* what : {"parameters", "diloco", "gradient"})
      EXPECT_EQ(refused(with_strategy(str("{name: ", name, ", sync: {what: ", what, "}}"),
                                      name == std::string("single") || name == std::string("model_parallel") ? 1 : 2)),
                in(strategy, "strategy.sync.what"));
}

// Synchronisation of replicas.
TEST(WithoutEffect, RefusesKeysOfSynchronisation) {
  const auto sync = [](const std::string& text, const std::string& rest = "") {
    return refused(with_strategy("{name: ddp, sync: {" + text + "}" + rest + "}"));
  };
  for (const char* what : {"parameters", "diloco"}) {
    EXPECT_EQ(sync(str("what: ", what, ", every: 16, start_after: 2, moments: averaged")), "");
    EXPECT_EQ(refused(with_strategy(str("{name: hybrid, mesh: {pipeline: 2}, sync: {what: ", what, "}}"))),
              in(strategy, "strategy.sync.what"));
    EXPECT_EQ(refused(with_strategy(str("{name: hybrid, mesh: {data: 2}, sync: {what: ", what, "}}"))), "");
    EXPECT_EQ(
        refused(with_strategy(str("{name: hybrid, mesh: {data: {degree: 2, how: fsdp}}, sync: {what: ", what, "}}"))),
        in(strategy, "strategy.sync.what"));
  }
  EXPECT_EQ(sync("what: gradient"), in(strategy, "strategy.sync.what"));
  EXPECT_EQ(sync("what: diloco, outer: {lr: 0.5}"), "");
  EXPECT_EQ(sync("what: parameters, outer: {lr: 0.5}"), in(strategy, "strategy.sync.outer.lr"));
  EXPECT_EQ(sync("start_after: 5"), in(strategy, "strategy.sync.start_after"));
  EXPECT_EQ(sync("moments: averaged"), in(strategy, "strategy.sync.moments"));
  EXPECT_EQ(sync("groups: [{match: bias, what: parameters, every: 3}]"), "");
  EXPECT_EQ(sync("groups: [{match: bias, start_after: 3}]"), in(strategy, "strategy.sync.groups.0.start_after"));
  EXPECT_EQ(sync("groups: [{match: '(', what: parameters}]"), in(strategy, "strategy.sync.groups.0.match"));
  EXPECT_EQ(sync("every: 2, groups: [{match: bias, every: 2}, {match: weight, every: 4}]"),
            in(strategy, "strategy.sync.groups.1.every"));
  EXPECT_EQ(sync("what: parameters, every: 16, groups: [{match: bias, every: 4}]"), "");
  EXPECT_EQ(sync("compress: bf16"), "");
  EXPECT_EQ(sync("what: diloco, compress: bf16"), in(strategy, "strategy.sync.compress"));
  EXPECT_EQ(sync("what: diloco, start_after: 9, compress: fp16"), "");
  EXPECT_EQ(refused(with_strategy("{name: hybrid, mesh: {pipeline: 2}, sync: {compress: bf16}}")),
            in(strategy, "strategy.sync.compress"));
}

// One file is tried with several overrides: keys that --set leaves without effect are reported and not refused.
TEST(WithoutEffect, ReportsKeysDisabledBySet) {
  std::vector<std::string> warnings;
  const Sections file = with_strategy("{name: hybrid, mesh: {pipeline: 2}, schedule: gpipe}", 0);
  EXPECT_EQ(refused(file, {"strategy.mesh.pipeline=1"}, &warnings), "");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("strategy.schedule: ignored"), std::string::npos) << warnings[0];
  // It is refused if the key is typed too.
  EXPECT_NE(refused(with_strategy("{name: hybrid, mesh: {data: 2}}"), {"strategy.shard=optimizer"}), "");
  EXPECT_NE(refused(file, {"strategy.mesh.pipeline=1", "strategy.schedule=1f1b"}), "");
}

TEST(WithoutEffect, RefusesKeysOfModelsDataAndOptimizers) {
  EXPECT_EQ(refused(with_model("{name: gpt, mlp_dim: 64, mlp_ratio: 4}")), in(model, "model.mlp_ratio"));
  EXPECT_EQ(refused(with_model("{name: gpt, rotary_base: 100}")), in(model, "model.rotary_base"));
  EXPECT_EQ(refused(with_model("{name: gpt, context: 100, positions: rotary}")), in(model, "model.context"));
  const std::string sequences = "{name: synthetic, kind: tokens, length: 20}";
  EXPECT_EQ(refused(with_model("{name: gpt, context: 19}", sequences)), in(model, "model.context"));
  EXPECT_EQ(refused(with_model("{name: gpt, context: 20}", sequences)), "");
  EXPECT_EQ(refused(with_model("{name: llama, heads: 8, kv_heads: 3}")), in(model, "model.kv_heads"));
  EXPECT_EQ(refused(with_model("{name: llama, heads: 8, dim: 24}")), in(model, "model.dim"));
  EXPECT_EQ(refused(with_model("{name: gpt, rotary_base: 100, positions: rotary}")), "");
  EXPECT_EQ(refused(with_model("{name: mlp, hidden: [], activation: gelu}", "{name: synthetic}")),
            in(model, "model.activation"));
  const std::string pairs = "{name: synthetic, kind: interactions, users: 50}";
  EXPECT_EQ(refused(with_model("{name: ncf, mlp_dim: 0, hidden: [8]}", pairs)), in(model, "model.hidden"));
  EXPECT_EQ(refused(with_model("{name: ncf, mlp_dim: 0}", pairs)), "");

  EXPECT_EQ(refused(with_data("{name: synthetic, kind: regression, classes: 3}")), in(data, "data.classes"));
  EXPECT_EQ(refused(with_data("{name: synthetic, vocabulary: 30}")), in(data, "data.vocabulary"));
  EXPECT_EQ(refused(with_data("{name: synthetic, kind: interactions, evaluate_rows: 3}", "{name: ncf}")),
            in(data, "data.evaluate_rows"));
  EXPECT_EQ(refused(with_data("{name: synthetic, kind: interactions, ranking: full, candidates: 9}", "{name: ncf}")),
            in(data, "data.candidates"));
  const std::string visits = "{name: interactions, path: x.csv, ";
  const Sections several = with_data(visits + "evaluate: {fraction: 0.2}}", "{name: ncf}");
  EXPECT_EQ(refused(several), in(data, "data.evaluate.fraction"));
  EXPECT_EQ(refused(with_data(visits + "holdout: time}", "{name: ncf}")), in(data, "data.holdout"));
  EXPECT_EQ(refused(with_data(visits + "holdout: none, ranking: full}", "{name: ncf}")), in(data, "data.ranking"));
  EXPECT_EQ(refused(with_data(visits + "holdout: none, evaluate: {fraction: 0.2}}", "{name: ncf}")),
            in(data, "data.evaluate.fraction"));
  EXPECT_EQ(refused(with_model("{name: ncf, metrics: [hr, gini]}", "{name: synthetic, kind: interactions}")),
            in(model, "model.metrics.1"));
  EXPECT_EQ(
      refused(with_model("{name: ncf, metrics: [hr, gini]}", "{name: synthetic, kind: interactions, ranking: full}")),
      "");
  EXPECT_EQ(refused(with_data("{name: table, path: x.csv, task: regression, classes: 3}")), in(data, "data.classes"));
  EXPECT_EQ(refused(with_data("{name: table, path: x.csv, target_path: y.npy}")), in(data, "data.target_path"));
  EXPECT_EQ(refused(with_data("{name: table, path: x.csv, target_path: ~, features: ~, weight: ~}")),
            in(data, "data.path"))
      << "null equals an absent key; the file is missing";
  EXPECT_EQ(refused(with_data("{name: table, path: x.npy}")), in(data, "data.path"));

  const Sections groups;
  EXPECT_EQ(refused(groups, {"optimizer.groups=[{match: bias}]"}).rfind("optimizer.groups.0", 0), 0u);
  EXPECT_EQ(refused(groups, {"optimizer.groups=[{match: \"[\", lr: 1.0}]"}).rfind("optimizer.groups.0.match", 0), 0u);
}

TEST(KeysWithoutEffect, RefuseRowsThatTheModelCannotRead) {
  EXPECT_EQ(refused(with_model("{name: gpt}", "{name: synthetic}")), in(model, "model.name"));
  EXPECT_EQ(refused(with_model("{name: ncf}", "{name: synthetic}")), in(model, "model.name"));
  EXPECT_EQ(refused(with_model("{name: mlp}", "{name: synthetic, kind: tokens}")), in(model, "model.name"));
  EXPECT_EQ(refused(with_model("{name: resnet}", "{name: synthetic}")), in(data, "data.features"));
  EXPECT_EQ(refused(with_model("{name: resnet}", "{name: synthetic, features: [32]}")), in(data, "data.features"));
  EXPECT_EQ(refused(with_model("{name: resnet}", "{name: synthetic, kind: regression, features: [3, 8, 8]}")),
            in(model, "model.name"));
  EXPECT_EQ(refused(with_model("{name: convnet, channels: [4, 4, 4]}", "{name: synthetic, features: [3, 4, 4]}")),
            in(model, "model.channels"));
  EXPECT_EQ(refused(with_model("{name: resnet}", "{name: table, path: x.csv}")), in(model, "model.name"));
}

// Columns that the model does not use.
TEST(KeysWithoutEffect, RefuseNumbersForAnNcfWithoutMlp) {
  const auto without_mlp = [](const std::string& rows) {
    return refused(with_model("{name: ncf, mlp_dim: 0}", "{name: " + rows + "}"));
  };
  EXPECT_EQ(without_mlp("synthetic, kind: interactions, context: 2"), in(model, "model.mlp_dim"));
  EXPECT_EQ(without_mlp("interactions, path: x.csv, columns: {context: [hour]}"), in(model, "model.mlp_dim"));
  EXPECT_EQ(without_mlp("interactions, path: x.csv, columns: {item_features: [price]}"), in(model, "model.mlp_dim"));
  EXPECT_EQ(without_mlp("interactions, path: x.csv, user_features: {path: y.csv}"), in(model, "model.mlp_dim"));
  EXPECT_EQ(without_mlp("interactions, path: x.csv, columns: {context: [hour], item_features: [hour]}"),
            in(data, "data.columns.item_features.0"));
  EXPECT_EQ(without_mlp("interactions, path: x.csv, item_features: {columns: [price]}"),
            in(data, "data.item_features.path"));
}

TEST(KeysWithoutEffect, RefuseTransformsAndLosses) {
  const std::string image = "features: [3, 8, 6]";
  const auto transformed = [&](const std::string& rows, const std::string& list) {
    return refused(with_data("{name: synthetic, " + rows + ", transforms: [" + list + "]}"));
  };
  EXPECT_EQ(transformed(image, "{name: shift, pixels: 5}, flip"), "");
  EXPECT_EQ(transformed(image, "flip, {name: shift, pixels: 6}"), in(data, "data.transforms.1.pixels"));
  EXPECT_EQ(transformed("features: [7]", "flip"), in(data, "data.transforms.0.name"));
  EXPECT_EQ(transformed(image, "{name: normalise, mean: [0.1, 0.2]}"), in(data, "data.transforms.0.mean"));
  EXPECT_EQ(transformed(image, "{name: normalise, mean: [0.1, 0.2, 0.3]}"), "");
  const auto lost = [](const std::string& rows, const std::string& loss, const std::string& chosen) {
    Sections run = with_data(rows, chosen);
    run.more = "loss: " + loss + "\n";
    return refused(run);
  };
  EXPECT_EQ(lost("{name: synthetic}", "mse", "{name: mlp}").rfind("loss.name", 0), 0u);
  EXPECT_EQ(lost("{name: synthetic, kind: regression}", "cross_entropy", "{name: mlp}").rfind("loss.name", 0), 0u);
  EXPECT_EQ(lost("{name: synthetic, kind: regression}", "mse", "{name: mlp}"), "");
  EXPECT_EQ(lost("{name: synthetic, kind: interactions, negatives: 0}", "bpr", "{name: ncf}"),
            in(data, "data.negatives"));
}

TEST(KeysWithoutEffect, RefuseSyntheticTablesBeyondMemory) {
  const auto kind = [](const std::string& keys, const std::string& chosen) {
    return refused(with_data("{name: synthetic, " + keys + "}", "{name: " + chosen + "}"));
  };
  EXPECT_EQ(kind("features: [16777216, 128], classes: 512", "mlp"), in(data, "data.features"));
  EXPECT_EQ(kind("kind: interactions, rows: 2000000000, context: 500", "ncf"), in(data, "data.rows"));
  EXPECT_EQ(kind("rows: 1099511627776", "mlp"), "") << "these rows are computed when they are read";
}

TEST(KeysWithoutEffect, RefuseFilesWithTooFewRows) {
  Folder folder;
  const std::string story = folder.file("story.txt", "twelve bytes");
  const auto text = [&](const std::string& more) {
    return refused(with_data("{name: text, path: " + story + more + "}", "{name: gpt}"));
  };
  EXPECT_EQ(text(", length: 11"), "");
  EXPECT_EQ(text(", length: 12"), in(data, "data.length"));
  EXPECT_EQ(text(", length: 4, vocabulary: " + folder.path() + "/none.json"), in(data, "data.vocabulary"));
  EXPECT_EQ(text(", length: 4, unknown: x"), in(data, "data.unknown"));
  EXPECT_EQ(refused(with_data("{name: text, path: " + folder.file("empty", "") + "}", "{name: gpt}")),
            in(data, "data.path"));
  const std::string images = folder.folder("images");
  const std::string classes = folder.folder("images/red");
  const Sections run = with_data("{name: images, path: " + images + "}", "{name: resnet}");
  EXPECT_EQ(refused(run), in(data, "data.path"));
  folder.file("images/red/notes.txt", "none");
  EXPECT_EQ(refused(run), in(data, "data.path"));
  folder.file("images/red/1.PNG", "some");
  EXPECT_EQ(refused(run), "");
  EXPECT_EQ(refused(with_data("{name: fashion_mnist, path: " + images + "}", "{name: convnet}")),
            in(data, "data.path"));
}

std::string npy(const std::string& shape, size_t bytes = 4096) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.resize(118, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + std::string(bytes, '\0');
}

// Sizes from a file's header, before anything is loaded.
TEST(KeysWithoutEffect, CompareFilesWithTransformsAndModels) {
  Folder folder;
  const std::string images = folder.file("images.npy", npy("4, 3, 8, 8")), target = folder.file("y.npy", npy("4,")),
                    flat = folder.file("flat.npy", npy("4, 7"));
  const auto arrays = [&](const std::string& path, const std::string& transforms, const std::string& chosen = "mlp") {
    return refused(
        with_data("{name: table, path: " + path + ", target_path: " + target + ", transforms: [" + transforms + "]}",
                  "{name: " + chosen + "}"));
  };
  EXPECT_EQ(arrays(images, "{name: normalise, mean: [0.1, 0.2]}"), in(data, "data.transforms.0.mean"));
  EXPECT_EQ(arrays(images, "{name: normalise, mean: [0.1, 0.2, 0.3]}"), "");
  EXPECT_EQ(arrays(flat, "flip"), in(data, "data.transforms.0.name"));
  EXPECT_EQ(arrays(images, "{name: shift, pixels: 8}"), in(data, "data.transforms.0.pixels"));
  EXPECT_EQ(arrays(images, "", "convnet, channels: [4, 4, 4, 4]"), in(model, "model.channels"));
  EXPECT_EQ(arrays(flat, "", "resnet"), in(data, "data.path"));
  EXPECT_EQ(refused(with_data("{name: table, path: " + images + ", target_path: " + target +
                              ", evaluate: {path: " + flat + ", target_path: " + target + "}}")),
            in(data, "data.evaluate.path"));

  const std::string csv = folder.file("rows.csv", "a,b,target,c\n1,2,x,3\n");
  const auto columns = [&](const std::string& more) { return refused(with_data("{name: table, path: " + csv + more)); };
  EXPECT_EQ(columns(", transforms: [{name: normalise, mean: [1, 2]}]}"), in(data, "data.transforms.0.mean"));
  EXPECT_EQ(columns(", transforms: [{name: normalise, mean: [1]}]}"), "");

  const std::string tensors = "{\"features\":{\"dtype\":\"F32\",\"shape\":[2,5],\"data_offsets\":[0,40]}}";
  const std::string file =
      folder.file("rows.safetensors", std::string(1, char(tensors.size())) + std::string(7, '\0') + tensors);
  EXPECT_EQ(refused(with_data("{name: table, path: " + file + ", transforms: [shift]}")),
            in(data, "data.transforms.0.name"));

  const std::string head("\0\0\x08\x03\0\0\0\x02\0\0\0\x06\0\0\0\x05", 16), folder_of_idx = folder.folder("idx");
  for (const char* name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"})
    folder.file(str("idx/", name), head);
  const auto fashion = [&](const std::string& transform) {
    return refused(with_data("{name: fashion_mnist, path: " + folder_of_idx + ", transforms: [" + transform + "]}"));
  };
  EXPECT_EQ(fashion("{name: normalise, mean: [0.1, 0.2, 0.3]}"), in(data, "data.transforms.0.mean"));
  EXPECT_EQ(fashion("{name: shift, pixels: 5}"), in(data, "data.transforms.0.pixels"));
  EXPECT_EQ(fashion("{name: shift, pixels: 4}, flip"), "");
}

TEST(KeysWithoutEffect, RefuseFilesThatAreNotText) {
  Folder folder;
  const auto text = [&](const std::string& name, const std::string& bytes) {
    return refused(with_data("{name: text, length: 2, path: " + folder.file(name, bytes) + "}", "{name: gpt}"));
  };
  const std::string path = in(data, "data.path"), nul(1, '\0');
  EXPECT_EQ(text("tokens.npy", npy("100,")), in(data, "data.vocabulary_size"));
  EXPECT_EQ(text("tokens.npz", "PK\x03\x04 and so on"), path);
  EXPECT_EQ(text("story.gz", "\x1f\x8b\x08 and so on"), path);
  EXPECT_EQ(text("tokens.bin", "\x10" + nul + "\x20" + nul + "\x30" + nul), path);
  EXPECT_EQ(text("story.utf16", "\xff\xfeh" + nul + "i" + nul), path);
  EXPECT_EQ(text("w.safetensors", "\x02" + std::string(7, '\0') + "{} and more"), path);
  EXPECT_EQ(text("table.parquet", "PAR1\x15\x04\x15 and so on"), path);
  EXPECT_EQ(text("PAR", "PAR1 is a word here"), "");
  EXPECT_EQ(text("any.bytes", "\x80\x81\xfe caf\xe9, PK and {}"), "") << "Latin-1 is text";

  const auto tokens = [&](const std::string& name, const std::string& bytes, const std::string& more) {
    const char* length = more.find("length") == std::string::npos ? ", length: 2" : "";
    return refused(with_data("{name: text, path: " + folder.file(name, bytes) + more + length + "}", "{name: llama}"));
  };
  const std::string raw("\x05\0\x06\0\x07\0", 6);
  EXPECT_EQ(tokens("floats.npy", npy("100,"), ", vocabulary_size: 9"), path);
  EXPECT_EQ(tokens("plane.npy", npy("10, 10"), ", vocabulary_size: 9"), path);
  EXPECT_EQ(tokens("raw", raw, ", format: uint16, vocabulary_size: 8"), "");
  EXPECT_EQ(tokens("raw", raw, ", format: uint16, vocabulary_size: 7"), path) << "token 7";
  EXPECT_EQ(tokens("raw", raw + "x", ", format: uint16, vocabulary_size: 8"), path);
  EXPECT_EQ(tokens("raw", raw, ", format: uint16, vocabulary_size: 8, length: 3"), in(data, "data.length"));
  EXPECT_EQ(tokens("raw", raw, ", format: uint16, vocabulary_size: 8, unknown: x"), in(data, "data.unknown"));
  EXPECT_EQ(tokens("raw", raw, ", format: npy, vocabulary_size: 8"), path);
  EXPECT_EQ(tokens("raw", raw, ", format: uint16"), in(data, "data.vocabulary_size"));
  EXPECT_EQ(tokens("text", "some text", ", vocabulary_size: 255"), in(data, "data.vocabulary_size"));

  const auto tokenizer = [&](const std::string& name, const std::string& bytes) {
    return tokens("story", "the cat sat", ", tokenizer: " + folder.file(name, bytes));
  };
  const std::string bad_tokenizer = in(data, "data.tokenizer");
  EXPECT_EQ(tokenizer("vocab.json", R"({"a": 0, "t": 1})"), bad_tokenizer) << "no merges";
  folder.file("merges.txt", "#version: 0.2\n");
  EXPECT_EQ(tokenizer("vocab.json", R"({"a": 0, "t": 1})"), "");
  EXPECT_EQ(tokenizer("merges.txt", "#version: 0.2\n"), bad_tokenizer);
  EXPECT_EQ(tokenizer("tokenizer.json", R"({"model": {"type": "Unigram"}})"), bad_tokenizer);
  EXPECT_EQ(tokens("story", "the cat sat", ", tokenizer: " + folder.path() + "/none.json"), bad_tokenizer);
  EXPECT_EQ(tokens("story", "the cat sat",
                   str(", vocabulary: ", folder.path(), "/story, tokenizer: ", folder.path(), "/vocab.json")),
            in(data, "data.vocabulary"));

  const std::string story = folder.file("story.txt", "the cat sat");
  const auto vocabulary = [&](const std::string& name, const std::string& bytes) {
    return refused(with_data(
        "{name: text, length: 2, unknown: the, path: " + story + ", vocabulary: " + folder.file(name, bytes) + "}",
        "{name: gpt}"));
  };
  const std::string refusal = in(data, "data.vocabulary");
  EXPECT_EQ(vocabulary("vocab.json", R"({"the": 0, "Ġcat": 1, "Ġsat": 2, "Ċ": 3})"), refusal);
  EXPECT_EQ(vocabulary("tokenizer.json", R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"the": 0}}})"),
            refusal);
  EXPECT_EQ(vocabulary("vocab.txt", "[PAD]\n[UNK]\nthe\n##s\n##ing\n"), refusal);
  EXPECT_EQ(vocabulary("pieces.json", "[\"the\", \"▁cat\", \"▁sat\"]"), refusal);
  EXPECT_EQ(vocabulary("merges.txt", "#version: 0.2\nt h\nth e\n"), refusal);
  EXPECT_EQ(vocabulary("tokens", R"({"the": 0, " ": 1})"), refusal) << "JSON under another name";
  EXPECT_EQ(vocabulary("v.npy", npy("100,")), refusal);
  EXPECT_EQ(vocabulary("words.json", R"({"the": 0, " ": 1, "model": 2, "##a": 3, "##b": 4})"), "");
  EXPECT_EQ(vocabulary("lines", "the\n\\s\n##a\n##b\n"), "");
}

TEST(WithoutEffect, SharedKeysSkipDefaults) {
  Folder folder;
  Sections run = with_strategy("{name: pipeline, micro_batches: 4, sync: {every: 2}}");
  const RunConfig config = read_run_tree(read_yaml_file(folder.file("run.yaml", text_of(run)), {}), all_catalogues());
  const std::vector<Option>& options = strategy_entry("single").options;
  EXPECT_EQ(shared_keys(config.strategy.options, options, true),
            (Json{{"sync", {{"every", 2}}}, {"micro_batches", 4}}));
  // The default for pipeline differs from that for single.
  run = with_strategy("{name: pipeline}");
  const RunConfig defaults =
      read_run_tree(read_yaml_file(folder.file("defaults.yaml", text_of(run)), {}), all_catalogues());
  EXPECT_TRUE(shared_keys(defaults.strategy.options, options, false).contains("micro_batches"));
  EXPECT_EQ(shared_keys(defaults.strategy.options, options, true), Json::object());
}

}  // namespace
}  // namespace convoy
