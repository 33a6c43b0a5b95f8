// BPE trainer: merges by frequency, ties, special tokens, and tokenizers that Tokenizer reads.
// tests/multi/weights/tokenizer.py compares with the Python package.
#include "core/data/formats/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/data/formats/tokenizer.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using testing::WrittenFiles;

TrainedBpe trained_on(const std::string& text, int64_t size, std::vector<std::string> special = {}) {
  BpeTrainer trainer(std::move(special));
  trainer.add(text);
  return trainer.train(size);
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  // Pieces: "low" once, " low" twice, " lower" twice. Pairs: lo and ow five times, Ġl four, we and er twice.
  const TrainedBpe bpe = trained_on("low low low lower lower", 256 + 5);
  EXPECT_THAT(bpe.merges,
              ElementsAre(Pair("l", "o"), Pair("lo", "w"), Pair("Ġ", "low"), Pair("e", "r"), Pair("Ġlow", "er")));
  EXPECT_EQ(bpe.tokens.size(), 261U);
  EXPECT_EQ(bpe.tokens.back(), "Ġlower");
  EXPECT_EQ(bpe.pieces, 5);
  EXPECT_EQ(bpe.different, 3);
}

TEST(BpeTrainer, EndsWhenNoPairOccursTwice) {
  EXPECT_EQ(trained_on("abc", 1000).tokens.size(), 256U);
  EXPECT_THAT(trained_on("ab ab", 1000).merges, ElementsAre(Pair("a", "b")));
}

TEST(BpeTrainer, CountsOverlappingPairsAsTheyAreMerged) {
  const TrainedBpe bpe = trained_on("aaaa aaaa", 1000);  // "aaaa" and " aaaa"
  EXPECT_THAT(bpe.merges, ElementsAre(Pair("a", "a"), Pair("aa", "aa")));
}

TEST(BpeTrainer, RefusesASizeBelowTheBytes) {
  EXPECT_THROW(trained_on("abc", 255), Error);
  EXPECT_THROW(trained_on("abc", 256, {"<|endoftext|>"}), Error);
  EXPECT_EQ(trained_on("abc", 257, {"<|endoftext|>"}).tokens.front(), "<|endoftext|>");
}

TEST(BpeTrainer, MakesATokenizerThatReadsEveryByteBack) {
  std::string text = "The tokenizer of the trainer: the Straße, the 日本語, the \xff\xfe bytes.\n\t the  end <|end|>";
  for (int i = 0; i < 3; ++i) text += text;
  const TrainedBpe bpe = trained_on(text, 300, {"<|end|>"});
  WrittenFiles files;
  const std::string path = files.write("tokenizer.json", bpe.tokenizer_json());
  const Tokenizer tokenizer = Tokenizer::read(path);
  EXPECT_EQ(tokenizer.size(), int64_t(bpe.tokens.size()));
  const std::vector<int32_t> tokens = tokenizer.encode(text, "text");
  EXPECT_LT(tokens.size(), text.size() * 3 / 4);
  EXPECT_EQ(tokenizer.decode(tokens.data(), int64_t(tokens.size())), text);
  EXPECT_EQ(tokens.back(), 0) << "the special token";
}

}  // namespace
}  // namespace convoy
