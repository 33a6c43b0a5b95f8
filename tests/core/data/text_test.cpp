// Text by position: every target once an epoch, bytes and vocabularies, the column cache.
#include "core/data/sets/text.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/data/sampler.h"
#include "core/data/sets/synthetic.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using testing::WrittenFiles;

std::string numbered(int64_t bytes) {
  std::string text;
  for (int64_t i = 0; i < bytes; ++i) text += static_cast<char>((i * i + i / 7) % 251);
  return text;
}

Batch all_of(const Dataset& data, Split split) {
  return data.gather_once(split, at::arange(data.size(split), at::kLong), 0);
}

TEST(Text, EveryTokenIsATargetOnceAnEpoch) {
  const WrittenFiles files;
  const std::string text = numbered(1007);
  TextDataset::Shape shape;
  shape.length = 10;
  shape.evaluate_fraction = 0.2;
  const TextDataset data(files.write("text", text), shape);
  // 100 whole sequences and six remaining bytes.
  ASSERT_EQ(data.size(Split::train), 80);
  ASSERT_EQ(data.size(Split::evaluate), 20);
  std::string seen;
  for (Split split : {Split::train, Split::evaluate}) {
    const Batch batch = all_of(data, split);
    EXPECT_TRUE(at::equal(batch.at("tokens").slice(1, 1), batch.at("target").slice(1, 0, 9)));
    for (int64_t r = 0; r < batch.rows; ++r)
      for (int64_t t = 0; t < 10; ++t) seen += static_cast<char>(batch.at("target")[r][t].item<int64_t>());
  }
  EXPECT_EQ(seen, text.substr(1, 1000));
  EXPECT_EQ(data.tokens_per_row(), 10);
  EXPECT_EQ(data.instances_per_row(), 1);
  EXPECT_EQ(data.schema().fields.at("tokens").cardinality, 256);
}

TEST(Text, AnEpochOfTheSamplerVisitsAllPositions) {
  const WrittenFiles files;
  const std::string text = numbered(501);
  TextDataset::Shape shape;
  shape.length = 4;
  shape.evaluate_fraction = 0;
  const TextDataset data(files.write("text", text), shape);
  ASSERT_EQ(data.size(Split::evaluate), 0);
  const Sampler sampler(data.size(Split::train), 16, 5);
  std::vector<at::Tensor> targets;
  for (int64_t step = 0; step < sampler.steps_per_epoch(); ++step)
    for (int64_t share : {0, 1, 2})
      targets.push_back(data.gather_once(Split::train, sampler.indices(step, share, 3), 0).at("target").flatten());
  std::string sorted;
  const at::Tensor all = at::cat(targets);
  for (int64_t i = 0; i < all.numel(); ++i) sorted += static_cast<char>(all[i].item<int64_t>());
  std::string expected = text.substr(1);
  std::sort(sorted.begin(), sorted.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(sorted, expected);
}

TEST(Text, VocabularyTokensAndTheirCache) {
  const WrittenFiles files;
  std::string text;
  for (int64_t i = 0; i < 300; ++i) text += i % 3 == 0 ? "the " : i % 3 == 1 ? "cat " : "c";
  TextDataset::Shape shape;
  shape.vocabulary = files.write("words.txt", "the\\s\ncat\\s\nc\na\nt\n");
  shape.length = 7;
  const std::string path = files.write("text.txt", text);
  const TextDataset data(path, shape);
  EXPECT_EQ(data.schema().fields.at("target").cardinality, 5);
  EXPECT_EQ(data.size(Split::train) + data.size(Split::evaluate), 299 / 7);
  const at::Tensor first = all_of(data, Split::train).at("tokens");
  for (int64_t i = 0; i < first.numel(); ++i) ASSERT_EQ(first.flatten()[i].item<int64_t>(), i % 3);

  ASSERT_TRUE(std::filesystem::exists(path + ".cache.safetensors"));
  const auto written = std::filesystem::last_write_time(path + ".cache.safetensors");
  EXPECT_TRUE(at::equal(all_of(TextDataset(path, shape), Split::train).at("tokens"), first));
  EXPECT_EQ(std::filesystem::last_write_time(path + ".cache.safetensors"), written);
  // Another vocabulary under the same file name, and another text, are noticed.
  files.write("words.txt", "cat\\s\nthe\\s\nc\na\nt\n");
  EXPECT_EQ(all_of(TextDataset(path, shape), Split::train).at("tokens")[0][0].item<int64_t>(), 1);
  files.write("text.txt", "c" + text);
  EXPECT_EQ(all_of(TextDataset(path, shape), Split::train).at("tokens")[0][0].item<int64_t>(), 2);
}

TEST(Text, ReportsMistakes) {
  const WrittenFiles files;
  const auto message = [&](const std::string& path, const TextDataset::Shape& shape) {
    try {
      TextDataset(path, shape);
    } catch (const Error& error) {
      return str(name_of(error.kind()), " ", error.what());
    }
    return std::string("no error");
  };
  TextDataset::Shape shape;
  shape.length = 8;
  EXPECT_THAT(message(files.path("absent"), shape), HasSubstr("absent: cannot open it"));
  EXPECT_THAT(message(files.write("short", "12345678"), shape),
              HasSubstr("holds 8 tokens; a sequence of data.length 8 takes 9"));
  EXPECT_THAT(message(files.write("empty", ""), shape), HasSubstr("holds 0 tokens"));
  EXPECT_EQ(message(files.write("enough", "123456789"), shape), "no error");
  shape.vocabulary = files.write("words", "1\n2\n");
  EXPECT_THAT(message(files.path("short"), shape), HasSubstr("short: byte 2 (value 51) begins no token"));
  shape.unknown = "?";
  EXPECT_THAT(message(files.path("short"), shape), HasSubstr("'?' is not a token of data.vocabulary"));
  shape.unknown = "2";
  EXPECT_EQ(message(files.path("enough"), shape), "no error");
}

TEST(Text, TokenFilesAreMappedAndChecked) {
  const WrittenFiles files;
  std::string raw;
  for (int i = 0; i < 50; ++i) raw += {static_cast<char>(i % 7), static_cast<char>(i % 3)};  // i % 7 + 256 · (i % 3)
  TextDataset::Shape shape;
  shape.length = 4;
  shape.format = "uint16";
  shape.vocabulary_size = 600;
  const std::string path = files.write("tokens.bin", raw);
  const TextDataset data(path, shape);
  EXPECT_EQ(data.schema().fields.at("tokens").cardinality, 600);
  const Batch batch = all_of(data, Split::train);
  for (int64_t i = 0; i < batch.at("target").numel(); ++i)
    ASSERT_EQ(batch.at("target").flatten()[i].item<int64_t>(), (i + 1) % 7 + 256 * ((i + 1) % 3));
  EXPECT_TRUE(at::equal(batch.at("tokens").slice(1, 1), batch.at("target").slice(1, 0, 3)));
  EXPECT_FALSE(std::filesystem::exists(path + ".cache.safetensors"));

  const auto message = [&](const TextDataset::Shape& changed) {
    try {
      const TextDataset made(path, changed);
    } catch (const Error& error) {
      return str(name_of(error.kind()), " ", error.what());
    }
    return std::string("no error");
  };
  TextDataset::Shape other = shape;
  other.vocabulary_size = 515;
  EXPECT_THAT(message(other), HasSubstr("corrupt_data"));
  EXPECT_THAT(message(other), HasSubstr("token 5 (byte 10) is 517, and the vocabulary has 0 to 514"));
  other.vocabulary_size = 0;
  EXPECT_THAT(message(other), HasSubstr("data.vocabulary_size: is needed"));
  other = shape;
  other.length = 60;
  EXPECT_THAT(message(other), HasSubstr("holds 50 tokens; a sequence of data.length 60 takes 61"));
  other = shape;
  other.format = "uint32";
  other.vocabulary_size = 1 << 26;
  EXPECT_EQ(message(other), "no error");
  EXPECT_NE(TextDataset(path, other).contents().fingerprint, data.contents().fingerprint);
}

TEST(Text, EncodesWithATokenizerAndStoresIt) {
  const WrittenFiles files;
  const std::string vocabulary = R"({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4})", merges = "a b\nĠ ab\n";
  TextDataset::Shape shape;
  shape.length = 2;
  shape.evaluate_fraction = 0;
  shape.tokenizer = files.write("vocab.json", vocabulary);
  files.write("merges.txt", merges);
  const std::string path = files.write("text.txt", "ab ab b ab ab");
  const TextDataset data(path, shape);
  const at::Tensor tokens = at::tensor({3, 4, 2, 1}, at::kLong);
  EXPECT_TRUE(at::equal(all_of(data, Split::train).at("tokens").flatten().slice(0, 0, 4), tokens));
  EXPECT_EQ(data.schema().fields.at("tokens").cardinality, 5);

  const DataContents contents = data.contents();
  EXPECT_THAT(contents.lists.at("tokens").names.strings(), ::testing::ElementsAre("a", "b", "Ġ", "ab", "Ġab"));
  EXPECT_THAT(contents.lists.at("tokenizer").names.strings(),
              ::testing::ElementsAre("vocab.json", vocabulary, "merges.txt", merges));
  EXPECT_EQ(data.numbered_as(contents), nullptr);
  TextDataset::Shape larger = shape;
  larger.vocabulary_size = 8;
  EXPECT_EQ(TextDataset(path, larger).schema().fields.at("target").cardinality, 8);
  larger.vocabulary_size = 4;
  EXPECT_THROW(TextDataset(path, larger), Error);

  // Equal tokens with other merges are other data, and are encoded again.
  files.write("merges.txt", "a b\n");
  const TextDataset other(path, shape);
  const DataChange change = data_change(contents, other.contents());
  EXPECT_FALSE(change.none());
  EXPECT_TRUE(change.unknown.empty());
  EXPECT_TRUE(at::equal(all_of(other, Split::train).at("tokens").flatten().slice(0, 0, 4),
                        at::tensor({3, 2, 3, 2}, at::kLong)));
}

TEST(SyntheticTokens, FollowAKnownPatternAndTheSeed) {
  SyntheticTokens::Shape shape;
  shape.rows = 200;
  shape.evaluate_rows = 30;
  shape.vocabulary = 50;
  shape.length = 21;
  const SyntheticTokens data(shape, 1), other(shape, 2);
  const Batch batch = all_of(data, Split::train);
  EXPECT_TRUE(at::equal(batch.at("tokens").slice(1, 1), batch.at("target").slice(1, 0, 20)));
  const at::Tensor some = at::tensor({199, 7}, at::kLong);
  EXPECT_TRUE(
      at::equal(data.gather_once(Split::train, some, 3).at("target"), batch.at("target").index_select(0, some)));
  EXPECT_FALSE(at::equal(all_of(other, Split::train).at("tokens"), batch.at("tokens")));
  EXPECT_FALSE(at::equal(all_of(data, Split::evaluate).at("tokens"), batch.at("tokens").slice(0, 0, 30)));
  // A token is followed by four others at most, and every token occurs.
  std::vector<std::set<int64_t>> next(50);
  const at::Tensor from = batch.at("tokens").flatten(), to = batch.at("target").flatten();
  for (int64_t i = 0; i < from.numel(); ++i) next[size_t(from[i].item<int64_t>())].insert(to[i].item<int64_t>());
  size_t most = 0;
  for (const auto& followers : next) most = std::max(most, followers.size());
  EXPECT_EQ(most, 4u);
  EXPECT_EQ(batch.at("tokens").max().item<int64_t>() < 50 && batch.at("tokens").min().item<int64_t>() >= 0, true);
}

}  // namespace
}  // namespace convoy
