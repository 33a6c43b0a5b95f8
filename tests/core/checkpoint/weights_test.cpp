// Weights of Python: names and layouts, every kind of piece from every kind of file, and refusals.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/checkpoint/initial_weights.h"
#include "core/checkpoint/weight_source.h"
#include "core/files/weight_files.h"
#include "core/tensors/safetensors.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

using Entries = std::vector<std::pair<std::string, at::Tensor>>;

at::Tensor numbered(at::IntArrayRef shape, double first = 0) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return (at::arange(count, at::kFloat) + first).reshape(shape);
}

void put_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// Two key heads, four query heads, 3 features a head. For each key head: two queries, the key, the value.
WeightName grouped() { return {"blocks.7.qkv.weight", {"q", "k", "v"}, false, {2, 1, 1}, 2}; }

TEST(WeightNames, KeepBlockNumbers) {
  WeightNames names;
  names.table = {{"blocks.#.up.weight", {"h.#.mlp.c_fc.weight"}, true}, {"output.norm.weight", {"ln_f.weight"}}};
  names.ignored = {"h.#.attn.bias"};
  names.prefix = "transformer.";
  EXPECT_EQ(names.of("blocks.12.up.weight").theirs, (std::vector<std::string>{"h.12.mlp.c_fc.weight"}));
  EXPECT_TRUE(names.of("blocks.12.up.weight").transposed);
  EXPECT_EQ(names.of("output.norm.weight").theirs, (std::vector<std::string>{"ln_f.weight"}));
  EXPECT_EQ(names.of("mine.3.weight").theirs, (std::vector<std::string>{"mine.3.weight"}));
  EXPECT_EQ(names.layers_of("blocks.0.up"), (std::vector<std::string>{"h.0.mlp.c_fc"}));
  EXPECT_TRUE(names.ignores("h.4.attn.bias"));
  EXPECT_TRUE(names.ignores("transformer.h.4.attn.bias"));
  EXPECT_FALSE(names.ignores("h.4.attn.weight"));
}

TEST(WeightNames, DivideRowsByGroups) {
  const std::vector<WeightRange> ranges = ranges_of(grouped(), 24);
  ASSERT_EQ(ranges.size(), 6u);
  const std::vector<std::vector<int64_t>> expected{{0, 0, 6, 0},   {1, 6, 9, 0},   {2, 9, 12, 0},
                                                   {0, 12, 18, 6}, {1, 18, 21, 3}, {2, 21, 24, 3}};
  for (size_t i = 0; i < ranges.size(); ++i)
    EXPECT_EQ((std::vector<int64_t>{int64_t(ranges[i].part), ranges[i].begin, ranges[i].end, ranges[i].first}),
              expected[i]);
  EXPECT_EQ(stored_shapes(grouped(), {24, 5}), (std::vector<std::vector<int64_t>>{{12, 5}, {6, 5}, {6, 5}}));
  EXPECT_TRUE(has(error_of([] { ranges_of(grouped(), 25); }), "25 rows"));
}

TEST(WeightNames, FindOptionsThatContradictConfigJson) {
  PythonConfig config;
  config.keys = {{"n_head", 4, 12, "heads"},
                 {"rope_parameters.rope_theta|rope_theta", 500000.0, 10000.0, "rotary_base"},
                 {"activation", "gelu_new", "gelu_new", ""}};
  EXPECT_TRUE(config_differences(config, Json{{"n_head", 4}, {"rope_theta", 500000}}).empty());
  EXPECT_TRUE(config_differences(config, Json{{"n_head", 4}, {"rope_parameters", {{"rope_theta", 500000.0}}}}).empty());
  const auto differences = config_differences(config, Json{{"activation", "relu"}});
  ASSERT_EQ(differences.size(), 3u);
  EXPECT_EQ(differences[0].first, "heads");
  EXPECT_EQ(differences[0].second, "n_head = 12 conflicts with model.heads = 4");
  EXPECT_EQ(differences[1].first, "rotary_base");
  EXPECT_EQ(differences[2].first, "");
}

// Pieces of a tensor that a strategy may have.
std::vector<Piece> pieces_of(const std::vector<int64_t>& shape) {
  std::vector<Piece> pieces{Piece::whole(shape)};
  int64_t all = 1;
  for (int64_t size : shape) all *= size;
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, all - 1}, {all / 3, all}}) {
    pieces.push_back(Piece::whole(shape));
    pieces.back().flat = {begin, end};
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    Piece box = Piece::whole(shape);
    box.offset[d] = shape[d] / 3;
    box.length[d] = shape[d] - shape[d] / 3;
    pieces.push_back(box);
    box.flat = {2, box.elements() - 1};
    pieces.push_back(box);
  }
  return pieces;
}

at::Tensor expected_values(const at::Tensor& whole, const Piece& piece) {
  at::Tensor box = whole;
  for (size_t d = 0; d < piece.offset.size(); ++d) box = box.narrow(int64_t(d), piece.offset[d], piece.length[d]);
  box = box.contiguous();
  if (!piece.flat) return box;
  return box.reshape({-1}).narrow(0, piece.flat->first, piece.flat->second - piece.flat->first);
}

TEST(WeightSource, ReadsEveryPieceOfEveryLayout) {
  const TemporaryFolder folder;
  const at::Tensor q = numbered({12, 5}), k = numbered({6, 5}, 1000), v = numbered({6, 5}, 2000);
  const at::Tensor plain = numbered({7, 4, 3}), wide = numbered({9, 6}).to(at::kDouble);
  write_safetensors(folder / "model.safetensors",
                    Entries{{"q", q}, {"k", k}, {"v", v}, {"plain", plain}, {"wide", wide}, {"one", at::full({}, 3.5)}},
                    {});
  const auto source = open_weights(folder.path(), true);
  const auto rows = [](const at::Tensor& of, int64_t begin, int64_t end) { return of.narrow(0, begin, end - begin); };
  const at::Tensor fused =
      at::cat({rows(q, 0, 6), rows(k, 0, 3), rows(v, 0, 3), rows(q, 6, 12), rows(k, 3, 6), rows(v, 3, 6)});
  struct Case {
    WeightName name;
    std::vector<std::string> stored;
    at::Tensor whole;
  };
  const std::vector<Case> cases{{grouped(), {"q", "k", "v"}, fused},
                                {{"a", {"plain"}}, {"plain"}, plain},
                                {{"b", {"wide"}, true}, {"wide"}, wide.t().to(at::kFloat)}};
  for (const Case& one : cases) {
    for (const Piece& piece : pieces_of(one.whole.sizes().vec())) {
      const at::Tensor expected = expected_values(one.whole, piece);
      const at::Tensor out = at::zeros(expected.sizes());
      source->read(one.name, one.stored, piece, out);
      EXPECT_TRUE(out.equal(expected)) << one.name.ours << " " << at::IntArrayRef(piece.offset) << " "
                                       << at::IntArrayRef(piece.length);
    }
  }
  const at::Tensor scalar = at::zeros({});
  source->read({"c", {"one"}}, {"one"}, Piece::whole({}), scalar);
  EXPECT_EQ(scalar.item<float>(), 3.5f);
}

TEST(WeightSource, ReadsAnIndexAndNamesItsMistakes) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model-00001-of-00002.safetensors", Entries{{"a", numbered({2})}}, {});
  write_safetensors(folder / "model-00002-of-00002.safetensors", Entries{{"b", numbered({3})}}, {});
  const std::string index = folder / weights_index;
  const auto with_map = [&](const Json& map) { put_text(index, Json{{"weight_map", map}}.dump()); };
  with_map({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}});
  EXPECT_EQ(open_weights(folder.path(), true)->tensors().size(), 2u);
  const auto error = [&] { return error_of([&] { open_weights(folder.path(), true); }); };
  with_map({{"a", "model-00001-of-00002.safetensors"}, {"c", "model-00002-of-00002.safetensors"}});
  EXPECT_TRUE(has(error(), "c is not in")) << error();
  with_map({{"a", "gone.safetensors"}});
  EXPECT_TRUE(has(error(), "gone.safetensors, which is not there")) << error();
  with_map({{"a", "../model-00001-of-00002.safetensors"}});
  EXPECT_TRUE(has(error(), "leaves the folder")) << error();
  put_text(index, "[]");
  EXPECT_TRUE(has(error(), "weight_map")) << error();
  std::filesystem::remove(index);
  EXPECT_TRUE(has(error(), "name one of them")) << error();
}

TEST(WeightSource, NeverReadsPickles) {
  const TemporaryFolder folder;
  put_text(folder / "pytorch_model.bin", "PK");
  for (const std::string& path : {folder.path(), folder / "pytorch_model.bin"}) {
    const std::string error = error_of([&] { open_weights(path, true); });
    EXPECT_TRUE(has(error, "config: ")) << error;
    EXPECT_TRUE(has(error, "save_file")) << error;
  }
}

struct Files {
  explicit Files(const Entries& entries) { write_safetensors(folder / "model.safetensors", entries, {}); }
  TemporaryFolder folder;
  std::unique_ptr<WeightSource> source() const { return open_weights(folder.path(), true); }
};

WeightNames example_names() {
  WeightNames names;
  names.prefix = "base.";
  names.table = {{"blocks.#.up.weight", {"base.h.#.fc.weight"}, true}, {"output.weight", {"head.weight"}}};
  names.ignored = {"h.#.mask"};
  return names;
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

TEST(InitialWeights, MatchesWithAndWithoutThePrefixAndByCanonicalNames) {
  const Shapes model{{"blocks.0.up.weight", {6, 4}}, {"output.weight", {3, 4}}};
  for (const char* name : {"base.h.0.fc.weight", "h.0.fc.weight"}) {
    const Files files({{name, numbered({4, 6})}, {"head.weight", numbered({3, 4})}, {"h.0.mask", numbered({2})}});
    const WeightMatches matches = match_weights(*files.source(), example_names(), {"x", true, {}}, model);
    EXPECT_EQ(matches.found.size(), 2u);
    EXPECT_EQ(matches.found.at("blocks.0.up.weight").stored.front(), name);
    EXPECT_TRUE(matches.missing.empty() && matches.unused.empty());
  }
  const Files ours({{"blocks.0.up.weight", numbered({6, 4})}, {"output.weight", numbered({3, 4})}});
  const WeightMatches matches = match_weights(*ours.source(), example_names(), {"x", true, {}}, model);
  EXPECT_EQ(matches.found.size(), 2u);
  EXPECT_FALSE(matches.found.at("blocks.0.up.weight").name.transposed);
}

TEST(InitialWeights, NamesMismatchedShapesWithTheirFile) {
  const Files files({{"h.0.fc.weight", numbered({6, 4})}});
  const std::string error = error_of([&] {
    match_weights(*files.source(), example_names(), {"x", true, {}}, {{"blocks.0.up.weight", {6, 4}}});
  });
  for (const char* part : {"config: ", "h.0.fc.weight", "model.safetensors", "[6, 4]", "[4, 6]", "blocks.0.up.weight"})
    EXPECT_TRUE(has(error, part)) << part << " in " << error;
  const Files numbers({{"output.weight", at::arange(12).reshape({3, 4})}});
  EXPECT_TRUE(has(error_of([&] {
                    match_weights(*numbers.source(), example_names(), {"x", true, {}}, {{"output.weight", {3, 4}}});
                  }),
                  "has integers"));
}

TEST(InitialWeights, RenamesAndListsTheRest) {
  const Files files({{"old.0.fc.weight", numbered({4, 6})},
                     {"old.1.fc.weight", numbered({4, 6})},
                     {"head.weight", numbered({9, 4})},
                     {"more", numbered({1})}});
  InitFrom wanted{"x", false, {}};
  wanted.rename.emplace_back(NamePattern(R"(^old\.(\d+))"), R"(h.\1)");
  wanted.rename.emplace_back(NamePattern("^head.*"), "");
  wanted.rename.emplace_back(NamePattern("^old"), "new");
  const WeightMatches matches =
      match_weights(*files.source(), example_names(), wanted,
                    {{"blocks.0.up.weight", {6, 4}}, {"blocks.1.up.weight", {6, 4}}, {"output.weight", {3, 4}}});
  EXPECT_EQ(matches.missing, (std::vector<std::string>{"output.weight"}));
  EXPECT_EQ(matches.unused, (std::vector<std::string>{"more"}));
  EXPECT_EQ(match_lines(matches, "x"),
            (std::vector<std::string>{
                "initial values: 2 tensors from x", "  2 × blocks.#.up.weight ← old.#.fc.weight transposed",
                "  stays random: output.weight", "  not used: more", "  rename matches no name: ^old"}));
  InitFrom same{"x", false, {}};
  same.rename.emplace_back(NamePattern(R"(\d)"), "0");
  EXPECT_TRUE(has(error_of([&] { match_weights(*files.source(), example_names(), same, {}); }), "the same name"));
}

TEST(SafetensorsFile, StaysReadableAfterReleasingItsMemory) {
  const TemporaryFolder folder;
  const at::Tensor big = numbered({300, 1000});
  write_safetensors(folder / "a", Entries{{"small", numbered({3})}, {"big", big}, {"last", numbered({5})}}, {});
  const SafetensorsFile file(folder / "a");
  const at::Tensor view = file.tensor("big");
  EXPECT_TRUE(view.equal(big));
  file.release();
  EXPECT_TRUE(view.equal(big));
  EXPECT_TRUE(file.tensor("last").equal(numbered({5})));
  EXPECT_EQ(file.dtype("big"), at::kFloat);
}

}  // namespace
}  // namespace convoy
