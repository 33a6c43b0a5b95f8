// Tokenizers: merges in their order, special tokens, bytes, and the features that are refused by name.
// tests/multi/weights/tokenizer.py compares with the Python package.
#include "core/data/formats/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/options.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::WrittenFiles;

// Letters a … e, the space and the bytes of é; then merges.
Json tokens_of_letters() {
  return {{"a", 0}, {"b", 1},  {"c", 2},  {"d", 3},    {"e", 4},   {"Ġ", 5},   {"Ã", 6},
          {"©", 7}, {"ab", 8}, {"bc", 9}, {"abc", 10}, {"Ġa", 11}, {"Ã©", 12}, {"aa", 13}};
}

Json tokenizer_json() {
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", 20},
             {"content", "<|end|>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"model",
           {{"type", "BPE"},
            {"unk_token", nullptr},
            {"vocab", tokens_of_letters()},
            {"merges", {"b c", "a b", "a bc", "Ġ a", "Ã ©", "a a"}}}}};
}

Tokenizer made(const Json& json) {
  const WrittenFiles files;
  return Tokenizer::read(files.write("tokenizer.json", json.dump()));
}

std::string message(const Json& json) {
  try {
    made(json);
  } catch (const Error& error) {
    return str(name_of(error.kind()), " ", error.what());
  }
  return "no error";
}

TEST(Tokenizer, MergesInTheOrderOfTheList) {
  const Tokenizer tokenizer = made(tokenizer_json());
  EXPECT_EQ(tokenizer.size(), 21);
  EXPECT_EQ(tokenizer.tokens()[10], "abc");
  EXPECT_EQ(tokenizer.tokens()[15], "");
  EXPECT_THAT(tokenizer.encode("abc", "x"), ElementsAre(10));  // b c comes first, then a bc
  EXPECT_THAT(tokenizer.encode("abd", "x"), ElementsAre(8, 3));
  EXPECT_THAT(tokenizer.encode("aaaaa", "x"), ElementsAre(13, 13, 0));  // the leftmost of equal merges
  EXPECT_THAT(tokenizer.encode("abcabc", "x"), ElementsAre(10, 10));
  EXPECT_THAT(tokenizer.encode("b a\xc3\xa9", "x"), ElementsAre(1, 11, 12));
  EXPECT_THAT(tokenizer.encode("", "x"), ElementsAre());
}

TEST(Tokenizer, SpecialTokensAreFoundInTheText) {
  const Tokenizer tokenizer = made(tokenizer_json());
  EXPECT_THAT(tokenizer.encode("ab<|end|>c", "x"), ElementsAre(8, 20, 2));
  const std::vector<int32_t> tokens{8, 20, 11, 12};
  EXPECT_EQ(tokenizer.decode(tokens.data(), 4), "ab<|end|> a\xc3\xa9");
}

TEST(Tokenizer, MayKeepAWholePiece) {
  Json json = tokenizer_json();
  json["model"]["vocab"]["cab"] = 14;
  EXPECT_THAT(made(json).encode("cab", "x"), ElementsAre(2, 8));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(made(json).encode("cab", "x"), ElementsAre(14));
}

TEST(Tokenizer, BytesWithoutATokenAreUnknownOrAnError) {
  Json json = tokenizer_json();
  try {
    made(json).encode("ab z", "book.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::corrupt_data);
    EXPECT_THAT(error.what(), HasSubstr("book.txt: byte 3 (value 122) has no token"));
  }
  json["model"]["unk_token"] = "e";
  EXPECT_THAT(made(json).encode("az", "x"), ElementsAre(0, 4));
}

TEST(Tokenizer, AppliesSplitsAndPrefixes) {
  Json json = tokenizer_json();
  json["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_THAT(made(json).encode("ab", "x"), ElementsAre(5, 8));
  EXPECT_THAT(made(json).encode(" ab", "x"), ElementsAre(5, 8));
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "a|[^a]+"}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_THAT(made(json).encode("abc", "x"), ElementsAre(0, 9));
}

TEST(Tokenizer, ReadsVocabularyAndMerges) {
  const WrittenFiles files;
  Json vocabulary = tokens_of_letters();
  vocabulary["<|endoftext|>"] = 14;
  const std::string path = files.write("vocab.json", vocabulary.dump());
  const auto reason = [&] {
    try {
      Tokenizer::read(path);
    } catch (const Error& error) {
      return str(name_of(error.kind()), " ", error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(reason(), HasSubstr("its merges are missing"));
  files.write("merges.txt", "#version: 0.2\nb c\na bc\n");
  const Tokenizer tokenizer = Tokenizer::read(path);
  EXPECT_THAT(tokenizer.encode("abc<|endoftext|>a", "x"), ElementsAre(10, 14, 0));
  ASSERT_EQ(tokenizer.files().size(), 2u);
  EXPECT_EQ(tokenizer.files()[1].first, "merges.txt");
  EXPECT_EQ(tokenizer.files()[0].second, vocabulary.dump());
  files.write("merges.txt", "#version: 0.2\r\nb c\r\n");
  EXPECT_NE(Tokenizer::read(path).hash(), tokenizer.hash());
  EXPECT_THAT(Tokenizer::read(path).encode("abc", "x"), ElementsAre(0, 9));
  files.write("merges.txt", "b c\nb q\n");
  EXPECT_THAT(reason(), HasSubstr("merges.txt:2: merges 'b' and 'q', and 'q' is not in the vocabulary"));
  files.write("merges.txt", "b c\nc d\n");
  EXPECT_THAT(reason(), HasSubstr("'cd' is not in the vocabulary"));
  files.write("merges.txt", "b  c\n");
  EXPECT_THAT(reason(), HasSubstr("merges.txt:1: is 'b  c', not two tokens"));
  EXPECT_THROW(Tokenizer::read(files.path("merges.txt")), Error);
}

TEST(Tokenizer, NamesUnsupportedFeatures) {
  const auto changed = [](const char* pointer, const Json& value) {
    Json json = tokenizer_json();
    json[Json::json_pointer(pointer)] = value;
    return message(json);
  };
  EXPECT_THAT(changed("/model/type", "WordPiece"), HasSubstr("config"));
  EXPECT_THAT(changed("/model/type", "WordPiece"), HasSubstr("the model WordPiece is not supported"));
  EXPECT_THAT(changed("/model/byte_fallback", true), HasSubstr("model.byte_fallback is not"));
  EXPECT_THAT(changed("/model/dropout", 0.1), HasSubstr("model.dropout is not"));
  EXPECT_THAT(changed("/model/end_of_word_suffix", "</w>"), HasSubstr("model.end_of_word_suffix \"</w>\" is not"));
  EXPECT_THAT(changed("/normalizer", {{"type", "NFC"}}), HasSubstr("the normalizer NFC is not"));
  EXPECT_THAT(changed("/pre_tokenizer", nullptr), HasSubstr("without pre_tokenizer"));
  EXPECT_THAT(changed("/pre_tokenizer/type", "Metaspace"), HasSubstr("the pre_tokenizer Metaspace is not"));
  EXPECT_THAT(changed("/added_tokens/0/lstrip", true), HasSubstr("the added token <|end|> with lstrip is not"));
}

TEST(Tokenizer, ReportsMistakes) {
  const auto changed = [](const char* pointer, const Json& value) {
    Json json = tokenizer_json();
    json[Json::json_pointer(pointer)] = value;
    return message(json);
  };
  EXPECT_THAT(changed("/model/vocab/ab", 8.5), HasSubstr("corrupt_data"));
  EXPECT_THAT(changed("/model/vocab/ab", -1), HasSubstr("token 'ab' has the number -1"));
  EXPECT_THAT(changed("/model/vocab/ab", 9), HasSubstr("both have the number 9"));
  EXPECT_THAT(changed("/model/merges/1", "b"), HasSubstr("entry 1: is 'b', not two tokens"));
  EXPECT_THAT(changed("/model/merges/0", 3), HasSubstr("entry 0: is 3, not two tokens"));
  EXPECT_THAT(changed("/model/merges", 3), HasSubstr("model.merges is no list"));
  EXPECT_THAT(changed("/model/type", 3), HasSubstr("is no tokenizer"));
  EXPECT_THAT(changed("/added_tokens/0/content", 3), HasSubstr("added_tokens has the entry"));
  EXPECT_THAT(message("text"), HasSubstr("is no map"));
  const WrittenFiles files;
  EXPECT_THROW(Tokenizer::read(files.write("t.json", "{\"model\": ")), Error);
  EXPECT_THROW(Tokenizer::read(files.path("absent.json")), Error);
}

}  // namespace
}  // namespace convoy
