// Decoder of gpt and llama: logits with cached keys and values equal those of the blocks; generation.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/generation.h"
#include "models/registry.h"
#include "tests/models/building.h"
#include "tests/models/plain_formulas.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;

Json decoder_gpt() {
  return {{"layers", 2},
          {"heads", 3},
          {"dim", 24},
          {"mlp_dim", nullptr},
          {"mlp_ratio", 4},
          {"positions", "learned"},
          {"tied", true},
          {"dropout", 0.0},
          {"bias", true},
          {"rotary_base", 50.0},
          {"attention_dropout", 0.0},
          {"rows", false},
          {"norm_eps", 1e-5},
          {"activation", "gelu"}};
}

Json decoder_llama() {
  return {{"layers", 2},   {"heads", 6},          {"kv_heads", 2},           {"dim", 24},
          {"mlp_dim", 20}, {"rotary_base", 50.0}, {"tied", false},           {"dropout", 0.0},
          {"rows", false}, {"norm_eps", 1e-6},    {"attention_dropout", 0.0}};
}

struct Subject {
  explicit Subject(const ModelPtr& built) : model(built), blocks(blocks_of(*model, plain.layers)) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : plain.store->parameters) parameter->value.add_(at::randn_like(parameter->value) * 0.3);
    decoder = model->decoder([this](const std::string& name) { return plain.value(name).detach(); });
  }
  // Logits [T, vocabulary] by the blocks.
  at::Tensor whole(const at::Tensor& tokens) const {
    const at::NoGradGuard no_grad;
    Batch batch;
    batch.rows = 1;
    batch.tensors = {{"tokens", tokens.unsqueeze(0)}};
    for (const auto& block : blocks) block->eval();
    return forward(*model, blocks, batch)[0][0];
  }
  at::Tensor appended(const at::Tensor& tokens, int64_t first, int64_t count) const {
    const float* logits = decoder->append(tokens.const_data_ptr<int64_t>() + first, count);
    return at::from_blob(const_cast<float*>(logits), {vocabulary}, at::kFloat).clone();
  }

  Plain plain;
  ModelPtr model;
  std::vector<BlockPtr> blocks;
  std::unique_ptr<TokenDecoder> decoder;
};

void expect_equal_logits(const ModelPtr& model, const std::string& what) {
  const Subject subject(model);
  const at::Tensor tokens = sequences(1).at("tokens")[0];
  const at::Tensor expected = subject.whole(tokens);
  for (int64_t at_once : {int64_t{1}, int64_t{3}, length}) {
    subject.decoder->clear();
    for (int64_t first = 0; first < length; first += at_once) {
      const int64_t count = std::min(at_once, length - first);
      EXPECT_LT(worst(subject.appended(tokens, first, count), expected[first + count - 1]), 2e-5)
          << what << ", " << at_once << " at once, token " << first + count - 1;
    }
    EXPECT_EQ(subject.decoder->length(), length);
  }
}

TEST(Decoder, EqualsTheBlocksOfGpt) {
  for (const Json& changes : std::vector<Json>{Json::object(),
                                               {{"positions", "rotary"}, {"heads", 4}},
                                               {{"tied", false}, {"bias", false}},
                                               {{"activation", "gelu_tanh"}, {"mlp_dim", 40}, {"norm_eps", 0.1}},
                                               {{"context", 12}, {"layers", 1}}})
    expect_equal_logits(make_gpt(Options(with(decoder_gpt(), changes)), text()), changes.dump());
}

TEST(Decoder, EqualsTheBlocksOfLlama) {
  for (const Json& changes : std::vector<Json>{
           Json::object(), {{"kv_heads", 1}, {"tied", true}}, {{"kv_heads", nullptr}, {"mlp_dim", nullptr}}})
    expect_equal_logits(make_llama(Options(with(decoder_llama(), changes)), text()), changes.dump());
}

TEST(Decoder, RefusesATokenOutsideTheVocabulary) {
  const Subject subject(make_gpt(Options(decoder_gpt()), text()));
  const int64_t token = vocabulary;
  EXPECT_THROW(subject.decoder->append(&token, 1), Error);
}

// Draws 3 · length tokens greedily. The blocks must give the same ones for `window`, the tokens that the decoder keeps.
TEST(Generation, ReadsTheNewerHalfAgainWhenTheContextIsFull) {
  const Subject subject(make_gpt(Options(decoder_gpt()), text()));
  GenerationOptions options;
  options.tokens = 3 * length;
  options.temperature = 0;
  std::vector<int64_t> known{1, 2}, window{1, 2};
  const int64_t drawn = generate(*subject.decoder, known, options, [&](int64_t token) {
    at::Tensor tokens = at::from_blob(window.data(), {int64_t(window.size())}, at::kLong).clone();
    EXPECT_EQ(token, subject.whole(tokens)[-1].argmax().item<int64_t>()) << "after " << known.size() << " tokens";
    if (int64_t(window.size()) == length) window.erase(window.begin(), window.end() - (length / 2 - 1));
    window.push_back(token);
    known.push_back(token);
    return true;
  });
  EXPECT_EQ(drawn, 3 * length);
}

TEST(Generation, EndsAtTheStopTokenOrWhenTheVisitorReturnsFalse) {
  const Subject subject(make_llama(Options(decoder_llama()), text()));
  GenerationOptions options;
  options.tokens = 20;
  std::vector<int64_t> all;
  const auto collect = [&](int64_t token) {
    all.push_back(token);
    return true;
  };
  EXPECT_EQ(generate(*subject.decoder, {3}, options, collect), 20);
  const std::vector<int64_t> first = all;
  options.stop = first[4];
  const auto ends = std::find(first.begin(), first.end(), options.stop) - first.begin();
  all.clear();
  EXPECT_EQ(generate(*subject.decoder, {3}, options, collect), ends);
  EXPECT_EQ(all, std::vector<int64_t>(first.begin(), first.begin() + ends));
  options.stop = -1;
  EXPECT_EQ(generate(*subject.decoder, {3}, options, [](int64_t) { return false; }), 0);
}

TEST(Generation, EqualSeedsGiveEqualTokensAndOthersDoNot) {
  const Subject subject(make_gpt(Options(decoder_gpt()), text()));
  const auto tokens_of = [&](uint64_t seed) {
    GenerationOptions options;
    options.tokens = 40;
    options.seed = seed;
    options.temperature = 2;
    std::vector<int64_t> tokens;
    generate(*subject.decoder, {1}, options, [&](int64_t token) {
      tokens.push_back(token);
      return true;
    });
    return tokens;
  };
  EXPECT_EQ(tokens_of(5), tokens_of(5));
  EXPECT_NE(tokens_of(5), tokens_of(6));
}

std::vector<int64_t> tokens_in(const std::vector<TokenChoice>& choices) {
  std::vector<int64_t> tokens;
  for (const TokenChoice& choice : choices) tokens.push_back(choice.token);
  return tokens;
}

TEST(Generation, ChoosesAmongTheLikeliest) {
  const float logits[] = {0.0F, std::log(4.0F), std::log(2.0F), 0.0F};  // 1, 4, 2, 1 of 8
  GenerationOptions options;
  const auto choices = [&] { return token_choices(logits, 4, options); };
  ASSERT_EQ(choices().size(), 4U);
  EXPECT_NEAR(choices()[1].probability, 0.5, 1e-6);
  options.top_k = 2;
  EXPECT_THAT(tokens_in(choices()), ElementsAre(1, 2));
  EXPECT_NEAR(choices()[0].probability, 2.0 / 3, 1e-6);
  options.top_k = 0;
  options.top_p = 0.49;
  EXPECT_THAT(tokens_in(choices()), ElementsAre(1));
  options.top_p = 0.8;
  EXPECT_THAT(tokens_in(choices()), ElementsAre(1, 2, 0));
  options.top_p = 1;
  options.temperature = 0.5;  // squares the masses: 1, 16, 4, 1
  EXPECT_NEAR(choices()[1].probability, 16.0 / 22, 1e-6);
  options.temperature = 0;
  EXPECT_THAT(tokens_in(choices()), ElementsAre(1));
}

TEST(Generation, DrawsTokensInProportionToTheirProbabilities) {
  const std::vector<TokenChoice> choices{{7, 0.5}, {3, 0.25}, {9, 0.25}};
  EXPECT_EQ(drawn_token(choices, 0.0), 7);
  EXPECT_EQ(drawn_token(choices, 0.49), 7);
  EXPECT_EQ(drawn_token(choices, 0.5), 3);
  EXPECT_EQ(drawn_token(choices, 0.75), 9);
  EXPECT_EQ(drawn_token(choices, std::nextafter(1.0, 0.0)), 9);
}

}  // namespace
}  // namespace convoy
